"""Fitting an index to exact scores, once and offline, so that every later search finds more."""
