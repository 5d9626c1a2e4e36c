"""What a fit left in an index, as the index keeps it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from crossknn.errors import InputError
from crossknn.index.storage import IndexReader
from crossknn.index.writing import IndexWriter
from crossknn.types import Artifact


@dataclass(frozen=True, eq=False)
class StoredArtifact:
    """An artifact, and its place on the disk."""

    artifact: Artifact

    def meta(self) -> dict[str, Any]:
        """What the manifest says of it."""
        try:
            read: dict[str, Any] = json.loads(json.dumps(dict(self.artifact.meta)))
        except (TypeError, ValueError) as error:
            raise InputError(f"an artifact cannot be stored as JSON: {error}") from error
        return read

    def write(self, writer: IndexWriter, name: str) -> None:
        """Put it on the disk as `name`."""
        writer.replace(f"artifact-{name}.")
        arrays = {key: np.asarray(value) for key, value in self.artifact.arrays.items()}
        writer.state(f"artifact-{name}", arrays)

    @staticmethod
    def read(reader: IndexReader, name: str) -> StoredArtifact:
        """What was stored as `name`, mapped."""
        arrays = reader.state(f"artifact-{name}")
        return StoredArtifact(Artifact(reader.meta["artifacts"][name], arrays))
