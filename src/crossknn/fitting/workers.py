"""Workers that share a cross-encoder, and its cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from crossknn.fitting.blocks import Block
from crossknn.models.folder import MANIFEST
from crossknn.models.library import existing
from crossknn.scorers import threads
from crossknn.scorers.base import Scorer
from crossknn.scorers.onnx import available_threads
from crossknn.scorers.opening import BUNDLED, CrossEncoder, bundled_folder
from crossknn.scorers.paying import Scored, score_block

Workers: TypeAlias = Callable[[Iterator[Block]], Iterator[tuple[Block, Scored]]]
"""Scores blocks in any order; asks for the next one when a worker is free."""


def threads_each(workers: int) -> int:
    """Cores for each of so many workers, for an ONNX model's `threads`."""
    return max(1, available_threads() // workers)


def open_with_cores(name: str | Path | None, cores: int, **options: Any) -> Scorer:
    """The cross-encoder of that name, with so many cores if it is one for ONNX Runtime."""
    if isinstance(name, str) and name.startswith(("http://", "https://")):
        return CrossEncoder(name, **options)
    folder = bundled_folder("cross-encoder") if name in (None, BUNDLED) else existing(name or "")
    if folder is not None and (folder / MANIFEST).is_file():
        options = {"threads": cores, **options}
    return CrossEncoder(name, **options)


def on_threads(
    scorer: Scorer, queries: Sequence[str], items: Sequence[str], workers: int
) -> Workers:
    """Workers on threads, which share the scorer; a single one scores where it is called."""
    return threads.on_threads(
        lambda block: score_block(scorer, block.pairs, queries, items), workers
    )
