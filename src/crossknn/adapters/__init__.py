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
"""Prefix of metadata keys that adapters add, because the user may have a key such as `score`."""

PREDICTED, SCORE = f"{PREFIX}predicted", f"{PREFIX}score"


def metadata_of(hit: Hit) -> dict[str, Any]:
    """Make the metadata of a returned document: the item's title and fields and, if it was not
    scored, `crossknn_predicted`."""
    title = {"title": hit.title} if hit.title else {}
    return title | {**hit.extra} | ({PREDICTED: True} if hit.predicted else {})


def rerank_documents(
    query: str,
    documents: Sequence[T],
    texts: Sequence[str | Mapping[str, str]],
    metadata_of: Callable[[T], Mapping[str, Any]] = lambda _: {},
    *,
    budget: int | Budget | Mapping[str, Any] | None,
    scorer: Any,
    top_k: int | None = None,
    embeddings: Sequence[Any] = (None,),
    query_embedding: Any = None,
    check: bool = False,
) -> Iterator[tuple[T, float, dict[str, Any]]]:
    """Yields documents, their scores and their new metadata, the best first; see `ck.rerank`.

    Args:
        query, scorer, top_k: As of `ck.rerank`.
        documents: n of them, of the framework's class.
        texts: Of the documents (n), or mappings with `title` and `text`.
        metadata_of: Returns the metadata of a document.
        budget: Documents that are scored; None scores all. Or a `Budget`, also as the mapping that
            frameworks save.
        embeddings: Of the documents (n); they are used if each document has one.
        query_embedding: Of the query, by the encoder of the documents' embeddings.
        check: Raise `ScorerError` if a pair cannot be scored, which an evaluation must not measure.
    """
    embedded = all(embedding is not None for embedding in embeddings)
    ranked = rerank(
        query,
        texts,
        Budget(**budget) if isinstance(budget, Mapping) else budget,
        scorer=scorer,
        top_k=top_k,
        vectors=embeddings if embedded and documents else None,
        query_vector=query_embedding if embedded else None,
    )
    if check:
        ranked.results.check()
    for entry in ranked:
        document = documents[entry["corpus_id"]]
        metadata = {**metadata_of(document)}
        metadata.pop(PREDICTED, None)  # an earlier reranker may have predicted what was scored now
        if "predicted" in entry:
            metadata[PREDICTED] = True
        yield document, entry["score"], metadata


def of_kind(given: Iterable[Any], kind: type[T], example: str) -> list[T]:
    """Check that the entries are of the framework's class; `InputError` otherwise, or if `given` is
    a single one. `example` shows how one is made."""
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
