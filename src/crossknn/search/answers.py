"""From rankings of positions to hits, and from the answers to batches of queries to one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from crossknn.search.results import Hit, Results
from crossknn.types import NO_ITEM, Ranking

if TYPE_CHECKING:
    from crossknn.data.items import Items


def hits_of(items: Items, ranking: Ranking, method: str) -> tuple[list[Hit], ...]:
    """A list of hits for each row of a ranking; `method` is the source of later rounds' items."""
    return tuple(
        [_hit(items, ranking, (row, int(j)), method) for j in np.flatnonzero(found != NO_ITEM)]
        for row, found in enumerate(ranking.items)
    )


def _hit(items: Items, ranking: Ranking, at: tuple[int, int], method: str) -> Hit:
    """What stands at one place of a ranking."""
    position, round = int(ranking.items[at]), int(ranking.rounds[at])
    approx, std = float(ranking.approx[at]), float(ranking.std[at])
    item = items[position]
    known = approx == approx
    return Hit(
        id=item.id,
        score=float(ranking.scores[at]),
        position=position,
        round=round,
        source="order" if not known else "first" if round <= 1 else method,
        approx=approx if known else None,
        std=std if std == std else None,
        title=item.title,
        text=item.text,
        extra=item.extra,
    )


def joined(parts: Sequence[Results], seconds: float) -> Results:
    """The answers to all batches of queries as one."""
    stops = {part.stopped_by for part in parts}
    whole = "target" if stops == {"target"} else "budget"
    traces = [part.trace for part in parts if part.trace is not None]
    return replace(
        parts[0],
        queries=tuple(q for part in parts for q in part.queries),
        hits=tuple(h for part in parts for h in part.hits),
        calls=sum(part.calls for part in parts),
        n_scored=sum(part.n_scored for part in parts),
        seconds=seconds,
        scoring_seconds=sum(part.scoring_seconds for part in parts),
        stopped_by=next(iter(sorted(stops - {"budget", "target"})), whole),
        errors=tuple(e for part in parts for e in part.errors),
        failed=sum(part.failed for part in parts),
        n_backfilled=sum(part.n_backfilled for part in parts),
        truncated=sum(part.truncated for part in parts),
        trace=tuple(t for trace in traces for t in trace) if traces else None,
    )
