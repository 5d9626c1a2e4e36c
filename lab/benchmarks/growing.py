"""What it costs to add items to a large index, and what searches lose until it is fitted again.

    python lab/benchmarks/growing.py cost --items 1000000
    python lab/benchmarks/growing.py recall benchmarks/data/python-docs.npz

`cost` builds an index of random texts and vectors (384 dimensions) with BM25, a prior of rank 100
and 50 anchors, in a temporary folder, and times changes. `recall` takes a tenth of a matrix' items
as added since the anchors were scored: kriging with what their vectors say of them, with the mean in
its place, with all anchors' scores, and without anchors; 100 test queries, 100 calls, k = 10.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import crossknn as ck
from crossknn.index.updates import regression
from crossknn_lab.replay import replay
from crossknn_lab.stored import StoredMatrix

D, ANCHORS, RANK = 384, 50, 100


def records(start: int, stop: int) -> list[dict[str, str]]:
    """Items of 12 words each, drawn of 30,000 by Zipf's law."""
    chances = 1 / np.arange(1, 30_001)
    rng = np.random.default_rng(start)
    words = rng.choice(30_000, (stop - start, 12), p=chances / chances.sum())
    texts = [" ".join(f"w{word}" for word in row) for row in words.tolist()]
    return [{"id": f"d{start + i}", "text": text} for i, text in enumerate(texts)]


def cost(n: int) -> dict[str, float]:
    """Seconds of each change, one after the other."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((n, D), dtype=np.float32)
    index = ck.ItemIndex.build(records(0, n), vectors=vectors)
    index.put_artifact("kriging", {}, {"factor": vectors[:, :RANK], "mean": vectors[:, 0]})
    anchors = {"scores": vectors[:, :ANCHORS].T, "queries": [f"q{i}" for i in range(ANCHORS)]}
    index.put_artifact("anchors", {"fingerprint": None, "scales": {"center": [0, 1]}}, anchors)
    new = rng.standard_normal((1000, D), dtype=np.float32)
    seconds = dict[str, float]()

    def timed(what: str, act: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        made = act()
        seconds[what] = round(time.perf_counter() - began, 2)
        return made

    with tempfile.TemporaryDirectory() as place:
        index.save(Path(place) / "index")
        index = timed("load", lambda: ck.ItemIndex.load(Path(place) / "index"))
        timed("add 1,000", lambda: index.add(records(n, n + 1000), vectors=new))
        timed("add 1", lambda: index.add(records(n + 1000, n + 1001), vectors=new[:1]))
        timed("delete 1,000", lambda: index.delete([f"d{7 * i}" for i in range(1000)]))
        timed("compact", index.compact)
    return seconds


def recall(path: Path) -> dict[str, float]:
    """Recall of kriging by what is known of a tenth of the items."""
    arrays = dict(np.load(path))
    q, n = int(arrays["n_anchors"]), arrays["scores"].shape[1]
    order = np.random.default_rng(1).permutation(n)
    new, old = np.sort(order[: n // 10]), np.sort(order[n // 10 :])
    vectors, known = arrays["item_vectors"].astype(np.float32), arrays["scores"][:q][:, old]
    said = regression(vectors[old], vectors[new], len(new), len(old))(known.T).T
    found = dict[str, float]()
    for name, values in (
        ("all scores", arrays["scores"][:q][:, new]),
        ("by their vectors", said),
        ("the mean", known.mean(axis=1, keepdims=True)),
        ("no anchors", 0),
    ):
        scores = arrays["scores"].copy()
        scores[:q, new] = values
        spec = "kriging(use_anchors=false)" if name == "no anchors" else "kriging"
        with tempfile.TemporaryDirectory() as place:
            changed = Path(place) / "matrix.npz"
            np.savez(changed, **{**arrays, "scores": scores})
            rows = replay(
                StoredMatrix.load(changed), ck.parse_methods(spec), [100], [10], queries=100
            )
            found[name] = round(next(iter(rows)).recall, 3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["cost", "recall"])
    parser.add_argument("matrix", type=Path, nargs="?")
    parser.add_argument("--items", type=int, default=1_000_000)
    options = parser.parse_args()
    print(json.dumps(cost(options.items) if options.what == "cost" else recall(options.matrix)))


if __name__ == "__main__":
    main()
