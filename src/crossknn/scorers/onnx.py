"""Run ONNX models on CPUs without torch: the default scorer and encoder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from crossknn.errors import InputError
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
from crossknn.models.tokens import Encoding, Row, Tokenizer, Window, padded
from crossknn.types import FloatArray, as_count


class OnnxModel:
    """Opens and checks a model in an ONNX folder (`docs/reference/formats.md`); a `TokenModel`.

    Many threads may use it. A late-interaction model keeps the fingerprint of the model before
    export unless its files have changed.

    Args:
        kind: "cross-encoder", "dual-encoder" or "late-interaction".
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
