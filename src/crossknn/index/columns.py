"""Columns of an index on disk, read as sequences: strings, and records written as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from crossknn.errors import IndexFormatError


class StoredTexts(Sequence[str]):
    """n strings in one UTF-8 blob: string i is `data[offsets[i]:offsets[i + 1]]`."""

    def __init__(self, data: NDArray[np.uint8], offsets: NDArray[np.uint64]) -> None:
        if not len(offsets) or int(offsets[-1]) != len(data):
            raise IndexFormatError("the offsets of an index's texts do not fit the texts")
        self._data = data
        self._offsets = offsets

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @overload
    def __getitem__(self, position: int) -> str: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[str]: ...
    def __getitem__(self, position: int | slice) -> str | Sequence[str]:
        if isinstance(position, slice):
            return [self[p] for p in range(*position.indices(len(self)))]
        p = int(position) + (len(self) if position < 0 else 0)
        if not 0 <= p < len(self):
            raise IndexError(position)
        return self._data[int(self._offsets[p]) : int(self._offsets[p + 1])].tobytes().decode()

    def __iter__(self) -> Iterator[str]:
        ends = self._offsets.tolist()
        for start, end in pairwise(ends):
            yield self._data[start:end].tobytes().decode()


class StoredRecords(Sequence[Mapping[str, Any]]):
    """n JSON objects, each parsed when it is asked for."""

    def __init__(self, texts: StoredTexts) -> None:
        self._texts = texts

    def __len__(self) -> int:
        return len(self._texts)

    @overload
    def __getitem__(self, position: int) -> Mapping[str, Any]: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[Mapping[str, Any]]: ...
    def __getitem__(self, position: int | slice) -> Mapping[str, Any] | Sequence[Mapping[str, Any]]:
        if isinstance(position, slice):
            return [self[p] for p in range(*position.indices(len(self)))]
        record: Mapping[str, Any] = json.loads(self._texts[position])
        return record
