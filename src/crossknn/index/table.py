"""A table of exact scores that is being paid for: texts against every item.

It lies in a work folder, filled with NaN, which no scorer may return: a NaN is a pair not yet paid
for, and nothing else has to be kept in step.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from crossknn.errors import InputError
from crossknn.index.disk import keeping, put_file
from crossknn.types import FloatArray, IntArray

logger = logging.getLogger(__name__)

Known: TypeAlias = tuple[str, IntArray, FloatArray]
"""Scores that are known: of a text, with items (b,), their scores (b,)."""

_META = "work.json"
_DISCARD = "discard them with replace=True (crossknn fit: --rescore)"


class ScoreTable:
    """Scores (r, n) of r texts against n items, NaN where unpaid; on disk if it has a folder.

    The first `wanted` rows are to be filled; others are kept for whoever wants them.
    """

    def __init__(
        self, texts: Sequence[str], scores: FloatArray, folder: Path | None, wanted: int
    ) -> None:
        self.texts = texts
        self.scores = scores
        self.folder = folder
        self.wanted = wanted

    @staticmethod
    def open(
        texts: Sequence[str],
        n: int,
        *,
        folder: Path | None,
        items: str,
        fingerprint: str | None,
        replace: bool,
        stored: Collection[str] = (),
    ) -> ScoreTable:
        """A table of these texts, and of all others in `folder` that have a score.

        Rows of `stored` texts are elsewhere, and not kept. `items` and `fingerprint` name what the
        scores depend on. Scores of another corpus are discarded; those of another cross-encoder, or
        of one that cannot be told, are refused with `InputError` unless `replace`.
        """
        if folder is None:
            return ScoreTable(texts, np.full((len(texts), n), np.nan, np.float32), None, len(texts))
        known: dict[str, FloatArray] = {}
        if (old := unfinished(folder)) is not None:
            what = f"the unfinished scores in {folder}"
            if old["items"] != items:
                logger.info("discarding %s: they are of other items", what)
            elif same_scorer(old["fingerprint"], fingerprint, what, replace):
                table = ScoreTable.mapped(folder, old, n)
                known = dict(zip(table.texts, table.scores, strict=True))
        unwanted = known.keys() - {*texts, *stored}
        kept = [text for text in known if text in unwanted and not np.isnan(known[text]).all()]
        rows = [*texts, *kept]
        if known and rows == list(known):
            return ScoreTable(rows, table.scores, folder, len(texts))
        with keeping(folder, f"{len(rows)} x {n} scores"):
            scores = _create(folder, rows, n, known, items, fingerprint)
        return ScoreTable(rows, scores, folder, len(texts))

    @staticmethod
    def mapped(folder: Path, old: Mapping[str, Any], n: int) -> ScoreTable:
        """The unfinished table in `folder`, `old` being what it is of."""
        scores = _map(folder / old["table"], (len(old["texts"]), n))
        return ScoreTable(old["texts"], scores, folder, len(old["texts"]))

    def fill(self, known: Iterable[Known]) -> None:
        """Fill unpaid pairs with scores that were paid elsewhere."""
        rows = {text: row for row, text in enumerate(self.texts)}
        for text, items, scores in known:
            if (row := rows.get(text)) is not None:
                unpaid = np.isnan(self.scores[row, items])
                self.scores[row, items[unpaid]] = scores[unpaid]

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
            with suppress(OSError):
                (self.folder / _META).unlink()  # first: there is none without its table
            shutil.rmtree(self.folder, ignore_errors=True)


def unfinished(folder: Path) -> dict[str, Any] | None:
    """What the unfinished table in `folder` is of: `items`, `fingerprint`, `texts`; None if none.

    Raises `InputError` if that cannot be read.
    """
    try:
        read: dict[str, Any] = json.loads((folder / _META).read_text(encoding="utf-8"))
        found = {key: read[key] for key in ("table", "items", "fingerprint", "texts")}
        return found if (folder / found["table"]).is_file() else None
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise InputError(
            f"{folder / _META} is damaged; remove the folder {folder}, and its scores are paid "
            "again"
        ) from None


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
            f"fingerprint: name the scorer, or {_DISCARD}"
        )
    raise InputError(
        f"{what} are of another cross-encoder ({old}, not {new}); {_DISCARD}, or use an index of "
        "its own"
    )


def _map(path: Path, shape: tuple[int, int]) -> FloatArray:
    if not path.is_file() or path.stat().st_size != 4 * shape[0] * shape[1]:
        raise InputError(
            f"{path} is damaged; remove the folder {path.parent}, and its scores are paid again"
        )
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
        meta = {"table": table, "items": items, "fingerprint": fingerprint, "texts": list(texts)}
        put_file(folder / _META, json.dumps(meta).encode())
    except OSError:
        (folder / table).unlink(missing_ok=True)
        raise
    for other in folder.glob("scores-*.f32"):
        if other.name != table:
            other.unlink(missing_ok=True)
    return _map(folder / table, (len(texts), n))
