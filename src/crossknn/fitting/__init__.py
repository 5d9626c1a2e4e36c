"""Align items with a cross-encoder: scores paid once, offline, that every later search gains by."""
