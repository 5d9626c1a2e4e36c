"""Shards of pairs, and the blocks of a shard: what is scored in one call, and written at once."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from crossknn.types import FloatArray, IntArray, Pairs

SHARD, BLOCK = 4096, 256
_PAIR = 4 + 8


@dataclass(frozen=True, eq=False)
class Block:
    """Pairs (b,) that are asked of a scorer in one call: `places` (b,) in the shard `shard`.

    `pairs` point into the train queries and the items of the collection; the shard has `size`
    pairs.
    """

    shard: int
    size: int
    places: IntArray
    pairs: Pairs

    def __len__(self) -> int:
        return len(self.places)

    @property
    def start(self) -> int:
        """The place of the first pair of the block, whether it is asked or not."""
        return int(self.places[0]) // BLOCK * BLOCK

    @property
    def room(self) -> int:
        """How many pairs the block has, those that are not asked included."""
        return min(BLOCK, self.size - self.start)

    @property
    def whole(self) -> bool:
        """Whether all its pairs are asked: none was scored before."""
        return len(self) == self.room

    def cut(self, count: int) -> Block:
        """Its first `count` pairs."""
        return replace(self, places=self.places[:count], pairs=self.pairs.take(slice(count)))

    def file(self, folder: Path) -> Path:
        """Where a worker that cannot write into the shard puts the scores of the block."""
        return folder / f"block-{self.shard:06d}-{self.start:04d}.f32"

    @staticmethod
    def named(path: Path) -> tuple[int, int]:
        """(shard, start) of such a file."""
        _, shard, start = path.stem.split("-")
        return int(shard), int(start)


class Shard:
    """Keys (s,) of pairs, in the order of their blocks, and scores (s,), NaN where unpaid."""

    def __init__(self, key: IntArray, score: FloatArray, path: Path | None) -> None:
        self.key, self.score, self._path = key, score, path
        self._changed = False

    @staticmethod
    def create(key: IntArray, path: Path | None) -> Shard:
        """A shard without scores; it is there with all its room, or not at all."""
        shard = Shard(key, np.full(len(key), np.nan, dtype="<f4"), path)
        if path is not None:
            part = path.with_name(path.name + ".part")
            with part.open("wb") as file:
                file.write(shard.score.tobytes() + key.astype("<i8").tobytes())
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        return shard

    @staticmethod
    def read(path: Path) -> Shard:
        """The shard in a file; ValueError if its length is wrong."""
        data = path.read_bytes()
        size, rest = divmod(len(data), _PAIR)
        if rest or not size:
            raise ValueError(f"{path.name} has {len(data)} bytes")
        key = np.frombuffer(data, "<i8", offset=4 * size).astype(np.int64)
        return Shard(key, np.frombuffer(data, "<f4", count=size).copy(), path)

    def blocks(self, number: int, places: IntArray, position: IntArray, n: int) -> Iterator[Block]:
        """The ascending `places` (p,) block by block; `position` (lines,) is where a query is."""
        line, item = np.divmod(self.key[places], n)
        pairs = Pairs(position[line], item)
        edges = np.flatnonzero(np.diff(places // BLOCK)) + 1
        for chosen in np.split(np.arange(len(places)), edges):
            if len(chosen):
                yield Block(number, len(self.key), places[chosen], pairs.take(chosen))

    def put(self, places: IntArray, scores: FloatArray) -> None:
        """Keep scores (b,) of places (b,) of one block, in one write that is within a page."""
        self.score[places] = scores
        if self._path is None or not len(places):
            return
        start = int(places[0]) // BLOCK * BLOCK
        with self._path.open("r+b", buffering=0) as file:
            file.seek(4 * start)
            file.write(self.score[start : start + BLOCK].tobytes())
        self._changed = True

    def sync(self) -> None:
        """Bring the scores to the disk: a kill loses none anyway, a power cut might."""
        if self._changed and self._path is not None:
            with self._path.open("rb") as file:
                os.fsync(file.fileno())
            self._changed = False


def arranged(lengths: Sequence[int]) -> IntArray:
    """An order (s,) of pairs with these lengths (s,) in which those of a block are alike.

    Blocks are in random order, so that a shard that is not finished is no sample of short texts.
    """
    order = np.argsort(lengths, kind="stable").astype(np.int64)
    full = len(order) // BLOCK * BLOCK
    shuffled = np.random.default_rng(len(order)).permutation(order[:full].reshape(-1, BLOCK))
    return np.concatenate([shuffled.ravel(), order[full:]])
