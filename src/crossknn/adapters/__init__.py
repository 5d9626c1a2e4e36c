"""What other frameworks plug in: one module for each, which imports it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from crossknn.search.results import Hit
from crossknn.search.searcher import Budget, Searcher
from crossknn.types import as_count

PREDICTED = "predicted"
"""Marks, in a document's metadata, that it was not scored."""


def metadata_of(hit: Hit) -> dict[str, Any]:
    """Metadata of a document that was found: the item's fields and title, and its mark."""
    return {**hit.extra, "title": hit.title} | ({PREDICTED: True} if hit.predicted else {})


def reranked(metadata: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata of a document after `ck.rerank` gave it an `entry`; an earlier reranker may have
    predicted what was scored now."""
    known = {name: value for name, value in metadata.items() if name != PREDICTED}
    return known | ({PREDICTED: True} if PREDICTED in entry else {})


def budget_of(given: int | Budget | Mapping[str, Any] | None) -> int | Budget | None:
    """A budget, which frameworks save as a mapping."""
    return Budget(**given) if isinstance(given, Mapping) else given


def at_most(k: int | None, searcher: Searcher) -> int | None:
    """So many hits, or all items if there are fewer, which a search of ours refuses."""
    return None if k is None else min(as_count(k, "k"), len(searcher.index))
