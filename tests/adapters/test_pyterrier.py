"""The real package of PyTerrier: transformers in its pipelines and experiments, without Java."""

from __future__ import annotations

import pytest
from adapter_helpers import failing, overlap

import crossknn as ck

pytest.importorskip("pyterrier")

import pandas as pd
import pyterrier as pt

from crossknn.adapters.pyterrier import CrossknnReranker, CrossknnRetriever, as_scorer

TOPICS = pd.DataFrame(
    {"qid": ["7", "9"], "query": ["sort the list", "zip a folder"], "year": [1, 2]}
)


def word_overlap():
    """A scorer of PyTerrier, which returns its results in another order."""

    def score(frame):
        pairs = list(zip(frame["query"], frame["text"], strict=True))
        return frame.assign(score=overlap(pairs)).iloc[::-1]

    return pt.apply.generic(score, required_columns=["query", "text"])


def test_results_have_the_columns_of_their_topics(searcher):
    retriever = CrossknnRetriever(searcher, 5, budget=12)
    found = retriever(TOPICS)
    wanted = searcher.search(TOPICS["query"].tolist(), 5, 12)
    hits = [hit for query in wanted for hit in query]
    assert found["docno"].tolist() == [hit.id for hit in hits]
    assert found["crossknn_iteration"].tolist() == [hit.round - 1 for hit in hits]
    assert found["rank"].tolist() == [*range(5)] * 2
    assert found["qid"].tolist() == ["7"] * 5 + ["9"] * 5
    assert found["year"].tolist() == [1] * 5 + [2] * 5
    two = (retriever % 2)(TOPICS)
    assert two["docno"].tolist() == found.loc[found["rank"] < 2, "docno"].tolist()
    with pytest.raises(Exception, match="query"):
        retriever(TOPICS.drop(columns="query"))
    assert not pt.java.started()


def test_pyterrier_knows_their_columns(searcher):
    retriever = CrossknnRetriever(searcher, 3, budget=6)
    wanted = ["qid", "query", "docno", "score", "rank", "crossknn_iteration", "text"]
    assert pt.inspect.transformer_inputs(retriever) == [["qid", "query"]]
    assert pt.inspect.transformer_outputs(retriever, ["qid", "query"]) == wanted
    pipeline = retriever >> CrossknnReranker(overlap, budget=2)
    assert {*pt.inspect.transformer_outputs(pipeline, ["qid", "query"])} == {
        *wanted,
        "crossknn_predicted",
    }


def test_an_experiment_compares_pipelines(searcher):
    qrels = pd.DataFrame({"qid": ["7", "9"], "docno": ["sort-list", "zip-folder"], "label": 1})
    retriever = CrossknnRetriever(searcher, 5, budget=12)
    table = pt.Experiment(
        [retriever, retriever >> CrossknnReranker(overlap)],
        TOPICS,
        qrels,
        ["recip_rank"],
        names=["retriever", "reranked"],
    )
    assert table["recip_rank"].tolist() == [1.0, 1.0]


def test_results_without_ranks_are_in_the_order_of_their_scores():
    frame = pd.DataFrame(
        {"qid": "7", "query": "q", "docno": ["a", "b", "c"], "text": "x", "score": [1, 3, 2]}
    )
    same = lambda pairs: [1.0] * len(pairs)  # noqa: E731
    assert CrossknnReranker(same)(frame)["docno"].tolist() == ["b", "c", "a"]


def test_a_scorer_that_fails_is_no_result(index):
    with pytest.raises(ck.ScorerError, match="no power"):
        CrossknnRetriever(ck.Searcher(index, failing), 5, budget=12)(TOPICS)


def test_a_scorer_of_pyterrier_is_a_scorer(index, searcher):
    scorer = as_scorer(word_overlap())
    found = ck.Searcher(index, scorer).search(TOPICS["query"].tolist(), 5, 12)
    wanted = searcher.search(TOPICS["query"].tolist(), 5, 12)
    assert [[h.id for h in hits] for hits in found] == [[h.id for h in hits] for hits in wanted]
    assert [h.score for h in found[1]] == pytest.approx([h.score for h in wanted[1]])
