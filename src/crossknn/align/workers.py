"""Blocks of pairs over workers: how one is scored, and several at a time, here on threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from itertools import islice
from pathlib import Path
from typing import TypeAlias, TypeVar

import numpy as np

from crossknn.align.blocks import Block
from crossknn.errors import ScorerError
from crossknn.models.hub import existing
from crossknn.scorers._folder import MANIFEST
from crossknn.scorers._session import available_threads
from crossknn.scorers.base import Scorer
from crossknn.scorers.cross_encoder import BUNDLED, CrossEncoder, bundled_folder
from crossknn.scorers.robust import NothingScoredError, describe_pair
from crossknn.types import FloatArray, Pairs

J = TypeVar("J")

Scored: TypeAlias = tuple[FloatArray, str | None]
"""Scores (b,) of a block, NaN where a pair could not be scored; why, if none could."""

Workers: TypeAlias = Callable[[Iterator[Block]], Iterator[tuple[Block, Scored]]]
"""Scores blocks in any order; asks for the next one when a worker is free."""


def threads_each(workers: int) -> int:
    """Cores for each of so many workers, for an ONNX model's `threads`."""
    return max(1, available_threads() // workers)


def open_scorer(name: str | Path | None, threads: int) -> Scorer:
    """The cross-encoder of that name, with so many cores if it is one for ONNX Runtime."""
    if isinstance(name, str) and name.startswith(("http://", "https://")):
        return CrossEncoder(name)
    folder = bundled_folder("cross-encoder") if name in (None, BUNDLED) else existing(name or "")
    if folder is not None and (folder / MANIFEST).is_file():
        return CrossEncoder(folder, threads=threads)
    return CrossEncoder(name)


def score_block(
    scorer: Scorer, pairs: Pairs, queries: Sequence[str], items: Sequence[str]
) -> Scored:
    """Scores of the pairs (b,) of a block. Raises ScorerError for a score that is not finite."""
    found = np.full(len(pairs), np.nan, dtype=np.float32)
    try:
        for where, scores in scorer.score(pairs, queries, items):
            if len(bad := np.flatnonzero(~np.isfinite(scores))):
                what = describe_pair(pairs, queries, items, int(where[bad[0]]))
                raise ScorerError(f"the cross-encoder gave {scores[bad[0]]} as the score of {what}")
            found[where] = scores
    except NothingScoredError as error:
        return found, str(error)
    return found, None


def on_threads(
    scorer: Scorer, queries: Sequence[str], items: Sequence[str], workers: int
) -> Workers:
    """Workers on threads, which share the scorer; a single one scores where it is called."""

    def alone(blocks: Iterator[Block]) -> Iterator[tuple[Block, Scored]]:
        for block in blocks:
            yield block, score_block(scorer, block.pairs, queries, items)

    def together(blocks: Iterator[Block]) -> Iterator[tuple[Block, Scored]]:
        with ThreadPoolExecutor(workers, "crossknn-scoring") as pool:
            yield from in_flight(
                blocks,
                workers,
                lambda block: pool.submit(score_block, scorer, block.pairs, queries, items),
                lambda jobs: wait(jobs, return_when=FIRST_COMPLETED).done,
                lambda job, block: job.result(),
            )

    return alone if workers == 1 else together


def in_flight(
    blocks: Iterator[Block],
    room: int,
    submit: Callable[[Block], J],
    wait: Callable[[list[J]], Iterable[J]],
    result: Callable[[J, Block], Scored],
) -> Iterator[tuple[Block, Scored]]:
    """Keep `room` jobs under way, each a block; yields them as they end.

    After an error or an interrupt nothing is begun, but what is under way is waited for and
    yielded first: it is paid for. A second interrupt does not wait.
    """
    running: dict[J, Block] = {}
    error: BaseException | None = None
    while running or not error:
        try:
            if not error:
                for block in islice(blocks, room - len(running)):
                    running[submit(block)] = block
            if not running:
                break
            ended = wait(list(running))
        except BaseException as stop:
            if error:
                raise
            error = stop
            continue
        for job in ended:
            block = running.pop(job)
            try:
                scored = result(job, block)
            except Exception as failure:
                error = error or failure
                continue
            yield block, scored
    if error:
        raise error
