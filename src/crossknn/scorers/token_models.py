"""Cross-encoders, dual encoders and late-interaction models that read token ids.

A `TokenModel` turns token ids into scores, vectors, or states; this module makes batches, cuts long
texts and counts the cut ones. `OnnxModel`, the default, runs on CPUs without torch. Axes: m
queries, n items, c candidates, t states of a text, d dimensions.
"""

from __future__ import annotations

import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from crossknn.errors import InputError, ScorerError
from crossknn.linalg import available_threads
from crossknn.models.folder import (
    COMPARE_MODEL,
    COMPARED,
    INPUTS,
    ITEM_MODEL,
    MANIFEST,
    OUTPUTS,
    TOKENIZER,
    content_hash,
    read_manifest,
    refusing,
)
from crossknn.models.tokens import (
    Encoding,
    Row,
    Tokenizer,
    TokenModel,
    Window,
    checked_rows,
    padded,
    token_batches,
)
from crossknn.scorers.streaming import BatchedScorer, Call, excerpt, out_of_memory
from crossknn.types import NO_ITEM, FloatArray, IntArray, Progress, States, as_count

Made = TypeVar("Made")

_PAIRS_AT_ONCE = 1024
_PAIRS_AT_ONCE_IN_TIME = 64  # when there is a deadline, because tokenizing takes time, too
_TEXTS_AT_ONCE = 4096


class _TokenReader:
    truncated = 0

    def __init__(self, model: TokenModel) -> None:
        self.runtime, self.max_length = model, model.encoding.window.max_length
        self._lock = threading.Lock()

    @cached_property
    def fingerprint(self) -> str:
        """A text that changes whenever scores or vectors may change; computed on first use."""
        return self.runtime.fingerprint

    def _count(self, rows: Sequence[Row]) -> None:
        with self._lock:
            self.truncated += sum(row.cut for row in rows)


class TokenScorer(_TokenReader, BatchedScorer):
    """Scores pairs, sorted by length within windows of a thousand, so that a caller who stops early
    still gets the first pairs. If a pair is too long its longer text is cut first, as in training.
    """

    def __init__(self, model: TokenModel) -> None:
        BatchedScorer.__init__(self, model.name)
        super().__init__(model)
        self.workers = model.workers
        self.largest = 1 if self.workers else 0  # for `rounds`: workers share even a few pairs

    def _batches(self, call: Call) -> Iterator[IntArray]:
        at_once = _PAIRS_AT_ONCE_IN_TIME if call.deadline.limited else _PAIRS_AT_ONCE
        for window in call.slices(at_once):
            rows = self.runtime.encoding.pairs(call.pairs.take(window), call.queries, call.items)
            call.prepared = dict(zip(window.tolist(), rows, strict=True))
            lengths = np.array([len(r.ids) if isinstance(r, Row) else 1 for r in rows], np.int64)
            call.costs[window] = lengths
            each = -(-int(lengths.sum()) // max(1, self.workers))  # some for each worker
            size = min(each, self.runtime.tokens_per_run)
            batches = token_batches(lengths, size, self.runtime.one_width)
            # Start with the largest batches, so that all workers end at about the same time.
            for batch in sorted(batches, key=lambda batch: -int(lengths[batch].sum())):
                yield window[batch]

    def _run(self, call: Call, positions: IntArray) -> FloatArray:
        rows = checked_rows([call.prepared[position] for position in positions.tolist()])
        logits = self.runtime.read(rows)[0]
        self._count(rows)
        return logits


class TextReader(_TokenReader, ABC, Generic[Made]):
    """Encodes single texts; those longer than `max_length` are cut at the end."""

    def __init__(self, model: TokenModel) -> None:
        super().__init__(model)
        self.name, self.dimensions = model.name, model.dimensions

    def encode_queries(self, texts: Sequence[str]) -> Made:
        """Encode queries."""
        return self._encode(texts, "query", None)

    def encode_items(self, texts: Sequence[str], progress: Progress | None = None) -> Made:
        """Encode items."""
        return self._encode(texts, "item", progress)

    @abstractmethod
    def _encode(self, texts: Sequence[str], what: str, progress: Progress | None) -> Made: ...

    def _read(
        self, texts: Sequence[str], what: str, progress: Progress | None
    ) -> Iterator[tuple[IntArray, list[FloatArray]]]:
        model, done = self.runtime, 0
        for start in range(0, len(texts), _TEXTS_AT_ONCE):
            window = texts[start : start + _TEXTS_AT_ONCE]
            encoded = model.encoding.texts(window, queries=what == "query")
            rows = checked_rows(encoded, f"{what} {{}}: ", start)
            self._count(rows)
            lengths = np.array([len(row.ids) for row in rows], dtype=np.int64)
            for batch in token_batches(lengths, model.tokens_per_run, model.one_width):
                yield start + batch, model.read([rows[r] for r in batch], what == "query")
                done += len(batch)
                if progress:
                    progress(done, len(texts))


class TokenEncoder(TextReader[FloatArray]):
    """Encodes single texts as vectors of `dimensions` d numbers: texts (m) -> (m, d) float32."""

    def _encode(self, texts: Sequence[str], what: str, progress: Progress | None) -> FloatArray:
        vectors = np.empty((len(texts), self.dimensions), dtype=np.float32)
        for positions, [values] in self._read(texts, what, progress):
            vectors[positions] = values
        check_finite(vectors, texts, what, f"the model {self.name}")
        return vectors


class LateInteractionScorer(TextReader[States]):
    """Encodes a text as states, one or several vectors (CMC, Poly-encoder, Sum-of-Max, Deformer,
    MixEncoder), float16 for items, and compares the states of a query with those of its candidates.

    `kind` names the model; `joint`: a candidate's score depends on the other candidates;
    `dimensions` is the length of each vector.
    """

    def __init__(self, model: TokenModel) -> None:
        super().__init__(model)
        self.kind, self.joint = model.late_kind, model.joint

    def _encode(self, texts: Sequence[str], what: str, progress: Progress | None) -> States:
        dtype = np.float32 if what == "query" else np.float16
        states: list[FloatArray] = [np.empty((0, self.dimensions), dtype)] * len(texts)
        for positions, [values, masks] in self._read(texts, what, progress):
            with np.errstate(over="ignore"):  # infinite in half precision: refused below
                values = values.astype(dtype)
            for position, rows, mask in zip(positions.tolist(), values, masks, strict=True):
                states[position] = rows[mask]
        sums = np.array([rows.sum(dtype=np.float64) for rows in states])
        check_finite(sums[:, None], texts, what, f"the model {self.name}")
        starts = np.cumsum([0, *map(len, states)], dtype=np.int64)
        return States(np.concatenate([np.empty((0, self.dimensions), dtype), *states]), starts)

    def compare(self, queries: States, items: States, lists: IntArray) -> FloatArray:
        """Compute scores (m, c) float32 of m queries with c candidates each: `lists` (m, c) holds
        the candidates' positions in `items`, and `NO_ITEM` gets -inf. To fit into `bytes_at_once`,
        queries are compared in groups, and lists are split unless the model is joint."""
        scores = np.full(lists.shape, -np.inf, np.float32)
        t = sum(int(states.counts.max(initial=1)) for states in (queries, items))
        # Bytes per candidate in the largest model: 14 arrays (t, d) and 24 (t, t), of 4 bytes.
        each = 4 * t * (14 * self.dimensions + 24 * t)
        width = lists.shape[1] if self.joint else self.runtime.bytes_at_once // each
        width = max(1, min(width, lists.shape[1]))
        height = max(1, self.runtime.bytes_at_once // (width * each))
        for start in range(0, len(lists), height):
            rows = np.arange(start, min(start + height, len(lists)))
            columns = np.flatnonzero((lists[rows] != NO_ITEM).any(axis=0))
            for first in range(0, len(columns), width):
                place = np.ix_(rows, columns[first : first + width])
                states = (*queries.padded(rows), *items.padded(lists[place]))
                try:
                    scores[place] = self.runtime.compare(*states)
                except Exception as error:  # the frameworks' own classes share no base
                    if not out_of_memory(error):
                        raise
                    raise InputError(
                        f"{self.name} ({self.kind}) has not enough memory to compare {width:,} "
                        "candidates at once: use a smaller depth"
                    ) from error
        for row, column in np.argwhere(~np.isfinite(scores) & (lists != NO_ITEM))[:1]:
            raise ScorerError(
                f"the model {self.name} gave item {lists[row, column]} the score "
                f"{scores[row, column]} for query {row}"
            )
        return scores


def check_finite(vectors: FloatArray, texts: Sequence[str], what: str, who: str) -> None:
    """Raise ScorerError naming the first text whose vector (d,) is not finite."""
    for wrong in np.flatnonzero(~np.isfinite(vectors).all(axis=1))[:1].tolist():
        raise ScorerError(
            f"{who} gave a vector that is not finite for {what} {wrong} {excerpt(texts[wrong])}"
        )


class OnnxModel:
    """Opens and checks a model in an ONNX folder (`docs/reference/formats.md`); a `TokenModel`,
    which many threads may use. An exported late-interaction model keeps its fingerprint unless its
    files change.

    Args:
        folder, kind: The folder; "cross-encoder", "dual-encoder" or "late-interaction".
        threads: number of cores, by default all. A cross-encoder runs one batch per core
            (`workers`), which is faster; other models run one batch on all cores.
        max_length: a smaller limit in tokens than the model's own.
    """

    bytes_at_once = 256 << 20
    tokens_per_run = 512
    one_width = True  # on a CPU a further run costs as much as 8 tokens: less than padding

    def __init__(
        self,
        folder: str | Path,
        kind: str,
        *,
        threads: int | None = None,
        max_length: int | None = None,
    ) -> None:
        self._folder, paired = Path(folder), kind == "cross-encoder"
        threads = available_threads() if threads is None else as_count(threads, "threads")
        self._manifest = read_manifest(self._folder, kind)
        self.name, self._pad = self._field("name", str), self._field("pad_token_id", int)
        self.workers = threads if paired and threads > 1 else 0
        self._threads = 1 if paired else threads
        self.dimensions = 0 if paired else self._field("dimensions", int)
        self.late_kind = self._field("head", str) if kind == "late-interaction" else ""
        self.joint = bool(self.late_kind) and self._manifest.get("joint") is not False
        self.encoding = self._encoding(paired, max_length)
        self.fingerprint = self._fingerprint(kind)
        graphs = [self._open(file, outputs) for file, outputs in OUTPUTS[kind].items()]
        self._towers, self._compare = [graphs[0]], graphs[-1]
        if not paired and (self._folder / ITEM_MODEL).exists():
            self._towers.append(self._open(ITEM_MODEL, next(iter(OUTPUTS[kind].values()))))

    def read(self, rows: Sequence[Row], queries: bool = True) -> list[FloatArray]:
        tower = self._towers[0 if queries else -1]
        outputs: list[FloatArray] = tower.run(
            None, padded(rows, self._pad, self.encoding.window.max_length)
        )
        return outputs

    def compare(self, *states: Any) -> FloatArray:
        scores: FloatArray = self._compare.run(None, dict(zip(COMPARED, states, strict=True)))[0]
        return scores

    def _fingerprint(self, kind: str) -> str:
        manifest, limit = self._manifest, self.encoding.window.max_length
        content = content_hash(self._folder, manifest if self.late_kind else None)
        of_export = manifest.get("content"), manifest["max_length"]
        if manifest.get("weights") and of_export == (content, limit):
            return str(manifest["weights"])
        prefixes = list(self.encoding.prefixes)
        return (
            f"{kind}:{self.name}@{self._field('revision', str)}|content={content}|"
            f"{self._field('precision', str)}|max_length={limit}"
            + (f"|prefixes={json.dumps(prefixes)}" if any(prefixes) else "")
        )

    def _encoding(self, paired: bool, max_length: int | None) -> Encoding:
        tokenizer, own = Tokenizer.load(self._folder / TOKENIZER), self._field("max_length", int)
        shortest = tokenizer.pair.n_special + 2 if paired else tokenizer.single.n_special + 1
        if max_length in (None, own):
            names = {"max_length", "query_length", "item_length"} & self._manifest.keys()
            window = Window(**{name: self._field(name, int) for name in names})
        elif type(max_length) is int and shortest <= max_length <= own:
            window = Window(max_length=max_length)
        else:
            raise InputError(
                f"max_length must be from {shortest} to {own} for {self.name}, got {max_length!r}"
            )
        prefixes = [str(self._manifest.get(f"{side}_prefix") or "") for side in ("query", "item")]
        marked = self._manifest.get("marked") is not False
        return Encoding(tokenizer, window, *prefixes, marked=marked)

    def _field(self, name: str, kind: type) -> Any:
        value = self._manifest.get(name)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise InputError(f"{self._folder / MANIFEST} has no usable {name!r}: {value!r}")
        return value

    def _open(self, file: str, outputs: list[str]) -> Any:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.inter_op_num_threads = 1
        # Without spinning, the threads leave the cores to Python, the tokenizer and other sessions.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.add_session_config_entry("session.inter_op.allow_spinning", "0")
        # Without this, sums of int8 products saturate on CPUs that lack VNNI instructions.
        options.add_session_config_entry("session.x64quantprecision", "1")
        options.log_severity_level = 3
        path = self._folder / file
        with refusing(f"{path} is not a model that ONNX Runtime can load"):
            session = onnxruntime.InferenceSession(
                str(path),
                options,
                providers=["CPUExecutionProvider"],
                # The fused operator is slower than Add + LayerNormalization on CPUs.
                disabled_optimizers=["SkipLayerNormFusion"],
            )
        inputs = sorted(COMPARED if file == COMPARE_MODEL else INPUTS)
        takes = sorted(value.name for value in session.get_inputs())
        gives = [value.name for value in session.get_outputs()]
        if (takes, gives) != (inputs, outputs):
            raise InputError(
                f"{path} does not match its kind: its inputs are {takes} and its outputs "
                f"{gives}, but {inputs} and {outputs} are needed"
            )
        return session
