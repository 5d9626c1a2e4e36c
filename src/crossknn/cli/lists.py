"""Read the user's own candidates from a TREC run, for the option `--lists`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from crossknn.cli.output import note
from crossknn.data.queries import QuerySet
from crossknn.errors import InputError
from crossknn.index.item_index import ItemIndex
from crossknn.methods import Method
from crossknn.methods.kriging import FIRST_BATCH, Kriging
from crossknn.methods.prior import stored_prior, trend_retrievers
from crossknn.retrievers.base import CandidateLists
from crossknn.retrievers.specs import AUTO, HYBRID, first_stage, stage_names
from crossknn.spec import Spec
from crossknn.types import NO_ITEM, Queries


def add_lists(index: ItemIndex, path: Path | None, queries: QuerySet | None) -> None:
    """Add the candidates of a TREC run as the retriever `lists`."""
    if path is None:
        return
    if queries is None:
        raise InputError("--lists refers to queries by id: give the queries with --queries FILE")
    index.add_retriever("lists", CandidateLists.from_run(path, queries, index.items.ids))


def using_lists(
    index: ItemIndex, method: Method, queries: QuerySet, fingerprint: str | None, budget: int
) -> Method:
    """Return the method with `lists` as its retriever, unless it names another one itself.

    Lists shorter than the first batch are filled up by the default retriever. Kriging also uses the
    lists' scores in its trends, unless the index has a prior, whose queries had no lists.
    """
    if getattr(method, "retriever", None) != AUTO:
        if "lists" not in str(method):
            note(
                f"{method} does not use --lists: name it as the retriever, as in --method "
                "'rerank(retriever=lists)', or leave --method out"
            )
        return method
    lists = Spec("lists")
    first_batch = min(max(FIRST_BATCH, budget // 20), index.n)
    items = index.retrievers["lists"].top(Queries(queries.texts), first_batch).items
    is_short = items.shape[1] < first_batch or (items == NO_ITEM).any()
    filled = replace(HYBRID, args=(lists, Spec(first_stage(index))))
    options: dict[str, Any] = {"retriever": filled if is_short else lists}
    without_prior = stored_prior(index.for_scorer(fingerprint)) is None or not getattr(
        method, "use_anchors", True
    )
    if isinstance(method, Kriging) and method.mean is None and without_prior:
        stages = (*map(Spec, stage_names(index, trend_retrievers(index))), lists)
        options["mean"] = replace(HYBRID, args=stages)
    return replace(method, **options)
