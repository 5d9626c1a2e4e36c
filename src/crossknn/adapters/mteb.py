"""MTEB: a search under a budget as one of its search models, for retrieval and reranking tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from crossknn import __version__
from crossknn.data.items import items_from
from crossknn.data.records import given_records
from crossknn.errors import InputError, needs_extra
from crossknn.index.item_index import ItemIndex
from crossknn.searcher.rerank import rerank
from crossknn.searcher.searcher import PER_QUERY, Budget, Searcher
from crossknn.types import is_missing

with needs_extra("crossknn.adapters.mteb", "mteb"):
    from mteb.models import ModelMeta


class CrossknnSearch:
    """Indexes the corpus of a task and searches it; reranking tasks are reranked by `ck.rerank`.

    Tasks ask for 1,000 documents; those beyond the budget follow by predicted score.

    >>> mteb.evaluate(CrossknnSearch(budget=100), tasks)              # doctest: +SKIP

    Args:
        scorer: Whatever `Searcher` takes; the bundled cross-encoder by default.
        encoder: Whatever `ItemIndex.build` takes as encoder of the corpus.
        method: A method's spec, for retrieval tasks.
        budget: Pairs that a query may score, or a `Budget`.
        name: Of the model in MTEB's results, with an organisation: "acme/reranker-100".
    """

    def __init__(
        self,
        scorer: Any = "bundled",
        encoder: Any = "bundled",
        method: str | None = "auto",
        budget: int | Budget = PER_QUERY,
        name: str = "crossknn/search",
    ) -> None:
        self.scorer, self.encoder, self.method, self.budget = scorer, encoder, method, budget
        # What MTEB keeps results under: those of another model are not this one's.
        settings = {
            "method": str(method or "auto"),
            "budget": str(budget),
            "scorer": _named(scorer),
            "encoder": _named(encoder),
        }
        overwrites = {"name": name, "revision": __version__, "experiment_kwargs": settings}
        self.mteb_model_meta = ModelMeta.create_empty(overwrites)
        self._corpus: list[dict[str, Any]] = []
        self._searcher: Searcher | None = None

    def index(self, corpus: Iterable[Mapping[str, Any]], **options: Any) -> None:
        """Keep the corpus of a task; it is encoded when a query is searched.

        Args:
            corpus: Documents with `id`, `text`, and `title` if they have one.
            options: Of MTEB; not needed here.
        """
        fields, rows = ("id", "title", "text"), [*corpus]
        for row in rows:
            _id(row, "document")
        self._corpus = [
            {"text": ""} | {f: row[f] for f in fields if not is_missing(row.get(f))} for row in rows
        ]
        self._searcher = None

    def search(
        self,
        queries: Iterable[Mapping[str, Any]],
        *,
        top_k: int,
        top_ranked: Mapping[str, list[str]] | None = None,
        **options: Any,
    ) -> dict[str, dict[str, float]]:
        """Documents of each query with their final scores.

        Args:
            queries: With `id`, `text`, and `instruction` if they have one.
            top_k: Documents of each query.
            top_ranked: Documents to rerank, by query, in reranking tasks.
            options: Of MTEB; not needed here.

        Returns:
            By query, the scores by document.

        Raises:
            InputError: The corpus was not indexed, or a query is no text.
            ScorerError: The scorer failed.
        """
        if not self._corpus:
            raise InputError("there is no corpus: call index before search")
        texts: dict[str, str] = {}
        for row in queries:
            query = _id(row, "query")
            if query in texts:
                raise InputError(f"two queries have the id {query!r}; ids must differ")
            texts[query] = _text(row)
        if top_ranked is not None:
            return self._reranked(texts, top_ranked, top_k)
        if self._searcher is None:
            items = items_from(given_records(self._corpus), allow_empty=True)
            index = ItemIndex.build(items, encoder=self.encoder)
            self._searcher = Searcher(index, self.scorer, self.method)
        found = self._searcher.search(texts, top_k, self.budget)
        found.check()
        return {
            query: {hit.id: hit.final_score for hit in hits}
            for query, hits in zip(texts, found, strict=True)
        }

    def _reranked(
        self, texts: Mapping[str, str], top_ranked: Mapping[str, list[str]], top_k: int
    ) -> dict[str, dict[str, float]]:
        documents = {row["id"]: row for row in self._corpus}
        answers: dict[str, dict[str, float]] = {}
        for query, text in texts.items():
            ids = top_ranked.get(query, [])
            if not ids:
                answers[query] = {}
                continue
            if unknown := [i for i in ids if i not in documents]:
                raise InputError(
                    f"query {query!r} is to rank the document {unknown[0]!r}, which is not in the "
                    "corpus: index all documents that are to be ranked"
                )
            given = [documents[i] for i in ids]
            found = rerank(text, given, self.budget, scorer=self.scorer, top_k=top_k)
            found.results.check()
            answers[query] = {ids[entry["corpus_id"]]: entry["score"] for entry in found}
        return answers


def _id(row: Mapping[str, Any], what: str) -> str:
    if not isinstance(found := row.get("id"), str):
        raise InputError(f"the {what} id {found!r:.80} is no text, as MTEB's are: give str(id)")
    return found


def _named(model: Any) -> str:
    """What tells a scorer or an encoder from others."""
    known = getattr(model, "fingerprint", None) or getattr(model, "name", None)
    return str(model) if isinstance(model, str | Path) else str(known or type(model).__name__)


def _text(row: Mapping[str, Any]) -> str:
    """A query with its instruction, in MTEB's order."""
    text = row.get("text")
    if not isinstance(text, str):
        raise InputError(f"query {row['id']!r} is {text!r:.80}: give a text, not a conversation")
    return f"{text} {row['instruction']}" if row.get("instruction") else text
