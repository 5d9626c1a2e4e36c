"""How much of everything a report tries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from crossknn.errors import InputError, nearest


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Grids of the papers, scaled.

    Attributes:
        name: As on the command line.
        budgets, k, rounds: What the papers vary.
        seeds: With several, each draws which queries are anchors and which are tests.
        queries: Only the first so many test queries; all by default.
        shares: Of a budget that goes to anchor items (ANNCUR's k_i).
        blends: AXN's lambda.
        settings: Whether all settings of a method are tried on dev queries, or the few that
            differ most.
        sizes: How many numbers of anchor queries (the papers' |Q_train|) are tried.
        draws: Random choices of anchors that figures of single matrices are means over.
        matrices: Only the first so many; all by default.
    """

    name: str
    budgets: tuple[int, ...] = (50, 100, 200, 500)
    k: tuple[int, ...] = (1, 10, 50, 100)
    rounds: tuple[int, ...] = (1, 2, 5, 10, 20)
    seeds: tuple[int, ...] = (0, 1, 2)
    queries: int | None = None
    shares: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    blends: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    settings: bool = True
    sizes: int = 3
    draws: int = 3
    matrices: int | None = None

    @property
    def redraw(self) -> bool:
        """Whether the seed draws anchors and tests: with one seed they are as stored."""
        return len(self.seeds) > 1


SMALL = Preset(
    name="small",
    budgets=(50, 100, 500),
    rounds=(1, 2, 5, 10),
    seeds=(0,),
    queries=50,
    shares=(0.2, 0.5, 0.8),
    blends=(0.0, 0.5, 0.8, 1.0),
    settings=False,
    sizes=2,
    draws=1,
    matrices=2,
)
FULL = Preset(name="full")

PRESETS: Mapping[str, Preset] = {preset.name: preset for preset in (SMALL, FULL)}


def preset(name: str) -> Preset:
    """The preset of that name; InputError if there is none."""
    if name not in PRESETS:
        raise InputError(f"there is no preset {name!r}: {nearest(name, PRESETS)}")
    return PRESETS[name]
