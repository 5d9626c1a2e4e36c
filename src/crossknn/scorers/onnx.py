"""Models as ONNX graphs on CPUs, without torch: the default scorer and encoder.

A model folder holds `crossknn.json` (its manifest), `tokenizer.json` and graphs: `model.onnx`, and
`item.onnx` if a dual encoder has two towers; of a late-interaction model `query.onnx`, `item.onnx`
if it is another, and `compare.onnx`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any

from crossknn.errors import InputError
from crossknn.models.folder import (
    COMPARE_MODEL,
    INPUTS,
    ITEM_MODEL,
    LATE_GRAPHS,
    MANIFEST,
    MODEL,
    QUERY_MODEL,
    TOKENIZER,
    content_hash,
    read_json,
)
from crossknn.models.tokens import Encoding, Row, Tokenizer, Window, padded
from crossknn.scorers.late import LateInteractionScorer
from crossknn.scorers.token_models import TokenEncoder, TokenScorer
from crossknn.types import BoolArray, FloatArray, IntArray

FORMAT = 1
LATE_INTERACTION = "late-interaction"
KINDS = {
    "cross-encoder": "a cross-encoder",
    "dual-encoder": "a dual encoder",
    LATE_INTERACTION: "a late-interaction model",
}
_PRECISIONS = ("float32", "int8")
_COMPARED = ("query", "query_mask", "items", "item_mask")


class OnnxCrossEncoder(TokenScorer):
    """Scores with the model folder `folder`. May be used from many threads.

    Args:
        threads: cores of one run (all by default).
        max_length: a smaller limit in tokens than the model's own.
        tokens_per_run: tokens of a batch, padding included.

    Raises:
        InputError: the folder is not a cross-encoder in the ONNX folder format.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        threads: int | None = None,
        max_length: int | None = None,
        tokens_per_run: int = 512,
    ) -> None:
        self._model = OnnxModel(folder, "cross-encoder", threads, max_length, tokens_per_run)
        self._session = self._model.open("scores")
        super().__init__(self._model)

    def _logits(self, rows: Sequence[Row]) -> FloatArray:
        scores: FloatArray = self._session.run(["scores"], self._model.feeds(rows))[0]
        return scores


class OnnxDualEncoder(TokenEncoder):
    """Encodes with the dual encoder in the model folder `folder`; options as `OnnxCrossEncoder`."""

    def __init__(
        self,
        folder: str | Path,
        *,
        threads: int | None = None,
        max_length: int | None = None,
        tokens_per_run: int = 512,
    ) -> None:
        self._model = OnnxModel(folder, "dual-encoder", threads, max_length, tokens_per_run)
        self._sessions = self._model.open_towers("vectors", MODEL)
        self.dimensions = self._model.dimensions
        super().__init__(self._model)

    def _vectors(self, rows: Sequence[Row], queries: bool) -> FloatArray:
        session = self._sessions[0 if queries else -1]
        vectors: FloatArray = session.run(["vectors"], self._model.feeds(rows))[0]
        return vectors


class OnnxLateInteraction(LateInteractionScorer):
    """Encodes and compares with the late-interaction model in the model folder `folder`.

    Options as `OnnxCrossEncoder`. The fingerprint is that of the model which was exported; of the
    files if they have changed since.
    """

    def __init__(
        self, folder: str | Path, *, threads: int | None = None, tokens_per_run: int = 512
    ) -> None:
        self._model = OnnxModel(folder, LATE_INTERACTION, threads, None, tokens_per_run)
        self._sessions = self._model.open_towers("states", QUERY_MODEL)
        self._compare = self._model.open("scores", COMPARE_MODEL, frozenset(_COMPARED))
        self.kind, self.joint = self._model.head, self._model.joint
        self.dimensions = self._model.dimensions
        super().__init__(self._model)

    def _states(self, rows: Sequence[Row], queries: bool) -> tuple[FloatArray, BoolArray]:
        session = self._sessions[0 if queries else -1]
        values, mask = session.run(["states", "mask"], self._model.feeds(rows))
        return values, mask

    def _scores(self, *states: FloatArray | BoolArray) -> FloatArray:
        try:
            scores: FloatArray = self._compare.run(
                ["scores"], dict(zip(_COMPARED, states, strict=True))
            )[0]
        except Exception as error:  # onnxruntime's own classes share no base
            if "allocate" not in str(error) and "bad_alloc" not in str(error):
                raise
            raise MemoryError from error
        return scores


class OnnxModel:
    """A model folder, checked: what its manifest says, its tokenizer, and its graphs when opened.

    Raises InputError, in one sentence, for a folder that is absent, foreign, incomplete, of a newer
    format, or of another kind than `kind` (one of `KINDS`), and for options out of range.

    `head` and `joint` are a late-interaction model's: which one it is, and whether it looks at all
    candidates together.
    """

    def __init__(
        self,
        folder: str | Path,
        kind: str,
        threads: int | None,
        max_length: int | None,
        tokens_per_run: int,
    ) -> None:
        for name, value in (("tokens_per_run", tokens_per_run), ("threads", threads)):
            if value is not None and (type(value) is not int or value < 1):
                raise InputError(f"{name} must be a whole number of 1 or more, got {value!r}")
        self._folder, self._threads, self.tokens_per_run = Path(folder), threads, tokens_per_run
        self._raw = raw = _read_manifest(self._folder, kind)
        late = kind == LATE_INTERACTION
        self.name, self._pad = self._field("name", str), self._field("pad_token_id", int)
        self.dimensions = 0 if kind == "cross-encoder" else self._field("dimensions", int)
        self.head = self._field("head", str) if late else ""
        self.joint = late and raw.get("joint") is not False
        self._prefixes = [str(raw.get(f"{side}_prefix") or "") for side in ("query", "item")]
        tokenizer = Tokenizer.load(self._folder / TOKENIZER)
        self.encoding = self._encoding(tokenizer, kind == "cross-encoder", max_length)
        self.fingerprint = self._fingerprint(kind)

    def _fingerprint(self, kind: str) -> str:
        """Names everything that the answers depend on.

        That of the model which was exported, where that is known and no file has changed since.
        """
        settings = self._raw if kind == LATE_INTERACTION else None
        content = content_hash(self._folder, settings)
        if self._raw.get("weights") and self._raw.get("content") == content:
            return str(self._raw["weights"])
        limit = self.encoding.window.max_length
        prefixes = f"|prefixes={json.dumps(self._prefixes)}" if any(self._prefixes) else ""
        return (
            f"{kind}:{self.name}@{self._field('revision', str)}|content={content}|"
            f"{self._raw['precision']}|max_length={limit}{prefixes}"
        )

    def _encoding(self, tokenizer: Tokenizer, paired: bool, max_length: int | None) -> Encoding:
        own = self._field("max_length", int)
        least = tokenizer.pair.n_special + 2 if paired else tokenizer.single.n_special + 1
        if max_length is None:
            max_length = own
        elif type(max_length) is not int or not least <= max_length <= own:
            raise InputError(
                f"max_length must be from {least} to {own} for {self.name}, got {max_length!r}"
            )
        names = [name for name in ("query_length", "item_length") if name in self._raw]
        halves = {name: self._field(name, int) for name in names}
        return Encoding(
            tokenizer,
            Window(max_length=max_length, **(halves if max_length == own else {})),
            *self._prefixes,
            marked=self._raw.get("marked") is not False,
        )

    def _field(self, name: str, kind: type) -> Any:
        value = self._raw.get(name)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise InputError(f"{self._folder / MANIFEST} has no usable {name!r}: {value!r}")
        return value

    def feeds(self, rows: Sequence[Row]) -> dict[str, IntArray]:
        """Rows (b) -> a graph's inputs (b, t)."""
        return padded(rows, self._pad, self.encoding.window.max_length)

    def open_towers(self, output: str, query: str) -> list[Any]:
        """Sessions of the query's tower and of the item's, if it is another."""
        two = (self._folder / ITEM_MODEL).exists()
        return [self.open(output, file) for file in ([query, ITEM_MODEL] if two else [query])]

    def open(self, output: str, file: str = MODEL, wanted: Set[str] = frozenset(INPUTS)) -> Any:
        """An ONNX Runtime session whose graph, `file`, has the `wanted` inputs and `output`.

        Raises InputError if the graph cannot be loaded or has other inputs or outputs.
        """
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self._threads or available_threads()
        options.inter_op_num_threads = 1
        # Spinning threads would take the cores from Python, the tokenizer and other sessions.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.add_session_config_entry("session.inter_op.allow_spinning", "0")
        # Without it, sums of int8 products saturate on CPUs that lack VNNI instructions.
        options.add_session_config_entry("session.x64quantprecision", "1")
        options.log_severity_level = 3
        path = self._folder / file
        try:
            session = onnxruntime.InferenceSession(
                str(path),
                options,
                providers=["CPUExecutionProvider"],
                # The fused operator is slower than Add + LayerNormalization on CPUs.
                disabled_optimizers=["SkipLayerNormFusion"],
            )
        except Exception as error:  # onnxruntime's own classes share no base
            said = (str(error).strip() or repr(error)).splitlines()[0]
            raise InputError(f"{path} is not a model that ONNX Runtime can load: {said}") from error
        inputs = {i.name for i in session.get_inputs()}
        outputs = [o.name for o in session.get_outputs()]
        if inputs != wanted or output not in outputs:
            raise InputError(
                f"{path} does not fit: it takes {sorted(inputs)} and gives {outputs}, where "
                f"{sorted(wanted)} and {output!r} are needed"
            )
        return session


def _read_manifest(folder: Path, kind: str) -> dict[str, Any]:
    if not folder.is_dir():
        raise InputError(f"there is no model folder {folder}")
    if not (folder / MANIFEST).is_file():
        raise InputError(f"{folder} is not a crossknn model folder: it has no {MANIFEST}")
    raw = read_json(folder / MANIFEST)
    if not isinstance(raw, dict) or not isinstance(raw.get("format"), int):
        raise InputError(f"{folder / MANIFEST} is not a crossknn model description")
    if raw["format"] > FORMAT:
        raise InputError(
            f"{folder} has model format {raw['format']}; this version of crossknn reads up to "
            f"{FORMAT}: upgrade crossknn"
        )
    if raw.get("kind") != kind:
        is_what = KINDS.get(str(raw.get("kind")), f"of the unknown kind {raw.get('kind')!r}")
        raise InputError(f"{folder} is {is_what}, where {KINDS[kind]} is needed")
    for name in (*(LATE_GRAPHS if kind == LATE_INTERACTION else (MODEL,)), TOKENIZER):
        if not (folder / name).is_file() or not (folder / name).stat().st_size:
            raise InputError(f"{folder} is incomplete: {name} is missing or empty")
    if raw.get("precision") not in _PRECISIONS:
        raise InputError(f"{folder} has the unknown precision {raw.get('precision')!r}")
    return raw


def available_threads() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
