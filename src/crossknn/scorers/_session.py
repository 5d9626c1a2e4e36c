"""What ONNX models share: a session whose graph keeps the contract, and its limits."""

from __future__ import annotations

import os
from collections.abc import Set
from typing import Any

from crossknn.errors import InputError
from crossknn.models.folder import MODEL
from crossknn.scorers._folder import Manifest

_INPUTS = frozenset({"input_ids", "attention_mask", "token_type_ids"})


def available_threads() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def open_session(
    manifest: Manifest,
    threads: int | None,
    output: str,
    file: str = MODEL,
    wanted: Set[str] = _INPUTS,
) -> Any:
    """An ONNX Runtime session whose graph, `file`, has the `wanted` inputs and `output`.

    Raises InputError if the graph cannot be loaded or has other inputs or outputs.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or available_threads()
    options.inter_op_num_threads = 1
    # Spinning threads would take the cores from Python, the tokenizer and other sessions.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    options.log_severity_level = 3
    path = manifest.folder / file
    try:
        session = onnxruntime.InferenceSession(
            str(path),
            options,
            providers=["CPUExecutionProvider"],
            # The fused operator is slower than Add + LayerNormalization on CPUs.
            disabled_optimizers=["SkipLayerNormFusion"],
        )
    except Exception as error:  # onnxruntime's own classes share no base
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise InputError(
            f"{path} is not a model that ONNX Runtime can load: {first_line}"
        ) from error
    inputs = {i.name for i in session.get_inputs()}
    outputs = [o.name for o in session.get_outputs()]
    if inputs != wanted or output not in outputs:
        raise InputError(
            f"{path} does not fit: it takes {sorted(inputs)} and gives {outputs}, where "
            f"{sorted(wanted)} and {output!r} are needed"
        )
    return session


def checked_max_length(manifest: Manifest, max_length: int | None, least: int) -> int:
    """The length limit in tokens: the model's own, or a smaller one."""
    if max_length is None:
        return manifest.max_length
    if type(max_length) is not int or not least <= max_length <= manifest.max_length:
        raise InputError(
            f"max_length must be from {least} to {manifest.max_length} for {manifest.name}, "
            f"got {max_length!r}"
        )
    return max_length
