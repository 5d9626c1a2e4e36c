"""What a way to align is, and what an index keeps of a fit."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from crossknn.errors import SpecError
from crossknn.fitting.factors import Fit
from crossknn.fitting.job import Job
from crossknn.index.fitted import FittedVectors, IndexingCost
from crossknn.index.maps import Same
from crossknn.spec import text_of


@dataclass(frozen=True, kw_only=True)
class Aligner(ABC):
    """A configuration; `str(aligner)` is its spec in the grammar."""

    name: ClassVar[str]

    @abstractmethod
    def align(self, job: Job) -> FittedVectors:
        """Item vectors of the job's index, paid for and fitted."""

    def __str__(self) -> str:
        return text_of(self.name, self)

    def above_zero(self, *options: str) -> None:
        """SpecError unless these options, where they are given, are above 0."""
        for option in options:
            value = getattr(self, option)
            if value is not None and not value > 0:
                raise SpecError(f"{self}: {option} must be above 0")

    def kept(self, job: Job, fit: Fit, *, pairs: int, queries: int) -> FittedVectors:
        """What an index keeps of a fit to so many pairs of so many train queries."""
        cost = job.cost(queries, pairs, fit.seconds)
        return kept(str(self), job.base, fit, job.scorer.fingerprint, cost)


def kept(
    method: str, base: str, fit: Fit, fingerprint: str | None, cost: IndexingCost
) -> FittedVectors:
    """What an index keeps of a fit that began with the vectors `base`."""
    return FittedVectors(
        values=fit.items,
        method=method,
        base=None if fit.map is None else base,
        map=fit.map or Same(),
        item_map=fit.item_map,
        scale=fit.scale,
        fingerprint=fingerprint,
        cost=cost,
        details=_for_json(
            {
                "held_out": fit.held_out,
                "initial": fit.initial,
                "untouched": fit.untouched,
                **fit.details,
            }
        ),
    )


def _for_json(details: Mapping[str, Any]) -> dict[str, Any]:
    """Keys as texts, and None for what was not measured (NaN)."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(key): plain(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [plain(inner) for inner in value]
        return None if isinstance(value, float) and math.isnan(value) else value

    found: dict[str, Any] = plain(details)
    return found
