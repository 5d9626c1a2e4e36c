"""Kriging: search that has learned from other queries (docs/kriging.md)."""

from crossknn.methods.kriging.method import CalibrationCurve, Kriging, record_curve, stored_prior
from crossknn.methods.kriging.prior import KernelParameters, Prior, fit_dense

__all__ = [
    "CalibrationCurve",
    "KernelParameters",
    "Kriging",
    "Prior",
    "fit_dense",
    "record_curve",
    "stored_prior",
]
