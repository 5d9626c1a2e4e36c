"""Making a score matrix file: dense exact scores of an index, to be replayed without a model.

A file is made of parts that may be added in any order: queries against every item, and items in
the query's place against every item. Both are paid row by row in `<file>.partial/`, so a run can
be killed anywhere and goes on where it was; a file is replaced in one step. What it holds is told
by fingerprints (keys `scorer`, `items_digest`, `query_digests`), so scores of something else are
refused, and those that are there are never paid again. One process at a time fills a file.
Format: `crossknn.index.stored`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from crossknn.checks import as_path
from crossknn.data.queries import Qrels, QuerySet
from crossknn.errors import InputError, ScorerError
from crossknn.index.beside import first_stages, graphs, labels_of, vectors
from crossknn.index.dense import DenseReport, score_rows
from crossknn.index.disk import alone
from crossknn.index.item_index import ItemIndex
from crossknn.index.storage import digest
from crossknn.index.stored import read_arrays, write_arrays
from crossknn.index.table import ScoreTable, unfinished
from crossknn.scorers.base import Scorer
from crossknn.types import FloatArray, Progress

DType: TypeAlias = Literal["float16", "float32"]

_ROWS = {"scores": "query_digests", "item_scores": "item_score_items"}
_WITH_QUERIES = ("scores", "n_anchors", "labels", "query_", "item_vectors", "first_", "graph_")
_OTHER_STREAM = 1  # of the seed: the items in the query's place are not the index's anchor items


class MatrixFile:
    """A score matrix file `path`, new or to be added to, of an index and a cross-encoder.

    `dtype` is that of the file, or float16 for a new one. `replace` drops what is there. `workers`
    threads share the scorer. Raises `InputError` if the file, or its unfinished scores, are of
    something else.
    """

    def __init__(
        self,
        path: str | Path,
        index: ItemIndex,
        scorer: Scorer,
        *,
        dtype: DType | None = None,
        replace: bool = False,
        workers: int = 1,
    ) -> None:
        self.path = as_path(path, "the score matrix")
        if self.path.is_dir():
            raise InputError(f"{self.path} is a folder; give a file for the score matrix")
        self.index, self.scorer, self.workers = index, scorer, workers
        self.partial = self.path.with_name(self.path.name + ".partial")
        self.replace = replace
        if self.path.suffix != ".npz":
            raise InputError(f"{path}: the name of a score matrix must end in .npz")
        if not self.path.absolute().parent.is_dir():
            raise InputError(f"{path}: there is no folder {self.path.parent}")
        if dtype not in (None, "float16", "float32"):
            raise InputError(f"dtype is {dtype!r}; it must be float16 or float32")
        self.items_digest = digest(index.items.texts)
        self.arrays: dict[str, Any] = {}
        self._wanted = dtype
        self._read()

    def add_queries(
        self,
        queries: QuerySet,
        *,
        anchors: int | None = None,
        qrels: Qrels | None = None,
        max_calls: int | None = None,
        progress: Progress | None = None,
    ) -> DenseReport:
        """Score `queries` (q) against every item: `scores` and all that belongs to the queries.

        The first `anchors` are anchor queries, half by default. `labels` are each query's first
        relevant item in `qrels`. Vectors, retrievers and item graphs are those of the index. The
        report is incomplete, and the file untouched, if `max_calls` did not suffice. Raises
        `ScorerError` if pairs cannot be scored, `InputError` if a score does not fit the dtype, or
        another process is filling the file.
        """
        q = len(queries)
        anchors = q // 2 if anchors is None else anchors
        if not 0 <= anchors < q:
            raise InputError(
                f"anchors is {anchors}, with {q} queries: it must lie between 0 and {q - 1}, "
                "because the rest are the test queries"
            )
        arrays: dict[str, Any] = {"n_anchors": np.int64(anchors)}
        if qrels is not None:
            arrays["labels"] = labels_of(queries, qrels, self.index.items.ids)
        arrays["query_ids"] = np.array(queries.ids)
        arrays["query_digests"] = np.array([_name(text) for text in queries.texts])
        arrays |= vectors(self.index, queries)
        with self._exclusive():
            known = self._paid("anchors") | self._in_file(
                "scores", arrays["query_digests"], queries.texts, "queries"
            )
            report, scores = self._score("queries", queries.texts, known, max_calls, progress)
            if scores is not None:
                arrays["scores"] = self._cast(scores, "query", queries.ids)
                arrays |= first_stages(self.index, queries) | graphs(self.index)
                kept = (key for key in self.arrays if not key.startswith(_WITH_QUERIES))
                self._write({key: self.arrays[key] for key in kept} | arrays, "queries")
        return report

    def add_items(
        self,
        count: int,
        *,
        seed: int = 0,
        max_calls: int | None = None,
        progress: Progress | None = None,
    ) -> DenseReport:
        """Score `count` random items, in the query's place, against every item: `item_scores`.

        The items come by `seed`, a larger `count` keeps those of a smaller one. Else as
        `add_queries` (itemCUR and fixedITEM; Yadav et al. 2022, A.2 and 3.4).
        """
        from crossknn.data.marks import item_as_query

        n = self.index.n
        if not 1 <= count <= n:
            raise InputError(f"the number of items to score is {count}; it must be 1 to {n}")
        chosen = np.random.default_rng([seed, _OTHER_STREAM]).permutation(n)[:count]
        texts = [item_as_query(self.index.items.texts[int(item)]) for item in chosen]
        ids = [self.index.items.ids[int(item)] for item in chosen]
        with self._exclusive():
            known = self._paid("item_scores") | self._in_file(
                "item_scores", chosen, texts, "items in the query's place"
            )
            report, scores = self._score("items", texts, known, max_calls, progress)
            if scores is not None:
                cast = self._cast(scores, "item", ids)
                added = {"item_score_items": chosen, "item_scores": cast}
                self._write(self.arrays | added, "items")
        return report

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """While scores are added: what others have added is read, and nobody else adds any."""
        with alone(self.partial):
            self._read()
            yield

    def _read(self) -> None:
        if self.path.exists() and not self.replace:
            self.arrays = self._checked(read_arrays(self.path), self._wanted)
        self.dtype = np.dtype(str(self.arrays.get("dtype", self._wanted or "float16")))

    def _checked(self, arrays: dict[str, Any], dtype: str | None) -> dict[str, Any]:
        if "scorer" not in arrays or "items_digest" not in arrays:
            raise InputError(self._other("scores of a cross-encoder that it does not name"))
        if str(arrays["items_digest"]) != self.items_digest:
            raise InputError(self._other("scores of other items"))
        if self.scorer.fingerprint is None or str(arrays["scorer"]) != self.scorer.fingerprint:
            raise InputError(self._other("scores of another cross-encoder"))
        if dtype not in (None, str(arrays["dtype"])):
            raise InputError(self._other(f"scores as {arrays['dtype']}, not {dtype}"))
        return arrays

    def _other(self, what: str) -> str:
        return f"{self.path} holds {what}: choose another file, or replace it (--replace)"

    def _paid(self, what: Literal["anchors", "item_scores"]) -> dict[str, FloatArray]:
        """Rows that the index has paid for, by the text in the query's place."""
        index, fingerprint = self.index, self.scorer.fingerprint
        if fingerprint is None or index.scorer_fingerprint != fingerprint:
            return {}
        if what == "anchors" and index.anchors is not None:
            return dict(zip(index.anchor_queries, index.anchors.scores, strict=True))
        if what == "item_scores" and index.item_scores is not None:
            texts = [index.items.texts[int(item)] for item in index.item_scores.items]
            return dict(zip(texts, index.item_scores.scores, strict=True))
        return {}

    def _in_file(
        self, key: str, rows: NDArray[Any], texts: Sequence[str], what: str
    ) -> dict[str, FloatArray]:
        """Rows that the file has under `key`, by text; `rows` (r,) is what tells those of `texts`.

        Raises `InputError` if it has others.
        """
        if key not in self.arrays:
            return {}
        stored = dict(zip(self.arrays[_ROWS[key]].tolist(), self.arrays[key], strict=True))
        if not set(stored) <= set(rows.tolist()):
            raise InputError(self._other(f"scores of other {what}"))
        pairs = zip(texts, rows.tolist(), strict=True)
        return {text: stored[row] for text, row in pairs if row in stored}

    def _score(
        self,
        part: str,
        texts: Sequence[str],
        known: Mapping[str, FloatArray],
        max_calls: int | None,
        progress: Progress | None,
    ) -> tuple[DenseReport, FloatArray | None]:
        """Pay what is missing of a part, each text once; its scores in the order of `texts`."""
        if max_calls is not None and max_calls < 0:
            raise InputError(f"max_calls is {max_calls}; it cannot be negative")
        folder, rows = self.partial / part, list(dict.fromkeys(texts))
        self._check_unfinished(folder, rows)
        table = ScoreTable.open(
            rows,
            self.index.n,
            folder=folder,
            items=self.items_digest,
            fingerprint=self.scorer.fingerprint,
            replace=self.replace,
        )
        everything = np.arange(self.index.n)
        table.fill((text, everything, row) for text, row in known.items())
        report = score_rows(
            table,
            self.scorer,
            self.index.items.texts,
            max_calls=max_calls,
            workers=self.workers,
            progress=progress,
        )
        if report.complete:
            where = {text: row for row, text in enumerate(rows)}
            return report, table.scores[[where[text] for text in texts]]
        if max_calls is None or report.calls < max_calls:
            missing = table.scores.size - table.paid()
            raise ScorerError(
                f"{missing} of {table.scores.size} pairs could not be scored; the others are kept "
                f"in {self.partial}, and the same command tries these again"
            )
        return report, None

    def _check_unfinished(self, folder: Path, texts: Sequence[str]) -> None:
        if self.replace or (old := unfinished(folder)) is None:
            return
        for what, same in (
            ("items", old["items"] == self.items_digest),
            ("queries", set(old["texts"]) <= set(texts)),
            ("cross-encoders", old["fingerprint"] in (None, self.scorer.fingerprint)),
        ):
            if not same:
                raise InputError(
                    f"{self.partial} holds unfinished scores of other {what}: choose another file, "
                    "or discard them (--replace)"
                )

    def _cast(self, scores: FloatArray, what: str, ids: Sequence[str]) -> FloatArray:
        with np.errstate(over="ignore"):
            cast = scores.astype(self.dtype)
        if len(beyond := np.argwhere(~np.isfinite(cast))):
            row, item = beyond[0]
            raise InputError(
                f"the score {scores[row, item]:g} of {what} {ids[row]!r} and item "
                f"{self.index.items.ids[int(item)]!r} is too large for float16: use float32 "
                f"(--dtype float32); what was scored is kept in {self.partial}"
            )
        return cast

    def _write(self, arrays: dict[str, Any], part: str) -> None:
        """Replace the file in one step, then forget the unfinished scores of `part`."""
        arrays = arrays | {
            "item_ids": np.array(list(self.index.items.ids)),
            "anchor_items": self.index.anchor_items,
            "items_digest": np.array(self.items_digest),
            "scorer": np.array(self.scorer.fingerprint or ""),
            "dtype": np.array(str(self.dtype)),
        }
        write_arrays(self.path, arrays, by=self.partial / "new.npz")
        self.arrays = arrays
        ScoreTable((), np.zeros((0, 0)), self.partial / part, 0).remove()


def _name(text: str) -> str:
    """Names a text by 64 bits."""
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()
