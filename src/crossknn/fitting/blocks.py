"""Shards of pairs, and the blocks of a shard: what is scored in one call, and written at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from crossknn.index.disk import put_file, sync
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

    def take(self, positions: slice) -> Block:
        """Some of its pairs."""
        return replace(self, places=self.places[positions], pairs=self.pairs.take(positions))

    def file(self, folder: Path, token: str) -> Path:
        """Where a worker that cannot write into the shard puts the scores of the block.

        `token` names the bank: another one may be in the folder when a slow worker ends.
        """
        return folder / f"block-{token}-{self.shard:06d}-{self.start:04d}.f32"

    @staticmethod
    def named(path: Path) -> tuple[int, int]:
        """(shard, start) of such a file."""
        shard, start = path.stem.split("-")[2:]
        return int(shard), int(start)


class Shard:
    """Scores (s,) of pairs in the order of their blocks, NaN where unpaid."""

    def __init__(self, score: FloatArray, path: Path | None) -> None:
        self.score, self._path = score, path
        self._changed = False

    def __len__(self) -> int:
        return len(self.score)

    @staticmethod
    def create(key: IntArray, path: Path | None) -> Shard:
        """Pairs (s,) without scores; in the file with all their room, or not at all."""
        score = np.full(len(key), np.nan, dtype="<f4")
        if path is not None:
            put_file(path, score.tobytes() + key.astype("<i8").tobytes())
        return Shard(score, path)

    @staticmethod
    def read(path: Path) -> tuple[Shard, IntArray]:
        """The shard in a file and the keys (s,) of its pairs; ValueError if its length is wrong."""
        data = path.read_bytes()
        size, rest = divmod(len(data), _PAIR)
        if rest or not size:
            raise ValueError(f"{path.name} has {len(data)} bytes")
        key = np.frombuffer(data, "<i8", offset=4 * size).astype(np.int64)
        return Shard(np.frombuffer(data, "<f4", count=size).copy(), path), key

    def blocks(self, number: int, places: IntArray, pairs: Pairs) -> Iterator[Block]:
        """Pairs (p,) at ascending places (p,), block by block."""
        edges = np.flatnonzero(np.diff(places // BLOCK)) + 1
        for chosen in np.split(np.arange(len(places)), edges):
            if len(chosen):
                yield Block(number, len(self), places[chosen], pairs.take(chosen))

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
        """Bring the scores to the disk."""
        if self._changed and self._path is not None:
            sync(self._path)
            self._changed = False


def arranged(lengths: Sequence[int]) -> IntArray:
    """An order (s,) of pairs with these lengths (s,) in which those of a block are alike.

    Blocks are in random order, so that a shard that is not finished is no sample of short texts.
    """
    order = np.argsort(lengths, kind="stable").astype(np.int64)
    full = len(order) // BLOCK * BLOCK
    shuffled = np.random.default_rng(len(order)).permutation(order[:full].reshape(-1, BLOCK))
    return np.concatenate([shuffled.ravel(), order[full:]])
