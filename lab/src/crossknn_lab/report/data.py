"""A stored matrix as a report sees it: its file, and what searches of it can use."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from crossknn.index.stored import StoredMatrix
from crossknn_lab.sweep_data import MatrixFile


@dataclass(frozen=True, kw_only=True)
class Data:
    """A matrix, its retrievers and vectors by name, whether it has item scores and labels."""

    file: MatrixFile
    firsts: tuple[str, ...]
    vectors: tuple[str, ...]
    items_by_items: bool
    labelled: bool

    @property
    def name(self) -> str:
        """What the matrix is called in every table."""
        return self.file.name

    @property
    def divisible(self) -> bool:
        """Whether its anchors may be fewer, drawn anew, or dev queries."""
        return not self.file.fitted

    @classmethod
    def read(cls, path: Path) -> Data:
        """Load and check the file; `InputError` says what is wrong with it."""
        matrix = StoredMatrix.load(path)
        return cls(
            file=MatrixFile.read(path),
            firsts=tuple(matrix.firsts),
            vectors=tuple(matrix.spaces),
            items_by_items=matrix.item_scores is not None,
            labelled=matrix.labels is not None and bool((matrix.labels >= 0).any()),
        )
