"""What `crossknn estimate` says of n items, beside what they cost.

    python lab/benchmarks/estimates.py FOLDER 10000 100000 1000000     # n, with scale.py's indexes

FOLDER holds the indexes that lab/benchmarks/scale.py built, in half precision; those of up to
100,000 items are made here of its smallest one's first texts and vectors, in single precision. One
thread. Rows of other numbers of items are kept.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import crossknn as ck
from crossknn.evaluation.costs import estimate, seconds
from crossknn.index.nearest import LARGE, write_lists
from crossknn.methods.kriging import NAME
from crossknn.search.loop import simulate
from crossknn.types import Queries

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "estimates.json"
SMALLEST, BUDGET = 100_000, 100
INSTANT = SimpleNamespace(
    dimensions=384,
    encode_items=lambda texts: np.zeros((len(texts), 384), np.float32),
    encode_queries=lambda texts: np.zeros((len(texts), 384), np.float32),
)
"""An encoder: encoding is not compared here, for it is measured as it is used."""


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def size(folder: Path) -> int:
    """Bytes of the files in it, but for approximate indexes."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return sum(path.stat().st_size for path in files if "nearest-" not in str(path))


def cut(source: Path, folder: Path, n: int) -> float:
    """Build an index of the first n items of another one; the seconds that this took."""
    known = ck.ItemIndex.load(source)
    texts = list(known.items.texts[:n])
    vectors = {"vectors": np.asarray(known.vectors["vectors"][:n], np.float32)}
    began = time.perf_counter()
    index = ck.ItemIndex.build(texts, vectors=vectors, lsa=0)
    took = time.perf_counter() - began
    index.save(folder)
    return took


def measured(folder: Path, n: int) -> dict[str, Any]:
    """Seconds and bytes of what `estimate` estimates."""
    found: dict[str, Any] = {}
    given = np.zeros((1, 384), np.float32)
    index = ck.ItemIndex.load(
        folder, exact=n < LARGE, query_vectors={"vectors": lambda texts: given}
    )
    prior = index.artifacts.get(NAME)
    index._parts.held.pop(f"artifacts/{NAME}", None)  # which no estimate counts
    store, ask = index.store("vectors"), Queries([index.items.texts[n // 2]])
    rows = index.vectors["vectors"]
    given[:] = rows[:1]
    fitted = sum(array.nbytes for array in prior.arrays.values()) if prior else 0
    found["on disk, MB"] = (size(folder) - fitted) / 1e6
    if n >= LARGE:
        with TemporaryDirectory() as made:
            found["approximate index, s"] = timed(lambda: write_lists(Path(made), rows))
            files = sum(path.stat().st_size for path in Path(made).iterdir())
            found["approximate index, MB"] = files / 1e6
    found["nearest vectors, ms"] = 1e3 * seconds(lambda: store.top(given, 400))
    scores = np.random.default_rng(0).standard_normal((1, n), np.float32)
    method = ck.Kriging()
    search = seconds(lambda: simulate(method.plan(index, BUDGET, 0), ask, scores), 3)
    return found | {"a search, ms": 1e3 * search}


def estimated(texts: list[str], n: int) -> dict[str, Any]:
    """The same of the estimate, which has seen 10,000 texts."""
    costs = estimate(n, texts, INSTANT, 1.0, budget=BUDGET)
    kept, words = costs["encoding"].disk / 2, costs["texts and words"]  # vectors in half precision
    found = {"on disk, MB": (kept * (1 + (n < LARGE)) + words.disk) / 1e6}
    if n < LARGE:
        found["texts and words, s"] = words.seconds
    if (lists := costs.get("approximate index")) is not None:
        found |= {"approximate index, s": lists.seconds, "approximate index, MB": lists.disk / 1e6}
    times = 20 if n > 50_000 else 1
    parts = ("words", "nearest vectors", "rounds")
    near = costs["query: nearest vectors"].seconds / times
    whole = sum(costs[f"query: {part}"].seconds for part in parts)
    return found | {"nearest vectors, ms": 1e3 * near, "a search, ms": 1e3 * whole}


def main() -> None:
    source, *counts = sys.argv[1:]
    rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    texts = list(ck.ItemIndex.load(Path(source) / str(SMALLEST)).items.texts[:10_000])
    for n in map(int, counts):
        with threadpool_limits(1), TemporaryDirectory() as made:
            said, folder = estimated(texts, n), Path(source) / str(n)
            if n < LARGE:
                found = {"texts and words, s": cut(Path(source) / str(SMALLEST), Path(made), n)}
                found |= measured(Path(made), n)
            else:
                found = measured(folder, n)
            row = {"n": n, "estimated": said, "measured": found}
        print(json.dumps(row), flush=True)
        rows = [*(r for r in rows if r["n"] != n), row]
        RESULTS.write_text(json.dumps(sorted(rows, key=lambda r: r["n"]), indent=1) + "\n")


if __name__ == "__main__":
    main()
