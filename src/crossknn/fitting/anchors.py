"""Whole rows of exact scores: anchors of an index (R_anc), items in the query's place, matrices.

The scores are collected into the index's store, where every search and fit finds them, so that a
run can be stopped anywhere and no pair is scored twice. Complete rows become the artifacts
"anchors" (ANNCUR and ADACUR; Yadav et al. 2022, 2.2) and "item_scores" (itemCUR and fixedITEM, A.2
and 3.4), arrays that are mapped when the index is opened; or a score matrix file, to be replayed
without a model (format: `crossknn.index.stored`).

Axes: k_q anchor queries, q queries, a items in the query's place, n items.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from crossknn.data.queries import (
    Qrels,
    QuerySet,
    Texts,
    given_qrels,
    item_as_query,
    judged,
    query_set,
)
from crossknn.errors import InputError, ScorerError
from crossknn.files import as_path, digest, new_file, translate_os_errors
from crossknn.index.item_index import ItemIndex
from crossknn.index.parts import ANCHORS, ITEM_SCORES
from crossknn.index.stored import DUAL_ENCODER, read_arrays
from crossknn.retrievers.specs import open_retriever
from crossknn.scorers import as_scorer
from crossknn.scores.collect import CollectReport, Limits, collect, fingerprint_of
from crossknn.spec import Spec
from crossknn.types import NO_ITEM, Artifact, FloatArray, IntArray, Progress, Queries

logger = logging.getLogger(__name__)

_CHUNK = 8_192
_OTHER_STREAM = 1  # of the seed: the items in the query's place are not the index's anchor items


def collect_anchors(
    index: ItemIndex,
    scorer: Any,
    queries: Texts,
    *,
    limits: Limits | None = None,
    replace: bool = False,
    progress: Progress | None = None,
) -> CollectReport:
    """Score training queries with every item, and keep the complete rows as anchors of the index.

    Anchors that the index has are kept. After an interruption, the same call resumes.

    Args:
        index: The n items.
        scorer: A cross-encoder or its name (Ray needs a name).
        queries: Texts (k_q); they cost k_q * n calls, less what the store has.
        limits, progress: As for `collect`.
        replace: Drop anchors that other cross-encoders have scored, which are kept beside these by
            default.

    Returns:
        How many pairs were known, scored and failed, and what stopped it.

    Raises:
        InputError: As `collect`, or the index has anchors of a cross-encoder without a name.
        ScorerError: As `collect`.
    """
    texts = check_texts(queries, "anchor")
    how: dict[str, Any] = {"limits": limits, "progress": progress}
    return _collect_rows(index, scorer, ANCHORS, texts, replace=replace, **how)


def collect_item_scores(
    index: ItemIndex,
    scorer: Any,
    positions: IntArray,
    *,
    limits: Limits | None = None,
    replace: bool = False,
    progress: Progress | None = None,
) -> CollectReport:
    """Score some items, as if they were queries, with every item: what `itemcur` and `fixeditem`
    need (ANNCUR, section 3.2).

    Args:
        index: The n items.
        scorer: A cross-encoder or its name (Ray needs a name).
        positions: Positions (a,) of the items in the query's place; they cost a * n calls.
        limits, progress: As for `collect`.
        replace: Drop scores of other cross-encoders, which are kept beside these by default.

    Returns:
        As of `collect_anchors`.

    Raises:
        InputError: As `collect_anchors`.
        ScorerError: As `collect_anchors`.
    """
    texts = [item_as_query(index.items.texts[int(position)]) for position in positions]
    how: dict[str, Any] = {"limits": limits, "progress": progress}
    return _collect_rows(index, scorer, ITEM_SCORES, texts, positions, replace=replace, **how)


def collect_matrix(
    path: str | Path,
    index: ItemIndex,
    scorer: Any,
    queries: Texts,
    *,
    n_anchors: int | None = None,
    qrels: Qrels | None = None,
    item_scores: int = 0,
    replace: bool = False,
    seed: int = 0,
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> CollectReport:
    """Score queries (q) against every item, and write a score matrix file once all are scored.

    Args:
        path: The file, `.npz`. One of the same items and cross-encoder is overwritten.
        index: The n items.
        scorer: A cross-encoder or its name (Ray needs a name).
        queries: The q queries, with ids, as `read_queries` takes them.
        n_anchors: So many of the first queries are anchor queries; by default half.
        qrels: Judgements, kept in the file with their grades.
        item_scores: So many random items are scored with every item, too, as if they were queries;
            a larger number keeps those of a smaller one (itemCUR and fixedITEM).
        replace: Overwrite a file of other items or another cross-encoder.
        seed: Draws the items of `item_scores`.
        limits, progress: As for `collect`.

    Returns:
        What was collected. If the limits did not suffice, no file is written, and the same call
        goes on.

    Raises:
        InputError: The file is something else, or an option is out of range.
        ScorerError: Pairs cannot be scored.
    """
    index.check_compact("a score matrix")
    file, opened = as_path(path, "the score matrix"), as_scorer(scorer)
    queries = query_set(queries)
    items, q = index.items, len(queries)
    first = q // 2 if n_anchors is None else n_anchors
    for name, value, most in (("n_anchors", first, q - 1), ("item_scores", item_scores, index.n)):
        if not 0 <= value <= most:
            raise InputError(f"{name} is {value}; it must be 0 to {most}")
    about = {
        "scorer": np.array(fingerprint_of(opened, index.scores)),
        "items_digest": np.array(digest(items.texts)),
    }
    _check_file(file, about, replace)
    arrays: dict[str, Any] = about | {"n_anchors": np.int64(first)}
    if qrels is not None:
        arrays["qrels"] = _positions(queries, given_qrels(qrels), items.ids)
    arrays |= {"query_ids": np.array(queries.ids), "item_ids": np.array(list(items.ids))}
    chosen = np.random.default_rng([seed, _OTHER_STREAM]).permutation(index.n)[:item_scores]
    texts = [*queries.texts, *(item_as_query(items.texts[int(item)]) for item in chosen)]
    how: dict[str, Any] = {"limits": limits, "source": named(scorer), "progress": progress}
    report = collect(index.scores, opened, texts, items.texts, **how)
    if report.stopped_by:
        return report
    if not report.complete:
        raise ScorerError(
            f"{report.failed} of {report.pairs} pairs could not be scored; the others are stored: "
            "run the same command again to retry these"
        )
    rows = index.scores.rows(str(about["scorer"]), texts, items.texts)
    arrays |= {"scores": rows[:q], "anchor_items": index.anchor_items} | _cheap(index, queries)
    arrays |= {f"graph_{name}": graph for name, graph in index.graphs.items()}
    if item_scores:
        arrays |= {"item_score_items": chosen, "item_scores": rows[q:]}
    with (
        translate_os_errors(file, "the score matrix"),
        new_file(file.parent, file.name) as written,
    ):
        np.savez_compressed(written, **arrays)
    return report


def named(scorer: Any) -> str | Path | None:
    """What Ray's workers can open: the cross-encoder's name or folder, not an object."""
    return scorer if isinstance(scorer, str | Path) else None


def check_texts(queries: Texts, kind: str) -> list[str]:
    """The different texts; `InputError` for what is no container of queries."""
    if isinstance(queries, str):
        raise InputError(f"{kind} queries must be a list of texts, not one text")
    if not isinstance(queries, Sequence) or not all(
        isinstance(q, str) and q.strip() for q in queries
    ):
        queries = query_set(queries).texts
    return list(dict.fromkeys(map(str, queries)))


def fit_scales(index: ItemIndex) -> None:
    """Fit the scales of the index's own vectors to the anchors, where there are any.

    A scale brings exact scores to the mean and standard deviation of inner products (AXN A.2).
    Vectors that the queries have none beside get no scale.
    """
    index = index.snapshot()
    for known in index.each(ANCHORS):
        scales = _scales(index, known.arrays["scores"], list(known.arrays["queries"]))
        index.put_artifact(ANCHORS, {**known.meta, "scales": scales}, known.arrays)


def _collect_rows(
    index: ItemIndex,
    scorer: Any,
    name: str,
    texts: Sequence[str],
    positions: IntArray | None = None,
    *,
    replace: bool,
    **how: Any,
) -> CollectReport:
    if not len(texts):
        raise InputError("there are no texts to score the items against")
    opened = as_scorer(scorer)
    index = index.for_scorer(opened.fingerprint)
    index.check_compact("collecting rows of scores")
    items, fingerprint = index.items.texts, fingerprint_of(opened, index.scores)
    if replace:
        index.drop_of_others(name)
    before = _known_rows(index, name, opened.fingerprint, replace)
    if before is not None and before.meta.get("added"):  # its rows lack scores of later items
        texts = [*before.arrays["queries"], *texts]
        if positions is not None:
            positions = np.concatenate([before.arrays["items"], positions])
    report = collect(index.scores, opened, texts, items, source=named(scorer), **how)
    known = _known_rows(index, name, opened.fingerprint, replace)  # others may have added to them
    old = {} if known is None or known.meta.get("added") else known.arrays
    own = dict.fromkeys(old.get("queries", ()))
    new = {text: row for row, text in enumerate(texts) if text not in own}
    rows = index.scores.rows(fingerprint, [*new], items)
    done = np.flatnonzero(np.isfinite(rows).all(axis=1))
    if not len(done):
        return report
    arrays: dict[str, Any] = {"queries": [*own, *np.array([*new])[done].tolist()]}
    arrays["scores"] = np.vstack([old["scores"], rows[done]]) if old else rows[done]
    meta: dict[str, Any] = {"fingerprint": opened.fingerprint}
    if positions is None:
        meta["scales"] = _scales(index, arrays["scores"], arrays["queries"])
    else:
        added = np.asarray(positions, np.int64)[[*new.values()]][done]
        arrays["items"] = np.concatenate([old.get("items", added[:0]), added])
    index.put_artifact(name, meta, arrays)
    return report


def _known_rows(index: ItemIndex, name: str, own: str | None, replace: bool) -> Artifact | None:
    """This cross-encoder's rows there are now, also those of other processes."""
    known = index.newest("artifacts", name)
    if known is None or known.meta["fingerprint"] != own or (replace and own is None):
        return None
    if own is None:
        raise InputError(
            f"the {name} of the index are of a cross-encoder without a name, and so is this one: "
            "name it, discard them with replace=True (--replace), or use an index of its own"
        )
    return known


def _scales(
    index: ItemIndex, rows: FloatArray, queries: Sequence[str]
) -> dict[str, tuple[float, float]]:
    """(alpha, beta) by name of the index's own vectors; "center" only centers."""
    mean, std = _moments(np.asarray(row) for row in rows)
    found = {"center": (mean, 1.0)}
    for name in (name for name in index.vectors if name not in index.fitted):
        try:
            vectors = index.query_vectors(Queries(queries), name)
        except InputError as error:
            logger.info("no scale for the vectors %s: %s", name, error)
            continue
        items = index.vectors[name]
        starts = range(0, len(items), _CHUNK)
        center, spread = _moments(vectors @ items[start : start + _CHUNK].T for start in starts)
        if std > 0 and spread > 0:
            beta = spread / std
            found[name] = mean - center / beta, beta
    return found


def _moments(parts: Iterable[FloatArray]) -> tuple[float, float]:
    """Mean and standard deviation of values that come in parts."""
    found = [(p.size, p.mean(dtype=np.float64), p.var(dtype=np.float64)) for p in parts]
    sizes, means, variances = np.transpose(found)
    mean = np.average(means, weights=sizes)
    return float(mean), math.sqrt(np.average(variances + (means - mean) ** 2, weights=sizes))


def _check_file(file: Path, about: Mapping[str, Any], replace: bool) -> None:
    """`InputError` unless a score matrix of these items and this cross-encoder can be written."""
    if file.suffix != ".npz" or file.is_dir() or not file.absolute().parent.is_dir():
        raise InputError(f"{file}: the score matrix must be an .npz file in an existing folder")
    if file.exists() and not replace:
        known = read_arrays(file)
        if any(str(known.get(key)) != str(value) for key, value in about.items()):
            raise InputError(
                f"{file} holds no scores of these items by this cross-encoder: name another file, "
                "or replace it (--replace)"
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
