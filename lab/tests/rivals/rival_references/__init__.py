"""Implementations of the rivals from their papers alone."""
