"""What stays paid when an index is built again in its folder, of other items.

Pairs of texts in the `ScoreBank` stay in any case. Anchors, whose columns are the items, become
such pairs; vectors that were fitted can be fitted again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from crossknn.errors import InputError
from crossknn.fitting.bank import ScoreBank
from crossknn.fitting.job import BANK
from crossknn.fitting.work import mismatch, there
from crossknn.index.disk import alone
from crossknn.index.item_index import ItemIndex
from crossknn.index.paid import PaidScores
from crossknn.index.table import Known
from crossknn.types import Pairs, Progress

logger = logging.getLogger(__name__)

MOST = 10_000_000
"""More scores of anchors are not kept as pairs, which take 12 bytes of the disk, 16 of memory."""

_AT_ONCE = 2_000_000


@dataclass(frozen=True, kw_only=True)
class LeftBehind:
    """What an index of other items had paid for and a new one cannot take over as it is.

    `dropped` names it. `rows` are scores of anchors that can be kept as pairs; `lost` says what
    cannot be kept, and why.
    """

    previous: ItemIndex
    folder: Path
    dropped: Sequence[str]
    rows: Sequence[PaidScores]
    lost: Sequence[str]

    @staticmethod
    def of(index: ItemIndex, previous: ItemIndex) -> LeftBehind:
        """Of an index in a folder, after `index` has taken over what it can."""
        assert previous.folder is not None
        folder = previous.folder / BANK
        taken = index.take_paid(previous)
        dropped = [n for n in previous.paid_names if not (taken or n in index.paid_names)]
        rows, lost = list[PaidScores](), list[str]()
        found = [("unfinished anchors", _unfinished(index, previous, "anchors"))]
        if "anchors" in dropped and previous.anchors is not None:
            scores, scorer = previous.anchors.scores, previous.scorer_of("anchors")
            found.insert(0, ("anchors", PaidScores(previous.anchor_queries, scores, scorer)))
        for what, paid in found:
            if paid is None:
                continue
            first = rows[0].fingerprint if rows else paid.fingerprint
            why = _why_not(folder, paid.fingerprint, first)
            if paid.scores.size > MOST:
                why = f"{paid.scores.size:,} scores are too many to be kept as pairs"
            if why is None:
                rows.append(paid)
            else:
                lost.append(f"{what} ({why})")
        if "item_scores" in dropped or _unfinished(index, previous, "item_scores"):
            lost.append("scores of items with items (no pairs of train queries)")
        for name in dropped:
            if name not in ("anchors", "item_scores"):
                scorer = previous.scorer_of(name)
                why = _why_not(folder, scorer, rows[0].fingerprint if rows else scorer)
                if why is None and not rows and not there(folder):
                    why = "the pairs they were fitted to are not in the folder"
                if why is not None:
                    lost.append(f"the vectors {name} ({why})")
        return LeftBehind(previous=previous, folder=folder, dropped=dropped, rows=rows, lost=lost)

    def keep(self, progress: Progress | None = None) -> int:
        """Keep `rows` as pairs; returns how many were none yet. Raises InputError as the bank."""
        kept = done = 0
        total = sum(rows.scores.size for rows in self.rows)
        for rows in self.rows:
            items, fingerprint = list(self.previous.items.texts), rows.fingerprint
            bank = ScoreBank.open(items, fingerprint=fingerprint, folder=self.folder)
            step = max(1, _AT_ONCE // len(items))
            for start in range(0, len(rows.texts), step):
                scores = np.asarray(rows.scores[start : start + step])
                query, item = np.nonzero(~np.isnan(scores))
                pairs = Pairs(query + start, item)
                kept += bank.know(rows.texts, items, pairs, scores[query, item])
                done += scores.size
                if progress:
                    progress(done, total)
        return kept


@contextmanager
def known_pairs(
    index: ItemIndex, fingerprint: str | None, queries: Sequence[str]
) -> Iterator[Iterable[Known]]:
    """What `align` has paid of these queries in the index's folder, to this cross-encoder.

    Until the end `align` pays for nothing there: it would not know of what is paid elsewhere
    meanwhile. Pairs of another cross-encoder are left alone, with a warning. Raises InputError for
    damaged ones, and if another process is adding some.
    """
    if index.folder is None or fingerprint is None:
        yield ()
        return
    folder = index.folder / BANK
    with alone(folder):
        if not there(folder):
            yield ()
        elif why := mismatch(folder, fingerprint):
            logger.warning("what align has paid is not used: %s", why)
            yield ()
        else:
            bank = ScoreBank(index.items.texts, fingerprint, folder)
            with bank.adding():  # reads what a killed collection left
                yield bank.scores(queries).rows()


def _why_not(folder: Path, fingerprint: str | None, other: str | None) -> str | None:
    """Why scores of this cross-encoder, beside those of another, cannot be pairs in `folder`."""
    if fingerprint is None:
        return "their cross-encoder has no fingerprint"
    if fingerprint != other:
        return f"they are of {fingerprint}, and others of {other}"
    if there(folder):
        try:
            ScoreBank.open([], fingerprint=fingerprint, folder=folder)
        except InputError as error:
            return str(error)
    return None


def _unfinished(index: ItemIndex, previous: ItemIndex, name: str) -> PaidScores | None:
    """Rows of the previous items that were being paid for, unless they are of these items too."""
    assert previous.folder is not None
    work = previous.folder / f"work-{name}"
    if PaidScores.unfinished(work, index.items.texts) is not None:
        return None
    return PaidScores.unfinished(work, previous.items.texts)
