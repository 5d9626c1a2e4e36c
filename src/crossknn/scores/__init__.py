"""Exact scores that were computed once: the store, its views, and the one way to collect more."""
