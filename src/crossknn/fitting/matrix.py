"""Score matrix files: dense exact scores of an index, to be replayed without a model.

The scores are collected into the index's store, so that a run can be stopped anywhere and no pair
is scored twice; complete rows are written to the file, which is replaced in one step. What it holds
is told by fingerprints (keys `scorer`, `items_digest`, `query_digests`); a file of something else
is refused. Format: `crossknn.index.stored`.

Axes: q queries, n items, a items in the query's place.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from crossknn.data.queries import Qrels, QuerySet, item_as_query
from crossknn.errors import InputError, ScorerError
from crossknn.files import as_path, digest
from crossknn.index.item_index import ItemIndex
from crossknn.index.stored import DUAL_ENCODER, narrowed, read_arrays, write_arrays
from crossknn.retrievers.specs import open_retriever
from crossknn.scorers.base import Scorer
from crossknn.scores.collect import CollectReport, Limits, collect, fingerprint_of
from crossknn.spec import Spec
from crossknn.types import NO_ITEM, FloatArray, IntArray, Pairs, Progress, Queries

logger = logging.getLogger(__name__)

DType: TypeAlias = Literal["float16", "float32"]

_ROWS = {"scores": "query_digests", "item_scores": "item_score_items"}
_WITH_QUERIES = ("scores", "n_anchors", "labels", "query_", "item_vectors", "first_", "graph_")
_OTHER_STREAM = 1  # of the seed: the items in the query's place are not the index's anchor items
_AT_ONCE = 64


class MatrixFile:
    """A score matrix file `path`, new or to be added to, of an index and a cross-encoder.

    `dtype` is that of the file, or float32 for a new one; `replace` drops what is there. Raises
    InputError if the file is of something else.
    """

    def __init__(
        self,
        path: str | Path,
        index: ItemIndex,
        scorer: Scorer,
        *,
        dtype: DType | None = None,
        replace: bool = False,
    ) -> None:
        self.path = as_path(path, "the score matrix")
        self.index, self.scorer = index, scorer
        if self.path.is_dir():
            raise InputError(f"{self.path} is a folder; give a file for the score matrix")
        if self.path.suffix != ".npz":
            raise InputError(f"{path}: the name of a score matrix must end in .npz")
        if not self.path.absolute().parent.is_dir():
            raise InputError(f"{path}: there is no folder {self.path.parent}")
        if dtype not in (None, "float16", "float32"):
            raise InputError(f"dtype is {dtype!r}; it must be float16 or float32")
        self._items_digest = digest(index.items.texts)
        self.arrays: dict[str, Any] = {}
        if self.path.exists() and not replace:
            self.arrays = self._checked(read_arrays(self.path), dtype)
        self.dtype = np.dtype(str(self.arrays.get("dtype", dtype or "float32")))

    def add_queries(
        self,
        queries: QuerySet,
        *,
        anchors: int | None = None,
        qrels: Qrels | None = None,
        limits: Limits | None = None,
        progress: Progress | None = None,
    ) -> CollectReport:
        """Score `queries` (q) against every item: `scores` and all that belongs to the queries.

        The first `anchors` are anchor queries, half by default; `labels` are each query's first
        relevant item in `qrels`. The file is untouched if the limits did not suffice. Raises
        ScorerError if pairs cannot be scored, InputError if a score does not fit the dtype.
        """
        q, anchors = len(queries), len(queries) // 2 if anchors is None else anchors
        if not 0 <= anchors < q:
            raise InputError(
                f"anchors is {anchors}, with {q} queries: it must lie between 0 and {q - 1}, "
                "because the rest are the test queries"
            )
        arrays: dict[str, Any] = {"n_anchors": np.int64(anchors)}
        if qrels is not None:
            arrays["labels"] = _labels(queries, qrels, self.index.items.ids)
        arrays["query_ids"] = np.array(queries.ids)
        names = arrays["query_digests"] = np.array([_name(text) for text in queries.texts])
        self._take("scores", names, queries.texts, "queries")
        arrays |= _vectors(self.index, queries)
        report, scores = self._score(queries.texts, "query", queries.ids, limits, progress)
        if scores is not None:
            graphs = {f"graph_{name}": g for name, g in self.index.graphs.items()}
            arrays |= {"scores": scores} | _retrievers(self.index, queries) | graphs
            kept = (key for key in self.arrays if not key.startswith(_WITH_QUERIES))
            self._write({key: self.arrays[key] for key in kept} | arrays)
        return report

    def add_items(
        self,
        count: int,
        *,
        seed: int = 0,
        limits: Limits | None = None,
        progress: Progress | None = None,
    ) -> CollectReport:
        """Score `count` random items, in the query's place, against every item: `item_scores`.

        The items come by `seed`, a larger `count` keeps those of a smaller one. Else as
        `add_queries` (itemCUR and fixedITEM; Yadav et al. 2022, A.2 and 3.4).
        """
        n, items = self.index.n, self.index.items
        if not 1 <= count <= n:
            raise InputError(f"the number of items to score is {count}; it must be 1 to {n}")
        chosen = np.random.default_rng([seed, _OTHER_STREAM]).permutation(n)[:count]
        texts = [item_as_query(items.texts[int(item)]) for item in chosen]
        ids = [items.ids[int(item)] for item in chosen]
        self._take("item_scores", chosen, texts, "items in the query's place")
        report, scores = self._score(texts, "item", ids, limits, progress)
        if scores is not None:
            self._write(self.arrays | {"item_score_items": chosen, "item_scores": scores})
        return report

    def _checked(self, arrays: dict[str, Any], dtype: str | None) -> dict[str, Any]:
        if "scorer" not in arrays or "items_digest" not in arrays:
            raise InputError(self._other("scores of a cross-encoder that it does not name"))
        if str(arrays["items_digest"]) != self._items_digest:
            raise InputError(self._other("scores of other items"))
        if self.scorer.fingerprint is None or str(arrays["scorer"]) != self.scorer.fingerprint:
            raise InputError(self._other("scores of another cross-encoder"))
        if dtype not in (None, str(arrays["dtype"])):
            raise InputError(self._other(f"scores as {arrays['dtype']}, not {dtype}"))
        return arrays

    def _other(self, what: str) -> str:
        return f"{self.path} holds {what}: choose another file, or replace it (--replace)"

    def _take(self, key: str, rows: Any, texts: Sequence[str], what: str) -> None:
        """Put the file's rows of `texts`, which `rows` (r,) tell, into the index's store.

        Scores in half precision are not put there. Raises InputError if the file has other rows.
        """
        if key not in self.arrays:
            return
        stored = {name: row for row, name in enumerate(self.arrays[_ROWS[key]].tolist())}
        if not set(stored) <= set(rows.tolist()):
            raise InputError(self._other(f"scores of other {what}"))
        everything, fingerprint = np.arange(self.index.n), self.scorer.fingerprint
        for text, name in zip(texts, rows.tolist(), strict=True):
            if self.dtype == np.float32 and name in stored and fingerprint is not None:
                pairs = Pairs(np.zeros_like(everything), everything)
                scores = self.arrays[key][stored[name]]
                self.index.scores.put(fingerprint, [text], self.index.items.texts, pairs, scores)

    def _score(
        self,
        texts: Sequence[str],
        what: str,
        ids: Sequence[str],
        limits: Limits | None,
        progress: Progress | None,
    ) -> tuple[CollectReport, FloatArray | None]:
        """Collect what is missing; the scores in the file's precision, if they are all there."""
        store, items = self.index.scores, self.index.items
        report = collect(store, self.scorer, texts, items.texts, limits=limits, progress=progress)
        if not report.complete:
            if report.stopped_by is None:
                raise ScorerError(
                    f"{report.failed} of {report.pairs} pairs could not be scored; the others are "
                    "kept in the index, and the same command tries these again"
                )
            return report, None
        scores = store.rows(fingerprint_of(self.scorer, store), texts, items.texts)
        with np.errstate(over="ignore"):
            cast = scores.astype(self.dtype)
        if len(beyond := np.argwhere(~np.isfinite(cast))):
            row, item = beyond[0]
            raise InputError(
                f"the score {scores[row, item]:g} of {what} {ids[row]!r} and item "
                f"{items.ids[int(item)]!r} is too large for float16: use float32 "
                "(--dtype float32); what was scored is kept in the index"
            )
        return report, cast

    def _write(self, arrays: dict[str, Any]) -> None:
        """Replace the file in one step."""
        self.arrays = arrays | {
            "item_ids": np.array(list(self.index.items.ids)),
            "anchor_items": self.index.anchor_items,
            "items_digest": np.array(self._items_digest),
            "scorer": np.array(self.scorer.fingerprint or ""),
            "dtype": np.array(str(self.dtype)),
        }
        write_arrays(self.path, self.arrays, by=self.path.with_name(self.path.name + ".part"))


def _vectors(index: ItemIndex, queries: QuerySet) -> dict[str, Any]:
    """`item_vectors` and `query_vectors` of the dual encoder; of fitted ones, by name."""
    found = dict[str, FloatArray]()
    for name in (DUAL_ENCODER, *index.fitted):
        end = "" if name == DUAL_ENCODER else f"_{name}"
        if name in index.vectors:
            found[f"item_vectors{end}"] = index.vectors[name]
        if name in index.vectors and index.has_query_vectors(name):
            found[f"query_vectors{end}"] = index.query_vectors(Queries(queries.texts), name)
    return {key: narrowed(values) for key, values in found.items()}


def _retrievers(index: ItemIndex, queries: QuerySet) -> dict[str, Any]:
    """`first_<name>` (q, n): scores of the retrievers whose vectors are not in the file."""
    found = {}
    for name in dict.fromkeys([*index.retrievers, *index.vectors]):
        if name == DUAL_ENCODER or name in index.fitted:
            continue
        stage, starts = open_retriever(index, Spec(name), seed=0), range(0, len(queries), _AT_ONCE)
        try:
            batches = [Queries(queries.texts[start : start + _AT_ONCE]) for start in starts]
            found[f"first_{name}"] = np.concatenate([narrowed(stage.scores(b)) for b in batches])
        except InputError as error:
            logger.warning("no retriever %s in the score matrix: %s", name, error)
    return found


def _labels(queries: QuerySet, qrels: Qrels, item_ids: Sequence[str]) -> IntArray:
    """Position of each query's first relevant item (grade above 0), -1 without one: (q,)."""
    position = {item: i for i, item in enumerate(item_ids)}
    judged = [qrels.get(query, {}) for query in queries.ids]
    if not any(judged):
        raise InputError("no query is judged in the qrels: do their ids agree?")
    relevant = (
        (position[item] for item, grade in found.items() if grade > 0 and item in position)
        for found in judged
    )
    return np.array([next(items, NO_ITEM) for items in relevant], dtype=np.int64)


def _name(text: str) -> str:
    """Names a text by 64 bits."""
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()
