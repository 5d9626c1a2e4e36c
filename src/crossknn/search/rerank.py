"""Rerank given documents under a budget, like sentence-transformers' `CrossEncoder.rank`.

The documents become an index for one query, with BM25, vectors (given, or LSA of the texts), and a
retriever that ranks documents in the given order. Axes: n documents, d dimensions.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any, cast

import numpy as np

from crossknn.data.items import Items, items_from
from crossknn.data.passages import DOCUMENT, END, START, cut
from crossknn.data.records import Entries, Record, Records, given_records, is_container
from crossknn.errors import InputError
from crossknn.index.building import cutting_of
from crossknn.index.item_index import ItemIndex
from crossknn.index.vectors import check_vectors
from crossknn.methods import Method
from crossknn.retrievers.base import ItemPriors
from crossknn.retrievers.words import words
from crossknn.scorers.opening import as_scorer
from crossknn.search.results import Results, below
from crossknn.search.searcher import Budget, Searcher
from crossknn.types import FloatArray, IntArray, Progress, as_count, is_missing

EMBEDDING = "embedding"
ORDER = "order"
"""Name of the retriever that ranks documents in the given order."""
SECONDS_A_DOCUMENT, SECONDS_A_CHARACTER, OF_THE_TIME = 3e-4, 5e-7, 0.25
"""Estimated seconds of BM25 and LSA per text and per character, and the share of a deadline that
they may take; if they would take more, the search does without them."""
_opened = lru_cache(maxsize=2)(as_scorer)


class Reranked(list[dict[str, Any]]):
    """The answer of `rerank`; its `results` contain the costs and the reason for stopping."""

    def __init__(self, entries: Iterable[dict[str, Any]], results: Results) -> None:
        super().__init__(entries)
        self.results = results


def rerank(
    query: str,
    documents: Entries,
    budget: int | Sequence[int] | Budget | None = None,
    *,
    scorer: Any = None,
    top_k: int | None = None,
    return_documents: bool = False,
    vectors: FloatArray | Sequence[Sequence[float]] | None = None,
    query_vector: FloatArray | Sequence[float] | None = None,
    method: str | Method | None = None,
    passages: bool | int = False,
    seed: int = 0,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> Reranked:
    """Order documents by a cross-encoder's scores, computing at most `budget` scores.

    The answer has the best documents first: `corpus_id` is the position in `documents`, and `score`
    a raw logit. A document with `"predicted": True` was not scored: it comes after all scored
    documents, with an approximate score below theirs.

    >>> overlap = lambda pairs: [len(set(q.split()) & set(t.split())) for q, t in pairs]
    >>> rerank("sort a list", ["zip a file", "sort a list", "lock"], scorer=overlap, top_k=1)
    [{'corpus_id': 1, 'score': 3.0}]

    Args:
        query: A text.
        documents: n texts, or mappings with `text` and optionally `title` and `embedding`, in the
            order of retrieval, in any container that `read_items` accepts.
        budget: Number of documents to score, by default all, or of each scorer, or a `Budget`.
        scorer: As in `Searcher`; the bundled cross-encoder by default.
        top_k: Number of best documents to return; by default all.
        return_documents: Include the `text`, after the title if there is one.
        vectors: Document vectors (n, d); by default each `embedding`, or else LSA of the texts.
        query_vector: The query's vector (d,), from the encoder that made `vectors`.
        method: The search method; `order` is the retriever of the given order. By default `exact`
            if the budget covers all, or else `kriging` from the order, BM25 and the vectors.
        passages: Order documents by their best passage of at most so many tokens (200 for true);
            `start` and `end` are its place in the `text`. The budget then counts passages.
        seed, progress, cancel: As in `Searcher` and `Searcher.search`.
    """
    began, kept = time.monotonic(), None if top_k is None else as_count(top_k, "top_k")
    given, limits = _checked(query, documents, budget)
    if not given:
        return Reranked([], _no_results(query))
    several = scorer if isinstance(scorer, list | tuple) else [scorer]
    models = [_opened(each) if isinstance(each, str | Path | None) else each for each in several]
    whole, items, of = _items(given, passages, None if several[-1] is None else models[-1])
    limits = limits if _is_limited(limits) else replace(limits, per_query=len(items))
    most = 0 if limits.per_query is None else limits.calls[-1]
    if method is None and limits.deadline is None and len(items) <= most:
        method, models, limits = "exact", models[-1:], replace(limits, per_query=most)
    index = _index(items, of, given, limits, (vectors, query_vector), method == "exact")
    if limits.deadline is not None:  # building the index took a part of it
        limits = replace(limits, deadline=max(limits.deadline - time.monotonic() + began, 1e-3))
    searcher = _searcher(index, models, method, seed)
    results = searcher.search(query, len(items), limits, progress=progress, cancel=cancel)
    entries = _entries(results, items, of, given, whole, with_text=return_documents)
    return Reranked(entries[:kept], results)


def _no_results(query: str) -> Results:
    none: dict[str, Any] = {"hits": ([],), "errors": (None,), "method": "exact", "budget": 0}
    return Results(**none, queries=(query,), query_ids=("0",), stopped_by="budget")


def _is_limited(limits: Budget) -> bool:
    return any(each is not None for each in (limits.per_query, limits.seconds, limits.cost))


def _searcher(
    index: ItemIndex, models: Sequence[Any], method: str | Method | None, seed: int
) -> Searcher:
    of_first = method if len(models) == 1 else None
    searcher = Searcher(index, models[0], of_first or _method(index), seed=seed)
    if len(models) > 1:  # the others go on from what the cheapest finds in the given order
        searcher = Searcher(index, [searcher, *models[1:]], method, seed=seed)
    return searcher


def _checked(
    query: str, documents: Entries, budget: int | Sequence[int] | Budget | None
) -> tuple[list[Record], Budget]:
    if not isinstance(query, str):
        raise InputError(f"the query is {query!r:.80}; give one text")
    if not is_container(documents):
        raise InputError(f"the documents are {documents!r:.80}; give a list of texts or mappings")
    given = [*given_records(documents).rows]
    limits = budget if isinstance(budget, Budget) else Budget(per_query=budget)
    if limits.target_recall is not None:
        raise InputError("target_recall needs anchor queries, which given documents do not have")
    return given, limits


def _items(
    given: Sequence[Record], passages: bool | int, scorer: Any
) -> tuple[Items, Items, IntArray]:
    """Return the documents, the items (n,), which are documents or their passages, and the position
    (n,) of each item's document."""
    records = Records("the sequence", map(_text_of, given, count()))
    whole = items_from(records, allow_empty=True)
    cutting = cutting_of(passages, None, None if passages is False else scorer, None)
    if cutting is None:
        return whole, whole, np.arange(len(whole))
    items = cut(whole, cutting)
    of = np.array([int(str(passage[DOCUMENT])) for passage in items.extra], np.int64)
    return whole, items, of


def _index(
    items: Items,
    of: IntArray,
    given: Sequence[Record],
    limits: Budget,
    vectors: tuple[Any, Any],
    texts_only: bool,
) -> ItemIndex:
    """Build the index of the items of given documents (n,), with the vectors of the documents and
    of the query; with `texts_only`, without BM25 and LSA."""
    of_documents, of_query = vectors
    if of_documents is None:
        stored = _embeddings(given)
    else:
        stored = check_vectors(of_documents, len(given), None, "the vectors", half=True)
    if stored is None and of_query is not None:
        raise InputError("query_vector is given, but the documents have no vectors: give both")
    encode = None if of_query is None else lambda texts: np.asarray(of_query)[None]
    has_words = any(map(words, items.texts)) and _in_time(items.texts, limits.deadline)
    read = has_words and not texts_only
    index = ItemIndex.build(
        items,
        vectors=None if stored is None else stored[of],
        query_vectors=encode,
        bm25=read,
        lsa=None if read else 0,
    )
    index.add_retriever(ORDER, ItemPriors(-np.log1p(of)))
    return index


def _entries(
    results: Results,
    items: Items,
    of: IntArray,
    given: Sequence[Record],
    whole: Items,
    *,
    with_text: bool,
) -> list[dict[str, Any]]:
    """Return the entries of all documents, whose text is in `whole`, each with the place of its
    best passage; documents that are not in the results come last."""
    ranked = dict[int, tuple[int, float, bool]]()  # by document
    for hit in results[0]:
        ranked.setdefault(int(of[hit.position]), (hit.position, hit.final_score, hit.predicted))
    score = results[0][-1].final_score if results[0] else None
    for place in sorted({*range(len(given))} - ranked.keys()):
        score = 0.0 if score is None else below(score)
        ranked[place] = int(np.searchsorted(of, place)), score, True
    answer = []
    for place, (position, score, predicted) in ranked.items():
        entry: dict[str, Any] = {"corpus_id": place, "score": score}
        text, passage = _shown(given[place], whole.texts[place]), items.extra[position]
        if passage:  # blanks around a text are not scored, but are in the text as given
            blanks = text.find(whole.texts[place])
            entry |= {name: cast(int, passage[name]) + blanks for name in (START, END)}
        entry |= {"text": text} if with_text else {}
        answer.append(entry | ({"predicted": True} if predicted else {}))
    return answer


def _method(index: ItemIndex) -> str:
    """Choose the default method: in the given order if the index has no vectors."""
    if not index.vectors:
        return f"rerank(retriever={ORDER})"
    stages = [*index.retrievers, *filter(index.has_query_vectors, index.vectors)]
    return f"kriging(retriever={ORDER}, mean=hybrid({', '.join(stages)}))"


def _in_time(texts: Sequence[str], deadline: float | None) -> bool:
    """Whether the deadline leaves time to fit BM25 and LSA, besides scoring some documents."""
    if deadline is None:
        return True
    needed = SECONDS_A_DOCUMENT * len(texts) + SECONDS_A_CHARACTER * sum(map(len, texts))
    return needed <= deadline * OF_THE_TIME


def _text_of(document: Record, position: int) -> Record:
    """Return the title and text of a document, which are scored, with its position as id."""
    keys = {name: document.first_of([name]) for name in ("title", "text")}
    fields = {name: document.fields[key] for name, key in keys.items() if key is not None}
    return Record(fields, position, document.place)


def _shown(document: Record, scored: str) -> str:
    """Return the text as given; for a document with a title, the title and text as scored."""
    fields = _text_of(document, 0).fields
    text = fields["text"]
    return text if is_missing(fields.get("title")) and isinstance(text, str) else scored


def _embeddings(documents: Sequence[Record]) -> FloatArray | None:
    """Return the vectors (n, d) in the documents; None if they have none."""
    vectors = [document.fields.get(EMBEDDING) for document in documents]
    lacking = [position for position, vector in enumerate(vectors) if is_missing(vector)]
    if len(lacking) == len(vectors):
        return None
    if lacking:
        raise InputError(
            f"document {lacking[0]} has no {EMBEDDING!r}, but others have one: give it for all "
            "or none"
        )
    given = cast(FloatArray, vectors)
    return check_vectors(given, len(vectors), None, "the documents' embeddings", half=True)
