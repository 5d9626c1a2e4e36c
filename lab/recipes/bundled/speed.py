"""Compare how many pairs small cross-encoders score in a second, in turn on the same pairs.

    python speed.py --domain DIR NAME=FOLDER [NAME=FOLDER ...]

FOLDER is an exported model; ratios are to the first. Prints medians over the rounds.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

import crossknn as ck
from crossknn.types import Pairs

QUERIES, ITEMS, ROUNDS = 20, 20, 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--domain", type=Path, required=True)
    parser.add_argument("models", nargs="+")
    given = parser.parse_args()
    items = ck.read_items(given.domain)
    queries = ck.read_queries(given.domain).take(range(QUERIES))
    drawn = np.random.default_rng(0).integers(len(items.ids), size=(len(queries), ITEMS))
    pairs = Pairs(np.repeat(np.arange(len(queries)), ITEMS), drawn.ravel())
    models = dict(each.partition("=")[::2] for each in given.models)
    opened = {name: ck.CrossEncoder(folder) for name, folder in models.items()}
    rates: dict[str, list[float]] = {name: [] for name in models}
    for turn in range(ROUNDS + 1):
        for name, scorer in opened.items():
            began = time.perf_counter()
            for _ in scorer.score(pairs, queries.texts, items.texts):
                pass
            if turn:  # the first warms up
                rates[name].append(len(pairs) / (time.perf_counter() - began))
    base = rates[next(iter(rates))]
    for name, own in rates.items():
        ratio = np.median(np.divide(own, base))
        print(f"{given.domain.name} {name}: {np.median(own):.0f} pairs a second, ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
