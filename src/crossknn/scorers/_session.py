"""What both ONNX models share: tokenizer under a lock, session, batches by token count."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np

from crossknn.errors import InputError
from crossknn.scorers._folder import MODEL, TOKENIZER, Manifest
from crossknn.types import IntArray

_INPUTS = {"input_ids", "attention_mask", "token_type_ids"}
_CACHED_TEXTS = 1 << 16
_MULTIPLE = 8


def available_threads() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def open_session(manifest: Manifest, threads: int | None, output: str) -> Any:
    """An ONNX Runtime session whose graph has the contract's inputs and `output`.

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
    path = manifest.folder / MODEL
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
    if inputs != _INPUTS or output not in outputs:
        raise InputError(
            f"{path} does not fit: it takes {sorted(inputs)} and gives {outputs}, where "
            f"{sorted(_INPUTS)} and {output!r} are needed"
        )
    return session


def checked_max_length(manifest: Manifest, max_length: int | None, least: int) -> int:
    """The length limit in tokens: the model's own, or a smaller one."""
    if max_length is None:
        return manifest.max_length
    if not least <= max_length <= manifest.max_length:
        raise InputError(
            f"max_length must be from {least} to {manifest.max_length} for {manifest.name}, "
            f"got {max_length}"
        )
    return max_length


class Tokenizer:
    """Token ids of texts, and the special tokens around one text or between two.

    Fast tokenizers are not safe to share between threads: every use is under one lock. The ids
    of the latest texts are kept, since a search meets the same items with many queries.
    """

    def __init__(self, tokenizer: Any) -> None:
        """Takes a `tokenizers.Tokenizer` and turns its truncation and padding off."""
        self._tokenizer = tokenizer
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._lock = threading.Lock()
        self._kept: dict[str, IntArray | None] = {}
        self.single = _Template(self._tokenizer.encode("a"))
        self.pair = _Template(self._tokenizer.encode("a", "a"))

    @classmethod
    def load(cls, manifest: Manifest) -> Self:
        """The tokenizer of a model folder. Raises InputError if the file is not one."""
        import tokenizers

        path = manifest.folder / TOKENIZER
        try:
            return cls(tokenizers.Tokenizer.from_file(str(path)))
        except Exception as error:  # the Rust side raises bare Exception
            raise InputError(f"{path} is not a tokenizer: {error}") from error

    def ids(self, texts: Sequence[str]) -> list[IntArray | None]:
        """Token ids (t,) of each text, without special tokens and without a length limit.

        None for a text that is not one: not a string, or a string with lone surrogates.
        """
        with self._lock:
            kept = self._kept
            new = list(dict.fromkeys(text for text in texts if text not in kept))
            found = dict(zip(new, self._encode(new), strict=True))
            result = [found[text] if text in found else kept[text] for text in texts]
            if len(kept) + len(found) > _CACHED_TEXTS:
                kept.clear()
            if len(found) <= _CACHED_TEXTS:
                kept.update(found)
        return result

    def _encode(self, texts: list[str]) -> list[IntArray | None]:
        try:
            encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        except Exception:
            if len(texts) == 1:
                return [None]
            return [ids for text in texts for ids in self._encode([text])]
        return [np.array(encoding.ids, dtype=np.int64) for encoding in encodings]


class _Template:
    """Special tokens of a tokenizer: pieces of (ids, type ids), with None for the n-th text."""

    def __init__(self, encoding: Any) -> None:
        self.pieces: list[tuple[IntArray | None, int]] = []
        special: list[int] = []
        special_type = 0
        seen: int | None = None

        def close() -> None:
            if special:
                self.pieces.append((np.array(special, dtype=np.int64), special_type))
                special.clear()

        rows = zip(encoding.ids, encoding.type_ids, encoding.sequence_ids, strict=True)
        for token, kind, sequence in rows:
            if sequence is None:
                if special and kind != special_type:
                    close()
                special.append(token)
                special_type = kind
                continue
            if sequence != seen:  # "a" may be several tokens; its place counts once
                close()
                self.pieces.append((None, kind))
                seen = sequence
        close()
        self.n_special = sum(len(ids) for ids, _ in self.pieces if ids is not None)

    def assemble(self, *texts: IntArray) -> tuple[IntArray, IntArray]:
        """Token ids of one or two texts -> (input ids (t,), token type ids (t,))."""
        following = iter(texts)
        ids = [next(following) if piece is None else piece for piece, _ in self.pieces]
        kinds = [
            np.full(len(part), kind, dtype=np.int64)
            for part, (_, kind) in zip(ids, self.pieces, strict=True)
        ]
        return np.concatenate(ids), np.concatenate(kinds)


def padded(
    rows: Sequence[tuple[IntArray, IntArray]], pad_token_id: int, max_length: int
) -> dict[str, IntArray]:
    """(ids (t,), type ids (t,)) of b texts -> the graph's inputs (b, t).

    Padded to a multiple of 8: odd widths send the end of every row through other instructions,
    which shows in the last bit of one score in six. (What is left is the last bit of one score
    in sixty, from the number of rows.)
    """
    width = max(len(ids) for ids, _ in rows)
    width = max(width, min(-(-width // _MULTIPLE) * _MULTIPLE, max_length))
    input_ids = np.full((len(rows), width), pad_token_id, dtype=np.int64)
    attention_mask = np.zeros((len(rows), width), dtype=np.int64)
    token_type_ids = np.zeros((len(rows), width), dtype=np.int64)
    for r, (ids, kinds) in enumerate(rows):
        input_ids[r, : len(ids)] = ids
        attention_mask[r, : len(ids)] = 1
        token_type_ids[r, : len(ids)] = kinds
    return {
        "input_ids": input_ids,
        "attention_mask": attention_mask,
        "token_type_ids": token_type_ids,
    }


def token_batches(lengths: IntArray, tokens_per_run: int) -> Iterator[IntArray]:
    """Positions (b,) sorted by length, cut so that b * width <= tokens_per_run, at least one."""
    widths = -(-lengths // _MULTIPLE) * _MULTIPLE
    order = np.argsort(lengths, kind="stable")
    start = 0
    for end in range(1, len(order) + 1):
        if end == len(order) or (end + 1 - start) * widths[order[end]] > tokens_per_run:
            yield order[start:end]
            start = end
