"""How late a search is at its deadline, on this machine: bundled models, and endpoints that fail.

    python lab/benchmarks/deadlines.py          # writes benchmarks/results/deadlines.json

Run it where nothing else runs. Bundled models: searches of documented Python names by the default
method. Endpoints: the servers of `tests/faults`, which fail at the first request or in the third
round.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
import time
from contextlib import suppress
from datetime import date
from pathlib import Path

import numpy as np

import crossknn as ck
from crossknn.errors import CrossknnError

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "faults"))
from faulty_server import FAULTS, Faulty  # noqa: E402

QUIET = 10
"""Milliseconds of the host's that a search may lose and still say something of the product."""

DEADLINES = (50, 200, 1000)
STALLS = ("reads and never answers", "drips the body", "answers 429 and asks for an hour")


def texts(count: int) -> list[str]:
    words = ("zip", "file", "sort", "list", "lock", "thread", "parse", "date", "socket", "read")
    rng = np.random.default_rng(0)
    return [f"item {i}: " + " ".join(rng.choice(words, 24)) for i in range(count)]


def stolen() -> float:
    """Milliseconds for which the machine's host has taken its processors away so far."""
    try:
        return 10.0 * int(Path("/proc/stat").read_text().split()[8])
    except (OSError, IndexError):
        return 0.0


def overshoot(search, query: str, deadline: float) -> tuple[float, float]:
    """Milliseconds after the deadline (below 0 for a search that ended before), and stolen ones."""
    taken, began = stolen(), time.perf_counter()
    with suppress(CrossknnError):
        search.search(query, k=10, budget=ck.Budget(per_query=1000, deadline=deadline / 1000))
    late = 1000 * (time.perf_counter() - began) - deadline
    return late, stolen() - taken


def summary(found: list[tuple[float, float]]) -> dict[str, float]:
    """Of the searches during which at most `QUIET` ms were stolen, and of all."""
    late = np.maximum([late for late, _ in found], 0)
    quiet = late[[taken <= QUIET for _, taken in found]]
    kept = quiet if len(quiet) else late
    return {
        "median": round(float(np.median(kept)), 1),
        "p99": round(float(np.quantile(kept, 0.99)), 1),
        "worst": round(float(kept.max()), 1),
        "searches": len(quiet),
        "of": len(late),
        "p99 of all": round(float(np.quantile(late, 0.99)), 1),
    }


def bundled(repeats: int) -> dict[str, dict[str, float]]:
    index = ck.ItemIndex.build(texts(5000), encoder=ck.DualEncoder())
    search = ck.Searcher(index, ck.CrossEncoder())
    search.search("lock a file", k=10, budget=50)
    found = {}
    for deadline in DEADLINES:
        found[str(deadline)] = summary(
            [overshoot(search, f"sort a list number {i}", deadline) for i in range(repeats)]
        )
        print("bundled", deadline, found[str(deadline)], flush=True)
    return found


def endpoints(repeats: int) -> tuple[dict, dict]:
    index = ck.ItemIndex.build(texts(500), lsa=8)
    method = "axn(retriever=bm25, rounds=5, normalize=none)"
    stalls, faults = {}, {}

    def late(name: str, start: int, deadline: float) -> tuple[float, float]:
        server = Faulty(FAULTS[name], start)
        search = ck.Searcher(index, ck.HttpScorer(server.url, model="m", timeout=60), method)
        try:
            return overshoot(search, "lock a file", deadline)
        finally:
            server.close()

    for deadline in DEADLINES:
        found = [
            late(name, start, deadline)
            for _ in range(repeats)
            for name in STALLS
            for start in (0, 2)
        ]
        stalls[str(deadline)] = summary(found)
        print("endpoints", deadline, stalls[str(deadline)], flush=True)
    for name in FAULTS:
        faults[name] = summary([late(name, start, 200) for _ in range(4) for start in (0, 2)])
    print("every fault", max(each["worst"] for each in faults.values()))
    return stalls, faults


def cancelled(repeats: int) -> dict[str, float]:
    """Milliseconds until the threads of 40 cancelled stalled searches are gone."""
    index = ck.ItemIndex.build(texts(500), lsa=8)
    method = "axn(retriever=bm25, rounds=5, normalize=none)"
    server = Faulty(FAULTS["reads and never answers"])
    search = ck.Searcher(index, ck.HttpScorer(server.url, model="m", timeout=60), method)

    async def once() -> tuple[float, float]:
        tasks = [
            asyncio.create_task(search.asearch("lock a file", k=5, budget=25)) for _ in range(40)
        ]
        await asyncio.sleep(0.5)
        taken, began = stolen(), time.perf_counter()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        while any(t.name.startswith("crossknn-scorer") for t in threading.enumerate()):
            await asyncio.sleep(0.001)
        return 1000 * (time.perf_counter() - began), stolen() - taken

    found = summary([asyncio.run(once()) for _ in range(repeats)])
    server.close()
    print("cancelled", found)
    return found


def main() -> None:
    logging.getLogger("crossknn").setLevel(logging.ERROR)
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    models = bundled(repeats)
    stalls, faults = endpoints(max(1, repeats // 6))
    made = {
        "date": date.today().isoformat(),
        "bundled": models,
        "stalling endpoints": stalls,
        "40 cancelled": cancelled(max(2, repeats // 10)),
        "faults": faults,
    }
    path = ROOT / "benchmarks" / "results" / "deadlines.json"
    path.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
