"""What a search is asked for, checked: texts, a filter, k and budgets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from crossknn.checks import as_count
from crossknn.errors import InputError
from crossknn.types import BoolArray

if TYPE_CHECKING:
    from crossknn.index.item_index import ItemIndex


def query_texts(queries: str | Sequence[str]) -> list[str]:
    """One text or several; `InputError` for none, or for one that is empty."""
    if not isinstance(queries, str | Sequence):
        raise InputError(f"queries are {queries!r}; give a text or a list of texts")
    texts = [queries] if isinstance(queries, str) else list(queries)
    if not texts:
        raise InputError("there are no queries")
    for position, text in enumerate(texts):
        if not isinstance(text, str) or not text.strip():
            raise InputError(
                f"query {position} is {text!r}; a query must be a text that is not empty"
            )
    return texts


def allowed_items(filter: Iterable[str] | BoolArray | None, index: ItemIndex) -> BoolArray | None:
    """A mask (n,) of the items of some ids, or a mask as it is; `InputError` if none is allowed."""
    if filter is None:
        return None
    if isinstance(filter, str) or not isinstance(filter, Iterable):
        raise InputError(f"the filter is {_said(filter)}; give a list of ids or a mask")
    if isinstance(filter, list) and filter and all(isinstance(f, bool) for f in filter):
        filter = np.array(filter)
    if isinstance(filter, np.ndarray) and filter.dtype == np.bool_:
        allowed = filter
        if allowed.shape != (index.n,):
            raise InputError(f"the filter has shape {allowed.shape}; the index has {index.n} items")
    else:
        allowed = np.zeros(index.n, np.bool_)
        allowed[index.items.positions(filter)] = True
    if not allowed.any():
        raise InputError("the filter allows no item")
    return allowed


def equal_share(total: int, m: int, k: int) -> int:
    """Of a budget for m queries, which must do for k items of each; `InputError` if it does not."""
    as_count(total, "total_budget")
    if isinstance(k, int | np.integer) and k > total // m:
        raise InputError(
            f"k is {k}, but a total_budget of {total} for {m} queries is {total // m} calls each: "
            "raise it or lower k"
        )
    return int(total) // m


def check_counts(k: int, budget: int, n: int, deadline_ms: float | None) -> None:
    """`InputError` for a k or budget below 1, or a k above the budget or the number of items."""
    as_count(k, "k")
    as_count(budget, "budget")
    if k > n:
        raise InputError(f"k is {k}, but the index has {n} items")
    if k > budget:
        raise InputError(
            f"k is {k}, but a budget of {budget} calls reveals {budget} items at most: "
            "raise the budget or lower k"
        )
    if deadline_ms is not None and not _positive(deadline_ms):
        raise InputError(f"deadline_ms is {deadline_ms!r}; it must be above 0")


def _said(filter: object) -> str:
    return f"the text {filter!r}" if isinstance(filter, str) else repr(filter)


def _positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0
