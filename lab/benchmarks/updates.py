"""Random additions, deletions, compactions and searches against a dictionary, and kills between.

`crossknn index` must answer as the dictionary does after every step, and after a kill as before the
change or after it; an approximate index whose building was killed is built again, and becomes the
one of an undisturbed building. `campaign.py` runs all three; a trial is drawn by its number.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import crossknn as ck
from crossknn.index import nearest as approximate

SPACE = "own"
AT_ONCE = 1000
"""Steps of a trial; every twentieth trial keeps its index in a folder."""
NUMBERS = 60
"""Ids that come and go."""


def vectors_of(texts: Any) -> NDArray[np.float32]:
    """Vectors (m, 8) of small whole numbers, whose products are exact."""
    digests = [np.random.default_rng([*text.encode()]) for text in texts]
    return np.array([rng.integers(-9, 10, 8) for rng in digests], np.float32).reshape(-1, 8)


def record(number: int, version: int) -> dict[str, object]:
    """An item with an id of its own in every version."""
    return {"id": f"i{number}", "text": f"item {number}, {version}", "version": version}


def add(index: ck.ItemIndex, records: list[dict[str, object]]) -> None:
    """Put the records into the index with their vectors."""
    vectors = {SPACE: vectors_of([str(each["text"]) for each in records])}
    index.add(records, vectors=vectors, replace=True)


def built(count: int) -> ck.ItemIndex:
    """An index of the first items."""
    records = [record(number, 0) for number in range(count)]
    vectors = {SPACE: vectors_of([str(each["text"]) for each in records])}
    given: dict[str, Any] = {"vectors": vectors, "query_vectors": {SPACE: vectors_of}}
    return ck.ItemIndex.build(records, **given)


def opened(folder: Path) -> ck.ItemIndex:
    """The index in a folder, as another process would open it."""
    return ck.ItemIndex.load(folder, query_vectors={SPACE: vectors_of})


def nearest(index: ck.ItemIndex, query: str, k: int) -> list[tuple[str, str]]:
    """The ids and texts of the k nearest items."""
    searcher = ck.Searcher(index, None, f"retrieve(retriever={SPACE})")
    return [(hit.id, hit.text) for hit in searcher.search(query, k=k)[0]]


def expected(model: dict[str, str], query: str, k: int) -> list[tuple[str, str]]:
    """What `nearest` must find in texts by id, in the order in which they were last added."""
    products = vectors_of(model.values()) @ vectors_of([query])[0]
    rows = list(model.items())
    return [rows[place] for place in np.argsort(-products, kind="stable")[:k]]


def steps(trial: int, count: int = AT_ONCE) -> dict[str, Any]:
    """Random steps; says after how many the index and the dictionary differed, if they did."""
    rng = np.random.default_rng([3, trial])
    index, made = built(5), 0
    model = {f"i{number}": f"item {number}, 0" for number in range(5)}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "index" if trial % 20 == 19 else None
        if folder is not None:
            index.save(folder)
            index = opened(folder)
        reader, before = index.snapshot(), expected(model, "before", len(model))
        for step in range(count):
            kind = rng.choice(["add", "delete", "search", "search", "compact", "load"])
            chosen = rng.choice(NUMBERS, int(rng.integers(1, 5)), replace=False).tolist()
            there = [f"i{number}" for number in chosen if f"i{number}" in model]
            query = f"query {step}"
            if kind == "add":
                made += 1
                add(index, [record(number, made) for number in chosen])
                for number in chosen:
                    model.pop(f"i{number}", None)
                    model[f"i{number}"] = f"item {number}, {made}"
            elif kind == "delete" and len(there) < len(model):
                index.delete(there)
                model = {name: text for name, text in model.items() if name not in there}
            elif kind == "compact" and rng.random() < 0.3:
                index.compact()
            elif kind == "load" and rng.random() < 0.2:
                if nearest(reader, "before", len(before)) != before:
                    return {"steps": step, "differs": "a reader that was there before"}
                reader = index.snapshot() if folder is None else opened(folder)
                index = index if folder is None else opened(folder)
                before = expected(model, "before", len(model))
            k = min(len(model), int(rng.integers(1, 8)))
            if len(index) != len(model) or nearest(index, query, k) != expected(model, query, k):
                return {"steps": step, "differs": str(kind)}
    return {"steps": count, "differs": None}


CHANGES: dict[str, Callable[[ck.ItemIndex], object]] = {
    "add": lambda index: add(index, [record(number, 7) for number in range(100, 120)]),
    "replace": lambda index: add(index, [record(number, 7) for number in range(20)]),
    "delete": lambda index: index.delete(["i3", "i17"]),
    "compact": lambda index: index.compact(),
}


_FILES = ("data-", "crossknn-index", ".part", ".npy", ".utf8")
"""What stands in the names of an index's files, which are opened relative to their folders."""


def changed(folder: Path, what: str, at: int | None, counted: Any) -> None:
    """Change the index, and be killed when the folder is touched for the `at`-th time."""
    index, touched = opened(folder), 0

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal touched
        if event in ("open", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.truncate"):
            touched += any(name in str(arguments[:2]) for name in (str(folder), *_FILES))
            counted.value = touched
            if touched == at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    CHANGES[what](index)


def in_child(folder: Path, what: str, at: int | None) -> tuple[int, int]:
    """The exit code of a process that changes the index, and how often it touched the folder."""
    context = get_context("fork")
    counted = context.Value("i", 0)
    child = context.Process(target=changed, args=(folder, what, at, counted))
    child.start()
    child.join()
    return child.exitcode or 0, int(counted.value)


def kill(trial: int) -> dict[str, Any]:
    """Kill a change at one of its steps, all of them in turn; then do it again."""
    what, round = list(CHANGES)[trial % len(CHANGES)], trial // len(CHANGES)
    with tempfile.TemporaryDirectory() as place:
        folder, whole_one = Path(place).resolve() / "index", Path(place).resolve() / "whole"
        built(40).save(folder)
        index = opened(folder)
        add(index, [record(number, 1) for number in range(30, 50)])
        index.delete(["i5", "i41"])
        before = nearest(index, "query", len(index))
        shutil.copytree(folder, whole_one)
        _, steps = in_child(whole_one, what, None)
        after = nearest(index := opened(whole_one), "query", len(index))
        at = 1 + round % steps
        code, _ = in_child(folder, what, at)
        found = opened(folder)
        same = nearest(found, "query", len(found))
        whole = same in (before, after) and found.verify() == []
        if same == before:
            CHANGES[what](found)
        again = nearest(found, "query", len(found)) == after
        left = len([*folder.glob("data-*")])
    return {
        "change": what,
        "step": at,
        "of": steps,
        "killed": code == -signal.SIGKILL,
        "whole": whole,
        "same answer": again,
        "data folders": left,
    }


@cache
def unlisted(grown: bool) -> tuple[tempfile.TemporaryDirectory[str], float, bytes]:
    """A folder with an index of 6,000 items, `grown` from 4,000 whose vectors have an approximate
    index, the seconds of an undisturbed building of all, and the file that it writes."""
    import faiss

    faiss.omp_set_num_threads(1)  # processes are forked from this one
    approximate._BLOCK = 256
    place = tempfile.TemporaryDirectory()
    index, folder = built(4000), Path(place.name) / "index"
    index.save(folder)
    if grown:
        index.add_nearest(SPACE)
    add(index, [record(number, 0) for number in range(4000, 6000)])
    whole = Path(place.name) / "whole"
    shutil.copytree(folder, whole)
    began = time.perf_counter()
    opened(whole).add_nearest(SPACE)
    seconds = time.perf_counter() - began
    return place, seconds, (whole / f"nearest-{SPACE}" / approximate._FILE).read_bytes()


def listed(folder: Path, begun: Any) -> None:
    """Build the approximate index, after saying so."""
    index = opened(folder)
    begun.set()
    index.add_nearest(SPACE)


def kill_lists(trial: int) -> dict[str, Any]:
    """Kill the building of an approximate index at a random moment; then build it again."""
    of, seconds, whole = unlisted(trial % 2 == 1)
    moment = float(np.random.default_rng([4, trial]).uniform(0, 0.9 * seconds))
    context = get_context("fork")
    begun = context.Event()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "index"
        shutil.copytree(Path(of.name) / "index", folder)
        model = {f"i{number}": f"item {number}, 0" for number in range(6000)}
        answer = expected(model, "query", 20)
        child = context.Process(target=listed, args=(folder, begun))
        child.start()
        begun.wait()
        time.sleep(moment)
        child.kill()
        child.join()
        found = opened(folder)
        same = nearest(found, "query", 20) == answer and found.verify() == []
        found.add_nearest(SPACE)
        again = (folder / f"nearest-{SPACE}" / approximate._FILE).read_bytes() == whole
        again &= nearest(opened(folder), "query", 20) == answer
    return {
        "moment": round(moment, 4),
        "killed": child.exitcode == -signal.SIGKILL,
        "grown": trial % 2 == 1,
        "whole": same,
        "same lists": again,
    }
