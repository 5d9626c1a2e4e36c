"""The named parts of an index: opened when they are first needed, kept in its folder if it has one.

Axes: n items, d dimensions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from crossknn.errors import IndexFormatError, InputError
from crossknn.files import rows_of
from crossknn.index.encoders import RememberedModel
from crossknn.index.fitted import FittedVectors
from crossknn.index.graphs import ItemGraph
from crossknn.index.late import LateStates
from crossknn.index.storage import StoredIndexFolder, write_parts
from crossknn.types import Artifact

Kind: TypeAlias = Literal["vectors", "words", "fitted", "late", "graphs", "artifacts"]
WORDS = {"bm25": "BM25", "tfidf": "TFIDF", "lsa": "LSA"}


@dataclass(frozen=True, eq=False)
class VectorSpace:
    """Item vectors of the index itself, an array (n, d) or its rows, and who made them."""

    rows: Any
    encoder: RememberedModel | None = None

    def artifact(self) -> Artifact:
        """What an index keeps."""
        meta = {"encoder": self.encoder and self.encoder.state(), "d": int(self.rows.shape[1])}
        return Artifact(meta, {"values": np.asarray(self.rows)})

    @staticmethod
    def of(artifact: Artifact, name: str) -> VectorSpace:
        """What was kept as `name`, mapped."""
        state = artifact.meta["encoder"]
        encoder = None if state is None else RememberedModel("dual encoder", name, **state)
        return VectorSpace(rows_of(artifact.arrays, "values"), encoder)


def word_model(name: str) -> Any:
    """The class of a word model, one of `WORDS`."""
    return getattr(import_module("crossknn.retrievers.lexical"), WORDS[name])


OPENERS: Mapping[Kind, Any] = {
    "vectors": VectorSpace.of,
    "words": lambda part, name: word_model(name).of(part),
    "fitted": FittedVectors.of,
    "late": LateStates.of,
    "graphs": lambda part, name: ItemGraph.of(part),
    "artifacts": lambda part, name: part,
}
"""What a part of each kind is opened with."""


class Parts(dict[Kind, dict[str, Any]]):
    """Parts by kind and name, the latest last: artifacts, or what they are opened to.

    `build` names this building of the index; `folder` is where it is kept, if it is.
    """

    def __init__(
        self, parts: Mapping[Kind, Mapping[str, Any]], build: str, folder: Path | None = None
    ) -> None:
        super().__init__({kind: dict(parts.get(kind, {})) for kind in OPENERS})
        self.build, self.folder = build, folder

    def open(self, kind: Kind, name: str) -> Any:
        """What a part is of."""
        part = self[kind][name]
        if isinstance(part, Artifact):
            part = self[kind][name] = OPENERS[kind](part, name)
        return part

    def meta(self, kind: Kind, name: str) -> Mapping[str, Any]:
        """What is said of a part, which is not opened for that."""
        return _artifact(self[kind][name]).meta

    def fingerprint(self, kind: Kind, name: str) -> str | None:
        """Of the cross-encoder that a part is of, if it is known."""
        return self.meta(kind, name).get("fingerprint") if name in self[kind] else None

    def newest(self, kind: Kind, name: str) -> Any:
        """The part in the folder as it is now, or the one in memory; None if there is none.

        Raises `IndexFormatError` if the index in the folder was replaced.
        """
        if self.folder is None:
            return self[kind].get(name)
        stored = StoredIndexFolder(self.folder)
        if stored.build != self.build:
            raise IndexFormatError(f"the index {self.folder} was replaced; load it again")
        return stored.parts.get(f"{kind}/{name}")

    def put(self, kind: Kind, name: str, part: Any) -> None:
        """Add a part; with a folder it is kept there, and mapped from there. See `write_parts`."""
        made = _artifact(part)
        if self.folder is None:
            try:
                json.dumps(dict(made.meta))
            except (TypeError, ValueError) as error:
                raise InputError(f"{name!r} cannot be stored as JSON: {error}") from error
        else:
            self.newest(kind, name)
            write_parts(self.folder, {f"{kind}/{name}": made}, self.build, keep=True)
            part = self.newest(kind, name)
        self[kind].pop(name, None)
        self[kind][name] = part

    def drop(self, kind: Kind, name: str) -> None:
        """Forget a part, if it is there."""
        if self[kind].pop(name, None) is not None and self.folder is not None:
            write_parts(self.folder, {f"{kind}/{name}": None}, self.build, keep=True)

    def save(self, folder: Path, items: Artifact, graphs: Mapping[str, Any]) -> None:
        """Write all parts, of graphs only these, and the items to `folder`."""
        parts = {"items": items}
        for kind, named in self.items():
            chosen = [name for name in named if kind != "graphs" or name in graphs]
            parts |= {f"{kind}/{name}": _artifact(named[name]) for name in chosen}
        write_parts(folder, parts, self.build)


def _artifact(part: Any) -> Artifact:
    made: Artifact = part if isinstance(part, Artifact) else part.artifact()
    return made
