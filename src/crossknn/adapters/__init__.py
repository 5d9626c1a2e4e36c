"""What other frameworks plug in: one module for each, which imports it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from crossknn.errors import InputError
from crossknn.search.results import Hit
from crossknn.searcher.searcher import Budget

T = TypeVar("T")

PREFIX = "crossknn_"
"""Of what adapters add to metadata: other names are the user's, who may have a `score`, too."""

PREDICTED, SCORE, RETRIEVAL_SCORE = (
    f"{PREFIX}{name}" for name in ("predicted", "score", "retrieval_score")
)


def metadata_of(hit: Hit) -> dict[str, Any]:
    """Metadata of a document that was found: the item's title and fields, and, if it was not
    scored, `crossknn_predicted`."""
    title = {"title": hit.title} if hit.title else {}
    return title | {**hit.extra} | ({PREDICTED: True} if hit.predicted else {})


def reranked(metadata: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata of a document after `ck.rerank` gave it an `entry`; an earlier reranker may have
    predicted what was scored now."""
    known = {name: value for name, value in metadata.items() if name != PREDICTED}
    return known | ({PREDICTED: True} if "predicted" in entry else {})


def of_kind(given: Iterable[Any], kind: type[T], example: str) -> list[T]:
    """The entries; `InputError` for one that is not of the framework's class, or if `given` itself
    is one. `example` has one."""
    if isinstance(given, kind) or not isinstance(given, Iterable):
        raise InputError(
            f"a {type(given).__name__} is given, where a list is needed: give [{example}]"
        )
    entries = [*given]  # which may be read once only
    for position, entry in enumerate(entries):
        if not isinstance(entry, kind):
            raise InputError(
                f"entry {position} is a {type(entry).__name__}, where a {kind.__name__} is needed: "
                f"give {example}"
            )
    return entries


def budget_of(given: int | Budget | Mapping[str, Any] | None) -> int | Budget | None:
    """A budget, which frameworks save as a mapping."""
    return Budget(**given) if isinstance(given, Mapping) else given
