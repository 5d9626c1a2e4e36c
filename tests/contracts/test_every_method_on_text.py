"""What holds for every method on a real index, with a callable and with the bundled cross-encoder."""

from __future__ import annotations

import numpy as np
import pytest
from golden.cases import TEXT_QUERIES as QUERIES
from golden.cases import N, corpus, overlap
from synthetic import METHODS

import crossknn as ck
from crossknn.fitting.anchors import collect_anchors, collect_item_scores
from crossknn.index.base import Scale
from crossknn.index.vectors import ItemVectors
from crossknn.types import Pairs

BUDGET = 12


@pytest.fixture(scope="module", params=["callable", "fitted", "bundled"])
def setting(request, tmp_path_factory):
    """(index with everything that methods need, scorer, exact scores)."""
    scorer = (
        ck.CrossEncoder() if request.param == "bundled" else ck.CallableScorer(overlap, "words")
    )
    index = ck.ItemIndex.build(corpus(), encoder="bundled", lsa=8, tfidf=True)
    folder = tmp_path_factory.mktemp("text") / "words.index"
    index.save(folder)
    collect_anchors(index, scorer, ["copy a file", "merge lists", "find a path", "parse a string"])
    collect_item_scores(index, scorer, np.arange(0, N, 6))
    index.add_graph("dense", 8)
    if request.param == "fitted":
        moved = index.vectors["dense"] + np.float32(0.01) * index.vectors["dense"][::-1]
        index.add_fitted(
            "mf",
            ItemVectors(
                values=moved,
                method="als",
                base="dense",
                scale=Scale(alpha=1.0, beta=0.1),
                fingerprint=scorer.fingerprint,
            ),
        )
    exact = np.full((len(QUERIES), N), np.nan, np.float32)
    pairs = Pairs(np.repeat(np.arange(len(QUERIES)), N), np.tile(np.arange(N), len(QUERIES)))
    for positions, scores in scorer.score(pairs, QUERIES, index.items.texts):
        exact[pairs.query[positions], pairs.item[positions]] = scores
    assert np.isfinite(exact).all()
    return ck.ItemIndex.load(folder), scorer, exact


every_method = pytest.mark.parametrize("spec", METHODS)


@every_method
def test_the_budget_is_spent_and_the_scores_are_exact(spec, setting):
    index, scorer, exact = setting
    results = ck.Searcher(index, scorer, spec).search(QUERIES, k=5, budget=BUDGET)
    budget = N if spec == "exact" else BUDGET
    assert results.n_calls == results.n_scored == budget * len(QUERIES)
    assert results.stopped_by == "budget"
    for q, hits in enumerate(results):
        assert len({hit.position for hit in hits}) == 5
        assert [h.score for h in hits] == pytest.approx(
            exact[q, [h.position for h in hits]], abs=1e-4
        )
        assert [h.score for h in hits] == sorted((h.score for h in hits), reverse=True)
        assert all(h.text == index.items.texts[h.position] for h in hits)


@every_method
def test_the_same_seed_gives_the_same_answer_after_a_round_trip(spec, setting, tmp_path):
    index, scorer, _ = setting
    retriever = ck.Searcher(index, scorer, spec, seed=3).search(QUERIES, k=5, budget=BUDGET)
    ck.ItemIndex.load(index.folder).save(tmp_path / "copy.index")
    copy = ck.ItemIndex.load(tmp_path / "copy.index")
    again = ck.Searcher(copy, scorer, spec).search(QUERIES, k=5, budget=BUDGET, seed=3)
    assert [[h.id for h in hits] for hits in retriever] == [[h.id for h in hits] for hits in again]
