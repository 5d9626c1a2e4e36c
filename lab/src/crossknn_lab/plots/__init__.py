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
from crossknn_lab.plots.bars import Bar, Stack, grouped_bars, stacked_bars
from crossknn_lab.plots.differences import Difference, differences
from crossknn_lab.plots.matrices import heat_map, score_histogram, singular_values
from crossknn_lab.plots.scatter import (
    Approximation,
    MeasurePoint,
    exact_against_approx,
    two_measures,
)
from crossknn_lab.plots.scores import Scores, error_by_band, score_distributions

__all__ = [
    "Approximation",
    "Bar",
    "Curve",
    "Difference",
    "MeasurePoint",
    "Scores",
    "Stack",
    "Style",
    "Styles",
    "Target",
    "curves",
    "curves_of",
    "differences",
    "error_by_band",
    "exact_against_approx",
    "grouped_bars",
    "heat_map",
    "labels_of",
    "recall_against_cost",
    "recall_against_indexing",
    "recall_against_rounds",
    "recall_at_depth",
    "score_distributions",
    "score_histogram",
    "singular_values",
    "stacked_bars",
    "styles_of",
    "training_curve",
    "two_measures",
]
