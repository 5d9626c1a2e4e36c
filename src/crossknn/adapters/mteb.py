"""MTEB: a search under a budget as an MTEB search model, for retrieval and reranking tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from crossknn import __version__
from crossknn.adapters import rerank_documents
from crossknn.data.items import items_from
from crossknn.data.records import given_records
from crossknn.errors import InputError, needs_extra
from crossknn.index.item_index import ItemIndex
from crossknn.search.searcher import PER_QUERY, Budget, Searcher
from crossknn.types import is_missing

with needs_extra("crossknn.adapters.mteb", "mteb"):
    from mteb.models import ModelMeta


class CrossknnSearch:
    """Indexes the corpus of a task and searches it; reranking tasks use `ck.rerank`.

    Tasks request 1,000 documents; documents beyond the budget follow by predicted score.

    >>> mteb.evaluate(CrossknnSearch(budget=100), tasks)              # doctest: +SKIP

    Args:
        scorer, method: As in `Searcher`; by default the bundled cross-encoder.
        encoder: The encoder of the corpus, as in `ItemIndex.build`.
        budget: Maximum number of pairs scored per query, or a `Budget`.
        name: Name of the model in MTEB's results, with an organisation: "acme/reranker-100".
    """

    def __init__(
        self,
        scorer: Any = "bundled",
        encoder: Any = "bundled",
        method: str | None = "auto",
        budget: int | Sequence[int] | Budget = PER_QUERY,
        name: str = "crossknn/search",
    ) -> None:
        self.scorer, self.encoder, self.method, self.budget = scorer, encoder, method, budget
        # MTEB stores results under these settings, so that different searches stay apart.
        settings = {"method": str(method or "auto"), "budget": str(budget)}
        settings |= {"scorer": _name(scorer), "encoder": _name(encoder)}
        overwrites = {"name": name, "revision": __version__, "experiment_kwargs": settings}
        self.mteb_model_meta = ModelMeta.create_empty(overwrites)
        self._corpus: dict[str, dict[str, Any]] = {}
        self._searcher: Searcher | None = None

    def index(self, corpus: Iterable[Mapping[str, Any]], **options: Any) -> None:
        """Read the corpus of a task: rows with `id`, `text` and `title`; `options` are ignored."""
        self._corpus, self._searcher = {}, None
        for row in corpus:
            given = {n: row[n] for n in ("title", "text") if not is_missing(row.get(n))}
            self._corpus[_new_id(row, self._corpus)] = {"text": ""} | given

    def search(
        self,
        queries: Iterable[Mapping[str, Any]],
        *,
        top_k: int,
        top_ranked: Mapping[str, list[str]] | None = None,
        **options: Any,
    ) -> dict[str, dict[str, float]]:
        """Return the final scores of `top_k` documents by query id and document id; `top_ranked`
        are the ids of each query's documents in reranking tasks."""
        if not self._corpus:
            raise InputError("there is no corpus: call index before search")
        texts: dict[str, str] = {}
        for row in queries:
            if not isinstance(text := row.get("text"), str):
                raise InputError(f"the query {row.get('id')!r:.80} is {text!r:.80}: give a text")
            instruction = row.get("instruction")
            texts[_new_id(row, texts)] = f"{text} {instruction}" if instruction else text
        if top_ranked is not None:
            return {q: self._rerank(q, texts[q], top_ranked.get(q, []), top_k) for q in texts}
        if self._searcher is None:
            items = items_from(given_records(self._corpus), allow_empty=True)
            index = ItemIndex.build(items, encoder=self.encoder)
            self._searcher = Searcher(index, self.scorer, self.method)
        results = self._searcher.search(texts, top_k, self.budget)
        results.check()
        answered = zip(texts, results, strict=True)
        return {query: {hit.id: hit.final_score for hit in hits} for query, hits in answered}

    def _rerank(self, query: str, text: str, ids: list[str], top_k: int) -> dict[str, float]:
        if unknown := [i for i in ids if i not in self._corpus]:
            raise InputError(f"{unknown[0]!r}, to be ranked for {query!r}, is not in the corpus")
        documents = [self._corpus[i] for i in ids]
        options = {"budget": self.budget, "scorer": self.scorer, "top_k": top_k, "check": True}
        return {name: score for name, score, _ in rerank_documents(text, ids, documents, **options)}


def _new_id(row: Mapping[str, Any], ids: Mapping[str, Any]) -> str:
    name = row.get("id")
    if not isinstance(name, str) or name in ids:
        raise InputError(f"the id {name!r:.80} is no text, or is given twice: give each its own")
    return name


def _name(model: Any) -> str:
    if isinstance(model, str | Path):
        return str(model)
    names = getattr(model, "fingerprint", None), getattr(model, "name", None)
    return str(names[0] or names[1] or type(model).__name__)
