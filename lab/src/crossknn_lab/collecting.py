"""Score matrices: all scores of some queries in a file, to replay searches without a model.

Axes: q queries, a items in the query's place, n items.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from crossknn.data.qrels import Qrels, given_qrels, judged
from crossknn.data.queries import ENTITY, MENTION_END, MENTION_START, QuerySet, Texts, query_set
from crossknn.errors import InputError, ScorerError
from crossknn.files import as_path, digest, new_file, translate_os_errors
from crossknn.index.item_index import ItemIndex
from crossknn.retrievers.specs import open_retriever
from crossknn.scorers.opening import as_scorer
from crossknn.scores.collect import CollectReport, Limits, collect, fingerprint_of
from crossknn.spec import Spec
from crossknn.types import NO_ITEM, FloatArray, IntArray, Progress, Queries
from crossknn_lab.stored import DUAL_ENCODER, read_arrays

logger = logging.getLogger(__name__)

_OTHER_STREAM = 1  # of the seed: the items in the query's place are not the index's anchor items


def collect_matrix(
    path: str | Path,
    index: ItemIndex,
    scorer: Any,
    queries: Texts,
    *,
    n_anchors: int | None = None,
    qrels: Qrels | None = None,
    item_scores: int = 0,
    seed: int = 0,
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> CollectReport:
    """Score queries (q) against every item, and write a score matrix file once all are scored.

    What was collected is returned. If the limits did not suffice, no file is written, and the same
    call goes on. Raises `InputError` if the file is something else or an option is out of range.

    Args:
        path: The file, `.npz`. One of the same items and cross-encoder is overwritten.
        index, scorer: The n items, and a cross-encoder or its name.
        queries: The q queries, with ids, as `read_queries` takes them.
        n_anchors: So many of the first queries are anchor queries; by default half.
        qrels: Judgements, kept in the file with their grades.
        item_scores: So many random items are scored with every item, too, as if they were queries;
            drawn by `seed`; a larger number keeps those of a smaller one (itemCUR and fixedITEM).
        limits, progress: As for `collect`.
    """
    index.check_compact("a score matrix")
    file, opened = as_path(path, "the score matrix"), as_scorer(scorer)
    queries = query_set(queries)
    items, q = index.items, len(queries)
    first = q // 2 if n_anchors is None else n_anchors
    _check_number("n_anchors", first, q - 1)
    _check_number("item_scores", item_scores, index.n)
    fingerprint = fingerprint_of(opened, index.scores)
    about = {"scorer": np.array(fingerprint), "items_digest": np.array(digest(items.texts))}
    _check_file(file, about)
    arrays: dict[str, Any] = about | {"n_anchors": np.int64(first)}
    if qrels is not None:
        arrays["qrels"] = _positions(queries, given_qrels(qrels), items.ids)
    arrays |= {"query_ids": np.array(queries.ids), "item_ids": np.array(list(items.ids))}
    chosen = np.random.default_rng([seed, _OTHER_STREAM]).permutation(index.n)[:item_scores]
    texts = [*queries.texts, *(item_as_query(items.texts[int(item)]) for item in chosen)]
    how: dict[str, Any] = {"limits": limits, "progress": progress}
    report = collect(index.scores, opened, texts, items.texts, **how)
    if report.stopped_by:
        return report
    if not report.complete:
        raise ScorerError(
            f"{report.failed} of {report.pairs} pairs could not be scored; the others are stored: "
            "run the same command again to retry these"
        )
    rows = index.scores.rows(fingerprint, texts, items.texts)
    arrays |= {"scores": rows[:q], "anchor_items": index.anchor_items} | _cheap(index, queries)
    if item_scores:
        arrays |= {"item_score_items": chosen, "item_scores": rows[q:]}
    with translate_os_errors(file, "the score matrix"), new_file(file.parent, file.name) as written:
        np.savez_compressed(written, **arrays)  # a kill leaves the file as it was, or whole
    return report


def item_as_query(item: str) -> str:
    """Use an item as a query: `[Ms] title [Me] description`; an unmarked text is unchanged (ANNCUR,
    A.2)."""
    title, mark, description = item.partition(ENTITY)
    parts = (MENTION_START, title, MENTION_END, description)
    marked = " ".join(part.strip() for part in parts if part.strip())
    return marked if mark and title.strip() else item


def _check_number(name: str, value: int, most: int) -> None:
    if not 0 <= value <= most:
        raise InputError(f"{name} is {value}; it must be 0 to {most}")


def _check_file(file: Path, about: Mapping[str, Any]) -> None:
    """`InputError` unless a score matrix of these items and this cross-encoder can be written."""
    if file.suffix != ".npz" or file.is_dir() or not file.absolute().parent.is_dir():
        raise InputError(f"{file}: the score matrix must be an .npz file in an existing folder")
    if file.exists():
        known = read_arrays(file)
        if any(str(known.get(key)) != str(value) for key, value in about.items()):
            raise InputError(
                f"{file} holds no scores of these items by this cross-encoder: name another file, "
                "or remove it"
            )


def _cheap(index: ItemIndex, queries: QuerySet) -> dict[str, Any]:
    """`item_vectors` and `query_vectors` of the dual encoder; those of fitted ones, by name; and
    `first_<name>` (q, n): the scores of the other retrievers.
    """
    found, every = dict[str, Any](), Queries(queries.texts)
    own = [name for name in (DUAL_ENCODER, *index.fitted) if name in index.vectors]
    for name in own:
        end = "" if name == DUAL_ENCODER else f"_{name}"
        found[f"item_vectors{end}"] = _narrowed(index.vectors[name])
        if index.has_query_vectors(name):
            found[f"query_vectors{end}"] = _narrowed(index.query_vectors(every, name))
    for name in (name for name in (*index.retrievers, *index.vectors) if name not in own):
        try:
            found[f"first_{name}"] = _narrowed(open_retriever(index, Spec(name)).scores(every))
        except InputError as error:
            logger.warning("no retriever %s in the score matrix: %s", name, error)
    return found


def _narrowed(values: FloatArray) -> FloatArray:
    """As float16 if that holds them: vectors and cheap scores need no more."""
    holds = np.abs(values).max(initial=0) <= np.finfo(np.float16).max
    return values.astype(np.float16 if holds else np.float32)


def _positions(queries: QuerySet, qrels: Qrels, item_ids: Sequence[str]) -> IntArray:
    """A row for each judgement: the query's position, the item's (-1: none of them), the grade."""
    position = {item: i for i, item in enumerate(item_ids)}
    rows = [
        (query, position.get(item, NO_ITEM), grade)
        for query, found in enumerate(judged(qrels, queries.ids))
        for item, grade in found.items()
    ]
    return np.array(rows, dtype=np.int64)
