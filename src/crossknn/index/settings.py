"""How much of a query's scores each part of kriging's covariance explains."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`share` of the covariance over the anchor queries; `smooth` of exp(-`scale` * distance^2)
    and `linear` of the cosine, in units of the anchors' residual variance; `noise`, the variance
    that none of it explains, as a share of those two's sum."""

    share: float = 0.7
    scale: float = 2.0
    smooth: float = 0.3
    linear: float = 0.5
    noise: float = 0.25
