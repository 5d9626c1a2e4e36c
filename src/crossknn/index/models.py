"""Fitted word models of an index (BM25, TF-IDF, LSA), opened when they are first needed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from importlib import import_module
from typing import Any

from crossknn.index.storage import IndexReader
from crossknn.types import Artifact

_WHERE = {
    "bm25": ("crossknn.retrievers.lexical", "BM25"),
    "tfidf": ("crossknn.retrievers.lexical", "TFIDF"),
    "lsa": ("crossknn.retrievers.lexical", "LSA"),
}


def model_class(name: str) -> Any:
    """The class of that name; it has `from_state`, its objects have `state`."""
    module, attribute = _WHERE[name]
    return getattr(import_module(module), attribute)


class Models:
    """Models by name: fitted now, or stored in an index."""

    def __init__(
        self,
        fitted: Mapping[str, Any],
        reader: IndexReader | None = None,
        stored: Collection[str] = (),
    ) -> None:
        self._open = dict(fitted)
        self._reader = reader
        self.names = tuple(dict.fromkeys([*fitted, *stored]))

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __getitem__(self, name: str) -> Any:
        if name not in self._open:
            assert self._reader is not None
            state = self._reader.state(f"model-{name}")
            self._open[name] = model_class(name).of(Artifact(state, state))
        return self._open[name]
