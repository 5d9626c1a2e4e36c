"""Every way in which an endpoint can fail, at three moments of a search, on a real server."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from errors_table import check_table
from faulty_server import EARLY, FAULTS, Faulty, score, slow

import crossknn as ck
from crossknn.errors import CrossknnError, ScorerError

MEASURED = Path(__file__).parents[2] / "benchmarks" / "results" / "deadlines.json"

METHOD = "axn(retriever=bm25, rounds=5, normalize=none)"
BUDGET, ROUND = 25, 5
MOMENTS = {"first request": (0, 0), "third round": (2, 0), "during retries": (2, 1)}
"""Good answers before the fault, and answers 503 between."""

TEXTS = [f"text number {i} about topic {i % 7} and word{i % 5}" for i in range(60)]


@pytest.fixture(scope="module")
def index():
    return ck.ItemIndex.build(TEXTS, lsa=8)


def search(index, url, *, queries="topic 3", deadline=None, timeout=0.4, **options):
    scorer = ck.HttpScorer(url, model="m", timeout=timeout, retries=1, **options)
    return ck.Searcher(index, scorer, METHOD).search(
        queries, k=5, budget=ck.Budget(per_query=BUDGET, deadline=deadline)
    )


STALLING = {name for name in FAULTS if name.startswith(("accepts", "reads", "stops", "drips"))} | {
    "gives a length that is too large"
}


def late(name):
    """Median and worst time after a deadline, as `benchmarks/deadlines.py` has measured it."""
    found = json.loads(MEASURED.read_text())["faults"].get(name) if MEASURED.exists() else None
    return f"{found['median']:.0f}, {found['worst']:.0f}" if found else ""


def outcome(index, name, moment):
    """What a search without a deadline does: (hits kept, why it stopped, its sentence, seconds)."""
    good, busy = MOMENTS[moment]
    server = Faulty(FAULTS[name], good, busy)
    began = time.perf_counter()
    stalls = name in STALLING
    timeout = 2 if stalls else 20  # nothing but a stall may be ended by the time
    try:
        results = search(index, server.url, timeout=timeout)
        kept = [(hit.text, hit.score) for hit in results[0]]
        said = (results.n_scored, kept, results.stopped_by, results.error)
    except CrossknnError as error:
        said = (0, [], "raised", str(error))
    finally:
        server.close()
    return *said, time.perf_counter() - began, server.url


@pytest.mark.slow
def test_no_fault_hangs_or_loses_what_was_found(index, caplog):
    cases = [(name, moment) for name in FAULTS for moment in MOMENTS]
    assert len(FAULTS) >= 40
    with ThreadPoolExecutor(6) as pool:
        found = dict(zip(cases, pool.map(lambda case: outcome(index, *case), cases), strict=True))
    rows = []
    for name in FAULTS:
        cells, sentences = [], []
        for moment in MOMENTS:
            n_scored, hits, stopped_by, said, seconds, url = found[name, moment]
            assert seconds < 40, (name, moment, seconds)
            if moment == "first request":
                assert (n_scored, hits, stopped_by) == (0, [], "raised"), (name, stopped_by, said)
                cells.append("raises")
            else:
                assert stopped_by == "scorer", (name, moment, stopped_by, said)
                # Two rounds were scored well: their best items are the answer.
                assert n_scored == 2 * ROUND, (name, moment, n_scored)
                assert len(hits) == 5
                assert all(
                    value == pytest.approx(score("topic 3", text), abs=1e-5) for text, value in hits
                )
                cells.append("keeps all")
            assert said
            assert "\n" not in said
            assert "Traceback" not in said
            if FAULTS[name] in EARLY:  # what the system says depends on the moment
                said = re.sub("reached: .*", "reached: ...", said)
            sentences.append(said.replace(url, "URL").replace("|", "\\|"))
        rows.append(f"| {name} | {' | '.join(cells)} | {late(name)} | `{sentences[1]}` |")
    check_table(
        "<!-- table made by tests/faults/test_faults.py -->",
        "<!-- end of faults -->",
        rows,
        head=["the endpoint", *MOMENTS, "late, ms", "sentence in the third round"],
    )


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["first request", "third round"])
def test_a_deadline_binds_every_fault(index, moment):
    """The bound is loose: other programs run here. `benchmarks/deadlines.py` measures p99."""
    names, late = sorted(FAULTS), {}
    for name in names:
        server = Faulty(FAULTS[name], MOMENTS[moment][0])
        began = time.perf_counter()
        try:
            results = search(index, server.url, deadline=0.2, timeout=30)
            assert moment == "first request" or results.n_scored >= ROUND
        except CrossknnError:
            assert moment == "first request"
        late[name] = time.perf_counter() - began - 0.2
        server.close()
    assert np.median(list(late.values())) < 0.5
    assert max(late.values()) < 5, max(late, key=late.get)


def test_a_refused_connection_is_one_sentence(index):
    with pytest.raises(ScorerError, match=r"cannot be reached: .*refused"):
        search(index, "http://127.0.0.1:9/rerank")


def test_queries_fail_one_by_one(index):
    def only_bad(server, connection, body):
        if "bad" in body["query"]:
            return FAULTS["gives NaN"](server, connection, body)
        return slow(0)(server, connection, body)

    server = Faulty(only_bad)
    results = search(index, server.url, queries=["topic 1", "a bad topic 2", "topic 3"])
    server.close()
    assert [len(hits) for hits in results] == [5, 0, 5]
    assert results.errors[0] is results.errors[2] is None
    assert "nan as the score of query 1" in results.errors[1]
    assert (results.stopped_by, results.error) == ("scorer", results.errors[1])
    assert results.n_scored == 2 * BUDGET


def test_a_query_whose_pairs_are_all_refused_ends(index):
    def refuses(server, connection, body):
        if "bad" in body["query"]:
            return FAULTS["answers 400 Bad Request"](server, connection, body)
        return slow(0)(server, connection, body)

    server = Faulty(refuses)
    results = search(index, server.url, queries=["topic 1", "a bad topic 2"], shape="cohere")
    count = server.count
    server.close()
    assert [len(hits) for hits in results] == [5, 0]
    assert "of this query could be scored" in results.errors[1]
    assert count < 120


def test_an_endpoint_that_is_down_is_not_asked_for_every_query(index):
    server = Faulty(FAULTS["answers 502 Bad Gateway"], start=1)
    results = search(index, server.url, queries=[f"topic {i}" for i in range(30)])
    count = server.count
    server.close()
    assert results.stopped_by == "scorer"
    assert sum(error is not None for error in results.errors) == 30
    assert count < 40


def test_a_function_that_raises_late_keeps_its_hits(index):
    asked = []

    def fails_later(pairs):
        asked.append(len(pairs))
        if len(asked) > 2:
            return [0.0]  # too few: the function is broken
        return [score(*pair) for pair in pairs]

    results = ck.Searcher(index, fails_later, METHOD).search("topic 3", k=5, budget=BUDGET)
    assert results.stopped_by == "scorer"
    assert len(results[0]) == 5
    assert "was asked for the scores of 5 pairs and gave 1" in results.error


def test_a_scorer_of_ones_own_that_raises_anything_keeps_its_hits(index):
    class Own:
        fingerprint, rounds = None, 0

        def score(self, pairs, queries, items, *, time_left=None, cancel=None):
            self.rounds += 1
            if self.rounds == 3:
                raise KeyError("gone")
            yield np.arange(len(pairs)), pairs.item.astype(np.float32)

    results = ck.Searcher(index, Own(), METHOD).search("topic 3", k=5, budget=BUDGET)
    assert (results.stopped_by, results.n_scored) == ("scorer", 10)
    assert results.error == "the scorer failed: KeyError: 'gone'"


def test_cancelling_frees_the_thread_and_stalled_searches_slow_nothing(index):
    import asyncio

    server, well = Faulty(FAULTS["reads and never answers"]), Faulty(slow(0), start=10**6)
    stalled = ck.Searcher(index, ck.HttpScorer(server.url, model="m", timeout=60), METHOD)
    good = ck.Searcher(index, ck.HttpScorer(well.url, model="m"), METHOD)

    async def run():
        await good.asearch("topic 1", k=5, budget=BUDGET)  # warm
        began = time.perf_counter()
        await good.asearch("topic 1", k=5, budget=BUDGET)
        before = time.perf_counter() - began
        tasks = [
            asyncio.create_task(stalled.asearch("topic 3", k=5, budget=BUDGET)) for _ in range(40)
        ]
        await asyncio.sleep(0.3)
        names = [t.name for t in threading.enumerate()]
        assert sum(name.startswith("crossknn-scorer") for name in names) >= 4
        cancelled = time.perf_counter()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        while any(t.name.startswith("crossknn-scorer") for t in threading.enumerate()):
            assert time.perf_counter() - cancelled < 10
            await asyncio.sleep(0.005)
        freed = time.perf_counter() - cancelled
        began = time.perf_counter()
        results = await good.asearch("topic 1", k=5, budget=BUDGET)
        after = time.perf_counter() - began
        assert results.n_scored == BUDGET
        return before, freed, after

    before, freed, after = asyncio.run(run())
    server.close()
    well.close()
    assert freed < 5  # 0.1 on an idle machine: benchmarks/deadlines.py
    assert after < before + 5


def test_the_command_line_prints_what_was_found_and_exits_with_3(index, tmp_path):
    index.save(tmp_path / "docs.index")
    server = Faulty(FAULTS["answers HTML"], start=2)
    command = [sys.executable, "-m", "crossknn", "search", str(tmp_path / "docs.index"), "topic 3"]
    options = ["-k", "3", "--budget", "25", "--method", METHOD, "--model", "m"]
    options += ["--scorer", server.url]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    server.close()
    assert done.returncode == 3
    assert done.stdout.count("text number") == 3
    assert done.stderr.startswith(f"crossknn: {server.url} gave an answer that is not JSON")
    assert "Traceback" not in done.stderr
