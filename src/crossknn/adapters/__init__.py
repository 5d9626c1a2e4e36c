"""Components for other frameworks: one module per framework, which imports it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from crossknn.errors import InputError
from crossknn.search.rerank import rerank
from crossknn.search.results import Hit
from crossknn.search.searcher import Budget

T = TypeVar("T")

PREFIX = "crossknn_"
"""Prefix of metadata keys that adapters add: the user's documents may have a key `score`."""

PREDICTED, SCORE = f"{PREFIX}predicted", f"{PREFIX}score"


def metadata_of(hit: Hit) -> dict[str, Any]:
    """Make the metadata of a returned document: the item's title and fields, of a passage also its
    document and place and, if it was not scored, `crossknn_predicted`."""
    metadata = ({"title": hit.title} if hit.title else {}) | {**hit.extra}
    if hit.passage is not None:
        metadata |= {"document": hit.id, "start": hit.passage.start, "end": hit.passage.end}
    return metadata | ({PREDICTED: True} if hit.predicted else {})


def text_of(hit: Hit) -> str:
    """Return the text for a language model: of a document, its best passage."""
    return hit.text if hit.passage is None else hit.passage.text


def budget_of(given: Any) -> Any:
    """Return a budget of `ck.rerank` or `Searcher.search`; frameworks save it as a mapping."""
    return Budget(**given) if isinstance(given, Mapping) else given


def rerank_documents(
    query: str,
    documents: Sequence[T],
    texts: Sequence[str | Mapping[str, str]],
    metadata_of: Callable[[T], Mapping[str, Any]] = lambda _: {},
    *,
    budget: Any,
    scorer: Any,
    top_k: int | None = None,
    embeddings: Sequence[Any] = (None,),
    query_embedding: Any = None,
    check: bool = False,
) -> Iterator[tuple[T, float, dict[str, Any]]]:
    """Yields documents, their scores and their new metadata, the best first; see `ck.rerank`.

    The n `embeddings` and `query_embedding` are used if every document has an embedding. With
    `check`, a failing scorer raises an error, because an evaluation must not measure predictions.
    """
    embedded = bool(documents) and all(embedding is not None for embedding in embeddings)
    ranked = rerank(
        query,
        texts,
        budget_of(budget),
        scorer=scorer,
        top_k=top_k,
        vectors=embeddings if embedded else None,
        query_vector=query_embedding if embedded else None,
    )
    if check:
        ranked.results.check()
    for entry in ranked:
        document = documents[entry["corpus_id"]]
        metadata = {**metadata_of(document)}
        metadata.pop(PREDICTED, None)  # an earlier reranker may have set it
        if "predicted" in entry:
            metadata[PREDICTED] = True
        yield document, entry["score"], metadata


def list_of(kind: type[T], given: Iterable[Any]) -> list[T]:
    """Return documents as a list; `InputError` unless all are of the framework's class."""
    if isinstance(given, kind) or not isinstance(given, Iterable):
        raise InputError(f"a {type(given).__name__} is no list: give a list of {kind.__name__}")
    entries = [*given]  # an iterator can be read only once
    for position, entry in enumerate(entries):
        if not isinstance(entry, kind):
            wrong = f"entry {position} is a {type(entry).__name__}"
            raise InputError(f"{wrong}: give a list of {kind.__name__}")
    return entries
