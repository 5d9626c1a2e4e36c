"""Exact scores of some texts against every item: anchor queries, or items put in their place.

This is the expensive part of an index (rows times n calls), so it can be stopped anywhere, even
killed, and goes on where it was. The table of scores lies in a work folder, filled with NaN, which
no scorer may return: a NaN is a pair not yet paid for, and nothing else has to be kept in step.
"""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from crossknn.errors import InputError
from crossknn.scorers.base import Scorer
from crossknn.types import FloatArray, IntArray, Pairs, Progress

logger = logging.getLogger(__name__)

_AT_ONCE = 65_536
_SECONDS_BETWEEN_SYNCS = 1.0


@dataclass(frozen=True, kw_only=True)
class DenseReport:
    """What a run of dense scoring did. `calls` pairs were asked of the scorer in this run."""

    rows: int
    rows_done: int
    calls: int
    reused: int

    @property
    def complete(self) -> bool:
        """Whether every row has all its scores."""
        return self.rows_done == self.rows


class ScoreTable:
    """Scores (r, n) of r texts against n items, NaN where unpaid; on disk if it has a folder."""

    def __init__(self, texts: Sequence[str], scores: FloatArray, folder: Path | None) -> None:
        self.texts = texts
        self.scores = scores
        self.folder = folder

    @staticmethod
    def open(
        texts: Sequence[str],
        n: int,
        *,
        folder: Path | None,
        items: str,
        fingerprint: str | None,
        replace: bool,
    ) -> ScoreTable:
        """A new table, or the unfinished one in `folder` with the rows that are still wanted.

        `items` and `fingerprint` name what the scores depend on. Scores of another corpus are
        discarded; those of another cross-encoder, or of one that cannot be told, are refused with
        `InputError` unless `replace`.
        """
        if folder is None:
            return ScoreTable(texts, np.full((len(texts), n), np.nan, np.float32), None)
        known: dict[str, FloatArray] = {}
        if (old := unfinished(folder)) is not None:
            what = f"the unfinished scores in {folder}"
            if old["items"] != items:
                logger.info("discarding %s: they are of other items", what)
            elif same_scorer(old["fingerprint"], fingerprint, what, replace):
                found = _map(folder / old["table"], (len(old["texts"]), n))
                if old["texts"] == list(texts):
                    return ScoreTable(texts, found, folder)
                known = dict(zip(old["texts"], found, strict=True))
        try:
            scores = _create(folder, texts, n, known, items, fingerprint)
        except OSError as error:
            raise InputError(
                f"{len(texts)} x {n} scores cannot be kept in {folder}: {error.strerror or error}"
            ) from error
        return ScoreTable(texts, scores, folder)

    def put_known(self, known: Mapping[str, FloatArray]) -> None:
        """Fill rows whose scores are known already."""
        for row, text in enumerate(self.texts):
            if text in known:
                self.scores[row] = known[text]

    def done(self) -> IntArray:
        """Rows that have all their scores."""
        return np.array(
            [r for r, row in enumerate(self.scores) if not np.isnan(row).any()], dtype=np.int64
        )

    def paid(self) -> int:
        """Pairs that have a score."""
        return sum(int(np.count_nonzero(~np.isnan(row))) for row in self.scores)

    def sync(self) -> None:
        """Bring the scores to the disk: a kill loses none anyway, a power cut might."""
        if isinstance(self.scores, np.memmap):
            self.scores.flush()

    def remove(self) -> None:
        """Remove the table from the disk."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def score_rows(
    table: ScoreTable,
    scorer: Scorer,
    items: Sequence[str],
    *,
    max_calls: int | None = None,
    progress: Progress | None = None,
) -> DenseReport:
    """Fill the table row by row, at most `max_calls` pairs; what is there is not paid again.

    Pairs the scorer leaves out stay unpaid, and their row incomplete, for the next run. The
    table keeps everything that was scored whatever error the scorer raises.
    """
    rows, n = table.scores.shape
    done = reused = table.paid()
    left = math.inf if max_calls is None else max_calls
    calls, synced = 0, time.monotonic()
    if progress:
        progress(done, rows * n)
    try:
        for row in range(rows):
            unpaid = np.flatnonzero(np.isnan(table.scores[row]))
            for start in range(0, len(unpaid), _AT_ONCE):
                asked = unpaid[start : start + _AT_ONCE][: int(min(left - calls, _AT_ONCE))]
                if not len(asked):
                    break
                calls += len(asked)
                pairs = Pairs(np.full(len(asked), row), asked)
                for where, scores in scorer.score(pairs, table.texts, items):
                    table.scores[row, asked[where]] = scores
                    done += len(where)
                    if progress:
                        progress(done, rows * n)
                    if time.monotonic() - synced > _SECONDS_BETWEEN_SYNCS:
                        table.sync()
                        synced = time.monotonic()
            if calls >= left:
                break
    finally:
        table.sync()
    return DenseReport(rows=rows, rows_done=len(table.done()), calls=calls, reused=reused)


def unfinished(folder: Path) -> dict[str, Any] | None:
    """What the unfinished table in `folder` is of: `items`, `fingerprint`, `texts`; None if none.

    Raises `InputError` if that cannot be read.
    """
    path = folder / "work.json"
    if not path.is_file():
        return None
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return {key: found[key] for key in ("table", "items", "fingerprint", "texts")}
    except (ValueError, KeyError, TypeError):
        raise InputError(f"the unfinished scores in {folder} are damaged; remove it") from None


def same_scorer(old: str | None, new: str | None, what: str, replace: bool) -> bool:
    """Whether both fingerprints are of one cross-encoder; if not, `InputError` unless `replace`."""
    if old is not None and old == new:
        return True
    if replace:
        logger.info("discarding %s: they are of %s, not %s", what, old, new)
        return False
    if old is None or new is None:
        raise InputError(
            f"{what} cannot be told from those of another cross-encoder, because a scorer has no "
            "fingerprint: name the scorer, or discard them with replace=True"
        )
    raise InputError(
        f"{what} are of another cross-encoder ({old}, not {new}); discard them with "
        "replace=True, or use an index of its own"
    )


def _map(path: Path, shape: tuple[int, int]) -> FloatArray:
    if not path.is_file() or path.stat().st_size != 4 * shape[0] * shape[1]:
        raise InputError(f"the unfinished scores {path} are damaged; remove {path.parent}")
    mapped: FloatArray = np.memmap(path, dtype="<f4", mode="r+", shape=shape)
    return mapped


def _create(
    folder: Path,
    texts: Sequence[str],
    n: int,
    known: Mapping[str, FloatArray],
    items: str,
    fingerprint: str | None,
) -> FloatArray:
    """A table on disk. All its room is taken now: a full disk must not show in the middle."""
    folder.mkdir(parents=True, exist_ok=True)
    table = f"scores-{os.getpid()}-{time.time_ns()}.f32"
    unpaid = np.full(n, np.nan, dtype="<f4")
    try:
        with (folder / table).open("wb") as file:
            for text in texts:
                file.write(np.asarray(known.get(text, unpaid), dtype="<f4").tobytes())
            file.flush()
            os.fsync(file.fileno())
        temporary = folder / "work.json.new"
        content = {
            "table": table,
            "items": items,
            "fingerprint": fingerprint,
            "texts": list(texts),
        }
        temporary.write_text(json.dumps(content), encoding="utf-8")
        os.replace(temporary, folder / "work.json")
    except OSError:
        (folder / table).unlink(missing_ok=True)
        raise
    for other in folder.glob("scores-*.f32"):
        if other.name != table:
            other.unlink(missing_ok=True)
    return _map(folder / table, (len(texts), n))
