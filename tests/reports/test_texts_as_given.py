"""Texts and rows come back as they were given: nothing is cut, stripped or dropped."""

from __future__ import annotations

import pytest

import crossknn as ck


def count(pairs):
    return [float(len(text)) for _, text in pairs]


@pytest.mark.parametrize(
    "document",
    ["  a tree\n", "a tree", "", " ", {"text": " a tree "}, {"text": "\ta tree", "title": None}],
)
def test_rerank_returns_the_text_as_given(document):
    """`return_documents` gives the very text, with its outer blanks."""
    [entry] = ck.rerank("q", [document], scorer=count, return_documents=True)
    assert entry["text"] == (document if isinstance(document, str) else document["text"])


def test_a_query_as_given():
    """A search names a query as it was given, with its outer blanks."""
    searcher = ck.Searcher(ck.ItemIndex.build(["a tree"], lsa=0), count, "exact")
    assert searcher.search([" a tree ", "x\n"]).queries == (" a tree ", "x\n")


@pytest.mark.parametrize(
    ("title", "read"),
    [
        ("price < 5 dollars", "price < 5 dollars"),
        ("a < b and b > c", "a < b and b > c"),
        ("vector<int> in C++", "vector<int> in C++"),
        ("<3 songs", "<3 songs"),
        ("x <", "x <"),
        ("Topic: AT&T </title>", "AT&T"),
        ("two\nlines", "two lines"),
    ],
)
def test_titles_of_old_topics(tmp_path, title, read):
    """A `<` in the title of an old TREC topic does not end it."""
    path = tmp_path / "topics.txt"
    path.write_text(
        f"<top>\n<num> Number: 301\n<title> {title}\n\n<desc> Description:\nmore <num> 7\n</top>\n"
        "<top><num>302</num><title>plain</title><narr>x</narr></top>\n"
    )
    assert ck.read_queries(path) == ck.QuerySet(("301", "302"), (read, "plain"))


def test_rows_without_a_query_id():
    """PyTerrier rows with a NaN qid are refused, not dropped."""
    pd, adapter = pytest.importorskip("pandas"), pytest.importorskip("crossknn.adapters.pyterrier")
    rows = {"qid": ["q1", float("nan"), "q1"], "query": ["tree", "tree", "tree"]}
    found = pd.DataFrame(rows | {"docno": ["d1", "d2", "d3"], "text": ["a", "b", "c"]})
    with pytest.raises(ck.InputError, match="the qid of row 1 is nan"):
        adapter.CrossknnReranker(count).transform(found)
    searcher = ck.Searcher(ck.ItemIndex.build(["a tree"], lsa=0), count, "exact")
    with pytest.raises(ck.InputError, match="the qid of row 1 is nan"):
        adapter.CrossknnRetriever(searcher).transform(pd.DataFrame(rows))
    ranked = adapter.CrossknnReranker(count).transform(found.fillna({"qid": "q2"}))
    assert sorted(ranked["docno"]) == ["d1", "d2", "d3"]
