"""Tables in a terminal."""

from crossknn.table import Plain, Table


def test_in_a_terminal_columns_are_aligned():
    rows = [["exact"], ["1", "62.5 [50, 75]", "a"], ["10", None, Plain("*b*\n c")]]
    assert Table(head=["calls", "recall", "why"], rows=rows).lines() == [
        "calls         recall  why",
        "exact",
        "    1  62.5 [50, 75]  a",
        "   10              -  *b* c",
    ]
