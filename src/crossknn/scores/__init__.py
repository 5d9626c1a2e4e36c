"""Exact scores: the store that keeps them, scorers that use it, and collecting more."""
