"""Judgements: a query that is a document (ArguAna, Quora) is left out of its answers, as BEIR does;
and `fit fusion` never leaves weights that order worse than the retrievers alone."""

import json
import re

import numpy as np
import pytest

import crossknn as ck
from crossknn.cli.app import run
from crossknn.data.queries import own_items
from crossknn.evaluation.verdict import RERANK
from crossknn.fitting.learning import searched_scores
from crossknn.types import Pairs

TEXTS = {f"d{i}": f"argument {i % 10} about {'peace' if i < 10 else 'war'} {i}" for i in range(20)}
QUERIES = ck.QuerySet(tuple(f"d{i}" for i in range(10)), tuple(TEXTS[f"d{i}"] for i in range(10)))
QRELS = {f"d{i}": {f"d{i + 10}": 1} for i in range(10)}  # the counterargument


def overlap(pairs):
    """The query's own document is scored best, then the counterargument."""
    return [
        len({*q.split()} & {*t.split()}) + ((q.split()[1] == t.split()[1]) * 3) for q, t in pairs
    ]


SCORER = ck.CallableScorer(overlap, "overlap")


@pytest.fixture
def index():
    return ck.ItemIndex.build([{"id": i, "text": t} for i, t in TEXTS.items()], lsa=4)


@pytest.fixture
def folder(index, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    index.save("i")
    both = zip(QUERIES.ids, QUERIES.texts, strict=True)
    (tmp_path / "q.jsonl").write_text("\n".join(json.dumps({"id": i, "text": t}) for i, t in both))
    lines = (f"{q}\t{i}\t1\n" for q, row in QRELS.items() for i in row)
    (tmp_path / "qrels.tsv").write_text("".join(lines))
    return tmp_path


@pytest.mark.parametrize(("keep_own", "expected"), [(False, 1.0), (True, 0.5)])
def test_measures_and_the_verdict(index, keep_own, expected):
    """The right answer follows the query itself: MRR is 1 by BEIR's rule, and .5 with it."""
    how = {"qrels": QRELS, "measures": ["RR@10"], "keep_own": keep_own}
    [found] = ck.compare(index, QUERIES, SCORER, ck.parse_methods("rerank"), [20], **how)
    assert found.task["RR@10"].mean() == expected
    scores = np.array([overlap([(q, t) for t in TEXTS.values()]) for q in QUERIES.texts])
    [exact] = ck.compare(index, QUERIES, scores, {}, [20], [5], **how | {"measures": ["RR@1"]})
    assert exact.task["RR@1"].mean() == expected // 1
    options = {"budgets": [10], "measure": "RR@10", "keep_own": keep_own}
    diagnosis = ck.diagnose(index, SCORER, QUERIES, QRELS, **options)
    assert diagnosis.values[10][RERANK].mean() == expected


def test_run_files(index, folder, capsys):
    results = ck.Searcher(index, SCORER, "rerank").search(QUERIES, k=3, budget=20)
    assert all(hits[0].id == query for query, hits in zip(QUERIES.ids, results, strict=True))
    assert all(query not in row for query, row in results.to_run().items())
    assert all(query in row for query, row in results.to_run(keep_own=True).items())
    search = ["search", "i", "--queries", "q.jsonl", "-k", "3", "--json", "--run", "out.trec"]
    assert run(search) == 0
    answers = json.loads(capsys.readouterr().out)["results"]
    assert [len(answer["hits"]) for answer in answers] == [3] * 10
    rows = [line.split() for line in (folder / "out.trec").read_text().splitlines()]
    assert len(rows) == 30
    assert all(query != item for query, _, item, *_ in rows)
    assert run([*search, "--keep-own"]) == 0
    rows = [line.split() for line in (folder / "out.trec").read_text().splitlines()]
    assert any(query == item for query, _, item, *_ in rows)


def test_compare_says_how_many(folder, capsys):
    line = "compare i --queries q.jsonl --qrels qrels.tsv --budgets 5 --methods rerank --no-exact"
    said = "10 of 10 queries have the id of an item, which is left out of their answers"
    for options, count in (([], 1), (["--keep-own"], 0)):
        assert run([*line.split(), *options]) == 0
        assert " ".join(capsys.readouterr().err.split()).count(said) == count


def test_fits_to_judgements(index):
    assert ck.fit_fusion(index, SCORER, QUERIES, QRELS)["ndcg"]["cross-encoder"] == 1.0
    kept = ck.fit_fusion(index, SCORER, QUERIES, QRELS, keep_own=True)
    assert kept["ndcg"]["cross-encoder"] < 0.7
    how = {"method": "rerank", "budget": 20, "fuse": None}
    assert ck.fit_calibration(index, SCORER, QUERIES, QRELS, **how)["items"] == 100
    with_it = ck.fit_calibration(index, SCORER, QUERIES, QRELS, keep_own=True, **how)
    assert with_it["items"] == 100


def test_learned_rows(index):
    every = Pairs(np.repeat(np.arange(10), 12), np.tile(np.arange(12), 10))
    values = np.arange(120, dtype=np.float32)
    index.scores.put("overlap", QUERIES.texts, list(TEXTS.values()), every, values)
    known = searched_scores(index, "overlap")
    assert len(known) == 110
    pairs = zip(known.query, known.item, strict=True)
    assert all(known.queries[q] != index.items.texts[i] for q, i in pairs)


def test_ids_that_agree_by_chance(index):
    """Queries without ids are numbered, as items are: nothing is left out of theirs."""
    numbered = ck.ItemIndex.build([*TEXTS.values()], lsa=2)
    results = ck.Searcher(numbered, SCORER, "rerank").search([*TEXTS.values()][:3], k=3, budget=20)
    assert all(query in row for query, row in results.to_run().items())
    named = ck.QuerySet(("d1", "d2"), ("a", "b"))
    assert own_items(named, index.items.ids).tolist() == [1, 2]
    assert own_items(named, index.items.ids, {"d1": {"d1": 1}}).tolist() == [-1, 2]  # it is right


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
    assert re.search(
        "fusion: .*weights lsa .*ndcg retrievers .*note the retrievers order better", said
    )
    assert run(["index", "info", str(tmp_path / "i"), "--json"]) == 0
    kept = json.loads(capsys.readouterr().out)["cross_encoders"]["callable:noise"]
    assert "note" in kept["fusion"]
