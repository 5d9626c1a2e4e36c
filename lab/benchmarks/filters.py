"""What the first filter on a field costs after an index was opened, with columns and without.

    python lab/benchmarks/filters.py FOLDER --n 1000000

Makes an index of n items without vectors that matter (2 dimensions) in FOLDER, or takes the one
there. Each filter runs in a process of its own, three times; the median is told. Without columns
is what an earlier version did: all records are read.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import crossknn as ck
from crossknn.index.filters import Fields, parse_filter

FILTERS = {
    "text": {"lang": "en"},
    "year": {"year": {"gte": 2015}},
    "two tags": {"tags": ["t3", "t9"]},
    "price, all different": {"price": {"lt": 10.0}},
}


def records(n: int) -> list[dict[str, object]]:
    """Items with fields of four kinds, by a seed."""
    rng = np.random.default_rng(0)
    langs, years = rng.integers(8, size=n).tolist(), rng.integers(1990, 2026, size=n).tolist()
    tags, prices = rng.integers(20, size=(n, 2)).tolist(), (100 * rng.random(n)).tolist()
    names = ["en", "de", "fr", "es", "it", "pl", "nl", "pt"]
    return [
        {
            "id": f"i{row}",
            "text": f"item {row}",
            "lang": names[langs[row]],
            "year": years[row],
            "tags": [f"t{tag}" for tag in tags[row]],
            "price": prices[row],
        }
        for row in range(n)
    ]


def seconds(folder: Path, name: str, columns: bool) -> dict[str, float]:
    """Of opening, the first filter, and the same again."""
    times = [time.perf_counter()]
    index = ck.ItemIndex.load(folder)
    times.append(time.perf_counter())
    if columns:
        index.allowed(FILTERS[name])
    else:
        extra = index.items.extra
        extra.columns = {}
        index._fields = Fields(extra)
        index._fields.mask(parse_filter(FILTERS[name]))
    times.append(time.perf_counter())
    index.allowed(FILTERS[name])
    times.append(time.perf_counter())
    return dict(zip(("open", "first", "again"), np.diff(times).tolist(), strict=True))


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--n", type=int, default=100_000)
    parser.add_argument("--one", choices=FILTERS)
    parser.add_argument("--records", action="store_true")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(seconds(given.folder, given.one, not given.records)))
        return
    if not given.folder.exists():
        vectors = np.random.default_rng(0).random((given.n, 2), np.float32)
        index = ck.ItemIndex.build(records(given.n), vectors=vectors, bm25=False)
        start = time.perf_counter()
        index.save(given.folder)
        print(f"saved in {time.perf_counter() - start:.1f} s")
    for name in FILTERS:
        for how in ([], ["--records"]):
            command = [sys.executable, __file__, str(given.folder), "--one", name, *how]
            runs = [json.loads(subprocess.check_output(command)) for _ in range(3)]
            told = {
                what: round(float(np.median([run[what] for run in runs])), 3) for what in runs[0]
            }
            print(f"{name}{' without columns' if how else ''}: {told}", flush=True)


if __name__ == "__main__":
    main()
