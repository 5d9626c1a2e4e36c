"""`fit fusion` never leaves weights that order worse than the retrievers alone."""

import json

import numpy as np
import pytest

import crossknn as ck
from crossknn.cli.app import run

WORDS = [f"word{w}" for w in range(200)]


@pytest.fixture
def world():
    """60 items, and 20 queries of six words, three of them of the one item that is relevant."""
    rng = np.random.default_rng(3)
    texts = [" ".join(rng.choice(WORDS, n)) for n in range(15, 75)]
    index = ck.ItemIndex.build(texts, lsa=8)
    both = ((rng.choice(text.split(), 3), rng.choice(WORDS, 3)) for text in texts[40:])
    asked = [" ".join(np.concatenate(words)) for words in both]
    queries = ck.QuerySet(tuple(f"q{q}" for q in range(20)), tuple(asked))
    qrels = {f"q{q}": {index.items.ids[40 + q]: 1} for q in range(20)}
    return index, queries, qrels


NOISE = ck.CallableScorer(
    lambda pairs: [(sum(map(ord, q + t)) * 37 % 101) / 10 for q, t in pairs], "noise"
)


def test_a_cross_encoder_that_knows_nothing(world, tmp_path, capsys):
    index, queries, qrels = world
    index.save(tmp_path / "i")
    fit = ck.fit_fusion(index, NOISE, queries, qrels)
    assert fit["ndcg"]["cross-encoder"] < fit["ndcg"]["both"] < fit["ndcg"]["retrievers"]
    assert "the retrievers order better without this cross-encoder" in fit["note"]
    fusion = ck.Searcher(index, NOISE).fusion

    def ndcg(spec, fusion=None):
        given, how = (index, queries, NOISE, ck.parse_methods(spec), [50]), {"qrels": qrels}
        [found] = ck.compare(*given, measures=["nDCG@10"], fusion=fusion, **how)
        return float(np.nanmean(found.task["nDCG@10"]))

    alone = ndcg("retrieve(retriever=fused)")
    for spec in ("rerank(retriever=fused)", "auto"):
        assert ndcg(spec, fusion) >= alone - 1e-9
    assert alone >= fit["ndcg"]["retrievers"] - 1e-9
    assert run(["index", "info", str(tmp_path / "i")]) == 0
    said = capsys.readouterr().out
    assert "from the cross-encoder callable:noise:" in said
    assert "fusion: lsa " in said
    assert "in which the retrievers decide the order; nDCG@10 retrievers " in said
    assert run(["index", "info", str(tmp_path / "i"), "--json"]) == 0
    kept = json.loads(capsys.readouterr().out)["cross_encoders"]["callable:noise"]
    assert "note" in kept["fusion"]


def test_a_cross_encoder_that_helps(world):
    index, queries, qrels = world
    right = {(q, index.items.texts[40 + p]) for p, q in enumerate(queries.texts)}
    scorer = ck.CallableScorer(lambda pairs: [4.0 * (p in right) for p in pairs], "right")
    fit = ck.fit_fusion(index, scorer, queries, qrels)
    assert "note" not in fit
    assert max(fit["weights"].values()) < 10
    assert fit["ndcg"]["both"] >= fit["ndcg"]["retrievers"]
