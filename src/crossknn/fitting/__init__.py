"""Fit an index to exact scores, once and offline, so that later searches have a higher recall."""
