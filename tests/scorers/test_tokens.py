"""Windows: what is cut, what is kept, and that nobody is lied to about it. No torch here."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import CONTENT, tokenizer

from crossknn.data.queries import MARKS
from crossknn.errors import InputError
from crossknn.models.tokens import Encoding, Tokenizer, Window, around, token_batches
from crossknn.types import Pairs
from crossknn_train.reading import ITEM_TEMPLATE, marked_query

PLAIN, MARKED = Tokenizer(tokenizer()), Tokenizer(tokenizer(MARKS))
START, END, ENTITY = MARKED.marks
CLS, SEP = 2, 3
ONE = Pairs(np.array([0]), np.array([0]))
WORDS = st.lists(st.sampled_from(CONTENT), max_size=14)
SOME_WORDS = st.lists(st.sampled_from(CONTENT), min_size=1, max_size=14)


def pair(encoding, query, item):
    return whole(*encoding.pairs(ONE, [query], [item]))


def text(encoding, text, *, queries):
    return whole(*encoding.texts([text], queries=queries))


def whole(row):
    if isinstance(row, InputError):
        raise row
    return row


@st.composite
def marked_pairs(draw):
    query = marked_query(*(" ".join(draw(part)) for part in (WORDS, SOME_WORDS, WORDS)))
    return query, ITEM_TEMPLATE.format(title=" ".join(draw(WORDS)), text=" ".join(draw(WORDS)))


# The window around a mention


def best_window(n, start, end, room):
    """Slow: of all windows that hold the span, the longest, then the most even, then leftmost...

    ... where the right side has the odd token.
    """
    width = min(room, n)
    windows = [(s, s + width) for s in range(n - width + 1) if s <= start and end <= s + width]
    return min(windows, key=lambda w: (abs((start - w[0]) - (w[1] - end)), start - w[0]))


@given(st.data())
def test_around_is_the_best_window(data):
    n = data.draw(st.integers(1, 20))
    start = data.draw(st.integers(0, n - 1))
    end = data.draw(st.integers(start + 1, n))
    room = data.draw(st.integers(2, 24))
    found = around(np.arange(n), start, end, room).tolist()
    if room < end - start:  # both ends are kept
        assert found == [*range(start, start + room - 1), end - 1]
    else:
        assert found == list(range(*best_window(n, start, end, room)))


# Pairs


@given(marked_pairs(), st.integers(7, 40), st.integers(4, 20), st.integers(2, 20))
def test_the_marks_are_kept_in_a_shared_window_and_in_halves(texts, shared, query, item):
    check_marked(*texts, Window(max_length=shared))
    halves = {"query_length": query, "item_length": item}
    ids = check_marked(*texts, Window(max_length=query + item, **halves))
    middle = ids.index(SEP) + 1
    assert middle <= query
    assert len(ids) - middle <= item


def check_marked(query, item, window):
    row = pair(Encoding(MARKED, window), query, item)
    whole = pair(Encoding(MARKED, Window(max_length=1000)), query, item)
    ids = row.ids.tolist()
    assert len(ids) <= window.max_length
    assert [ids.count(mark) for mark in MARKED.marks] == [1, 1, 1]
    assert ids.index(START) < ids.index(END) < ids.index(SEP) < ids.index(ENTITY) < len(ids) - 1
    assert (ids[0], ids[-1], ids.count(SEP)) == (CLS, SEP, 2)
    middle = ids.index(SEP) + 1
    assert row.kinds.tolist() == [0] * middle + [1] * (len(ids) - middle)
    assert row.cut == (ids != whole.ids.tolist())
    return ids


def test_texts_without_their_marks_and_bad_pairs_leave_the_others():
    encoding = Encoding(MARKED, Window(max_length=20))
    queries = ["[Ms] oak [Me]", "oak", "[Ms] oak", "oak [Me]", "[Me] oak [Ms]", "", "\ud800", 3]
    items = ["elm [ENT]", "elm"]
    mention, entity = "no mention between [Ms] and [Me]", "no [ENT] after"
    wanted = [None, *[mention] * 5, *["not a valid string"] * 2]
    each = Pairs(np.arange(8), np.zeros(8, int))
    for rows in (encoding.pairs(each, queries, items), encoding.texts(queries, queries=True)):
        for row, expected in zip(rows, wanted, strict=True):
            assert isinstance(row, InputError) == (expected is not None)
            assert expected is None or expected in str(row)
    for rows in (
        encoding.pairs(Pairs(np.zeros(2, int), np.arange(2)), queries, items),
        encoding.texts(items, queries=False),
    ):
        assert not isinstance(rows[0], InputError)
        assert entity in str(rows[1])


def test_a_window_without_room_for_the_marks_is_an_error():
    halves = {"max_length": 20, "query_length": 10, "item_length": 10}
    short = [{"max_length": 1}, {"max_length": 5}, *(halves | {k: 1} for k in list(halves)[1:])]
    for limits in short:
        with pytest.raises(InputError, match="room"):
            pair(
                Encoding(MARKED, Window(**limits)), "red [Ms] oak elm [Me] fir", "blue [ENT] white"
            )
    with pytest.raises(InputError, match="room"):
        text(Encoding(PLAIN, Window(max_length=1)), "red oak", queries=True)
    row = pair(Encoding(PLAIN, Window(max_length=3)), "red oak", "blue elm")
    assert (row.ids.tolist(), row.cut) == ([CLS, SEP, SEP], True)


# Single texts


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 200), st.booleans())
def test_batches_hold_every_row_once_within_the_tokens(lengths, tokens, one_width):
    batches = list(token_batches(np.array(lengths), tokens, one_width))
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    for batch in batches:
        widths = {-(-lengths[r] // 8) * 8 for r in batch}
        assert len(batch) == 1 or len(batch) * max(widths) <= tokens
        assert len(widths) == 1 or not one_width
