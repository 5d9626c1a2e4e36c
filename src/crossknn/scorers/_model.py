"""What a cross-encoder and a dual encoder have in common as ONNX model folders."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import ClassVar

from crossknn.errors import InputError
from crossknn.scorers._folder import read_manifest
from crossknn.scorers._session import Tokenizer, checked_max_length, open_session


class OnnxModel:
    """A model folder, opened: manifest, tokenizer, session, and limits."""

    _kind: ClassVar[str]
    _output: ClassVar[str]
    _n_texts: ClassVar[int]

    def __init__(
        self,
        folder: str | Path,
        *,
        threads: int | None = None,
        max_length: int | None = None,
        tokens_per_run: int = 512,
    ) -> None:
        """Raises InputError if the folder is not a model of this kind in the ONNX folder format."""
        for name, value in (("tokens_per_run", tokens_per_run), ("threads", threads)):
            if value is not None and value < 1:
                raise InputError(f"{name} must be at least 1, got {value}")
        self._manifest = read_manifest(folder, self._kind)
        self._tokenizer = Tokenizer.load(self._manifest)
        template = self._tokenizer.single if self._n_texts == 1 else self._tokenizer.pair
        self._n_special = template.n_special
        self._max_length = checked_max_length(
            self._manifest, max_length, self._n_special + self._n_texts
        )
        self._session = open_session(self._manifest, threads, self._output)
        self._tokens_per_run = tokens_per_run
        self._truncated = 0
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """The model's name."""
        return self._manifest.name

    @property
    def max_length(self) -> int:
        """The longest input in tokens, special tokens included."""
        return self._max_length

    @property
    def fingerprint(self) -> str:
        """Name, revision, hash of the files, precision, length limit and prefixes."""
        return self._manifest.fingerprint(self._max_length)

    @property
    def truncated(self) -> int:
        """How many inputs were longer than `max_length` so far."""
        return self._truncated

    def _count_truncated(self, count: int) -> None:
        with self._lock:
            self._truncated += count
