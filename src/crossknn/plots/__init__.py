"""Pictures of what was measured (extra `plots`): one function for each kind, one style for all.

Each takes plain rows or arrays and where to save: a file (.png, .pdf, .svg) or an open one, which
gets SVG. A method has the same colour and marker everywhere; see `style`.
"""

from __future__ import annotations

from crossknn.plots.curves import (
    Curve,
    curves,
    curves_of,
    recall_against_cost,
    recall_against_rounds,
    recall_at_depth,
)
from crossknn.plots.indexing import recall_against_indexing
from crossknn.plots.panels import Target
from crossknn.plots.style import Style, Styles, labels_of, styles_of
from crossknn.plots.training import training_curve

__all__ = [
    "Curve",
    "Style",
    "Styles",
    "Target",
    "curves",
    "curves_of",
    "labels_of",
    "recall_against_cost",
    "recall_against_indexing",
    "recall_against_rounds",
    "recall_at_depth",
    "styles_of",
    "training_curve",
]
