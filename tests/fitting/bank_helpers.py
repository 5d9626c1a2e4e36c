"""A cross-encoder whose scores show in which calls they were asked, and what it was asked."""

import os
import signal
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path

import numpy as np

from crossknn.fitting.bank import ScoreBank
from crossknn.fitting.collect import collect
from crossknn.types import Pairs

HERE = Path(__file__).parent


def texts(count, word):
    return [f"{word} {i} " + "long " * (i * 7 % 13) for i in range(count)]


QUERIES, ITEMS = texts(30, "query"), texts(200, "item")


def random_pairs(count, seed=0, n_queries=30, n=200):
    """`count` different pairs, in random order."""
    drawn = np.random.default_rng(seed).choice(n_queries * n, size=count, replace=False)
    return Pairs(*(part.astype(np.int64) for part in np.divmod(drawn, n)))


def score_of(query, item):
    return zlib.crc32(f"{query}|{item}".encode()) / 2**31 - 1


class TellingScorer:
    """Scores by a checksum of the two texts and, in the last digits, of the whole call.

    So equal scores were asked in equal calls. `log` is a file for what was asked; it may leave
    pairs out, take its time, or do something in its call number `at`.
    """

    def __init__(self, fingerprint="telling", *, skip=(), seconds=0.0, log=None, at=None, do=None):
        self.fingerprint, self.skip, self.seconds = fingerprint, set(skip), seconds
        self.log, self.at, self.do = log, at, do
        self.asked, self.calls, self.lock = [], 0, threading.Lock()

    def score(self, pairs, queries, items, **limits):
        found = [
            (queries[q], items[i])
            for q, i in zip(pairs.query.tolist(), pairs.item.tolist(), strict=True)
        ]
        with self.lock:
            self.calls += 1
            self.asked += found
            if self.log:
                with open(self.log, "a") as file:
                    file.writelines(f"{query}|{item}\n" for query, item in found)
            now = self.calls == self.at
        time.sleep(self.seconds)
        if now:
            self.do()
        whole = zlib.crc32(repr(found).encode()) / 2**32 * 1e-4
        kept = np.array([k for k, (_, item) in enumerate(found) if item not in self.skip], np.int64)
        for part in np.array_split(kept, 3):
            scores = [score_of(*found[k]) + whole for k in part]
            yield part, np.array(scores, dtype=np.float32)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def open_bank(folder=None, fingerprint="telling", items=ITEMS, **options):
    return ScoreBank.open(items, fingerprint=fingerprint, folder=folder, **options)


def pay(bank, scorer, pairs, **options):
    return collect(bank, scorer, QUERIES, pairs, **options)


def straight(pairs):
    """The scores (p,) of an undisturbed collection."""
    bank = open_bank()
    assert pay(bank, TellingScorer(), pairs).complete
    return bank.scores(QUERIES, pairs)


def same(found, expected):
    """Whether both have the same pairs and the same bits."""
    return all(
        np.array_equal(getattr(found, name), getattr(expected, name))
        for name in ("query", "item", "score")
    )


def run(code, *arguments):
    """Runs Python code that may import from here."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))},
    )
