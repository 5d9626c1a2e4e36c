"""The scores of (train query, item) pairs paid so far, kept so that none is paid twice.

    work.json       the items (their digest and number) and the cross-encoder they are of
    queries.jsonl   the texts of the queries, each once; a pair names its query by line
    shard-*.bin     scores (s,) float32, NaN where unpaid, then keys (s,) int64: line * n + item
    block-*.f32     scores of a block (see `distributed`), on their way into their shard

A shard is written at once with all its room, before any of its pairs is paid; then blocks of it
are, each by one write within a page. So whatever is killed, and whenever, a block is there or it
is not, and every other one stays.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from crossknn.align.blocks import SHARD, Block, Shard, arranged
from crossknn.align.sparse import SparseScores
from crossknn.align.work import QUERIES, alone, open_folder, writing
from crossknn.errors import InputError
from crossknn.types import FloatArray, IntArray, Pairs


class ScoreBank:
    """Scores of pairs of query texts and n items, of one cross-encoder; on disk with a folder.

    Query texts are what counts, not their positions: any train queries may be asked for.
    """

    def __init__(self, n: int, fingerprint: str | None, folder: Path | None) -> None:
        self.n, self.fingerprint, self.folder = n, fingerprint, folder
        self._load()

    @staticmethod
    def open(
        n: int,
        *,
        fingerprint: str | None,
        items: str = "",
        folder: Path | None = None,
        rescore: bool = False,
    ) -> ScoreBank:
        """What `folder` has of n items with the digest `items`; without a folder, an empty bank.

        Scores of other items, of another cross-encoder, or of one that cannot be told, are refused
        with InputError unless `rescore` discards them.
        """
        if folder is not None:
            open_folder(folder, items, n, fingerprint, rescore)
        return ScoreBank(n, fingerprint, folder)

    def __len__(self) -> int:
        """Pairs that are paid."""
        return sum(int(np.count_nonzero(~np.isnan(shard.score))) for shard in self._shards)

    def missing(self, queries: Sequence[str], pairs: Pairs) -> Pairs:
        """The pairs that are not paid, each once, in their order."""
        key = self._keys(self._lines(queries), pairs)
        first = _first(key)
        return pairs.take(first[np.isnan(self._scores_of(key[first]))])

    def count(self, queries: Sequence[str], pairs: Pairs) -> tuple[int, int]:
        """How many different pairs these are, and how many of them are not paid."""
        key = np.unique(self._keys(self._lines(queries), pairs))
        return len(key), int(np.count_nonzero(np.isnan(self._scores_of(key))))

    def scores(self, queries: Sequence[str], pairs: Pairs | None = None) -> SparseScores:
        """G of these train queries (q,): all that is paid of them, or only of these pairs."""
        lines = self._lines(queries)
        if pairs is None:
            pairs = self._of_lines(lines)
        pairs = pairs.take(_first(pairs.query * self.n + pairs.item))
        score = self._scores_of(self._keys(lines, pairs))
        paid = ~np.isnan(score)
        chosen = pairs.take(np.flatnonzero(paid))
        return SparseScores.of(queries, self.n, chosen, score[paid], self.fingerprint)

    def blocks(self, queries: Sequence[str], items: Sequence[str], pairs: Pairs) -> Iterator[Block]:
        """The pairs that are not paid, in blocks: first those of earlier plans, as they were cut.

        Shards of new pairs are written as they are reached.
        """
        lines = self._lines(queries)
        self._add(queries)
        position = np.zeros(len(self._line), dtype=np.int64)
        position[lines[::-1]] = np.arange(len(lines))[::-1]  # of equal texts, the first
        key = self._keys(lines, pairs)
        key = key[_first(key)]
        at = self._find(key)
        waiting = np.sort(at[(at >= 0) & np.isnan(self._scores_of(key))])
        ends = np.cumsum([0, *(len(shard.key) for shard in self._shards)])
        cuts = np.searchsorted(waiting, ends)
        for number, shard in enumerate(list(self._shards)):
            places = waiting[cuts[number] : cuts[number + 1]] - ends[number]
            yield from shard.blocks(number, places, position, self.n)
        new = key[at < 0]
        for start in range(0, len(new), SHARD):
            shard = self._lay(new[start : start + SHARD], items)
            number, places = len(self._shards) - 1, np.arange(len(shard.key))
            yield from shard.blocks(number, places, position, self.n)

    def put(self, block: Block, scores: FloatArray) -> None:
        """Keep the scores (b,) of a block; NaN is a pair that could not be scored."""
        with writing(self.folder):
            self._shards[block.shard].put(block.places, scores)
            if self.folder is not None:
                block.file(self.folder).unlink(missing_ok=True)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """While scores are added: everything others wrote is read, and nobody else writes.

        Raises InputError if another process is adding scores.
        """
        if self.folder is None:
            yield
            return
        with alone(self.folder):
            self._load()
            self._merge(self.folder)
            try:
                yield
            finally:
                with writing(self.folder):
                    for shard in self._shards:
                        shard.sync()

    def _load(self) -> None:
        """Read what there is."""
        self._line: dict[str, int] = {}
        self._shards: list[Shard] = []
        self._index: tuple[IntArray, IntArray] | None = None
        self._end = 0
        if self.folder is None:
            return
        try:
            # Shards first: the queries of a shard are there before it is.
            self._shards = [Shard.read(path) for path in sorted(self.folder.glob("shard-*.bin"))]
            known = (self.folder / QUERIES).read_bytes()
            self._end = known.rfind(b"\n") + 1  # what follows was cut off, and nothing names it
            texts = [json.loads(line) for line in known[: self._end].split(b"\n")[:-1]]
            self._line = {text: line for line, text in enumerate(texts)}
            limit = len(texts) * self.n
            if any(s.key.min() < 0 or s.key.max() >= limit for s in self._shards):
                raise ValueError("a pair is of a query that is not there")
        except (OSError, ValueError, TypeError) as error:
            raise InputError(
                f"the scores in {self.folder} are damaged ({error}); remove it"
            ) from error

    def _merge(self, folder: Path) -> None:
        """Take over blocks whose collection ended before they came into their shard."""
        for path in folder.glob("block-*.f32"):
            number, start = Block.named(path)
            if number < len(self._shards):
                found = np.fromfile(path, "<f4")
                places = np.flatnonzero(~np.isnan(found))
                self._shards[number].put(start + places, found[places])
            path.unlink()

    def _lines(self, queries: Sequence[str]) -> IntArray:
        """The line of each text (q,); new ones follow those there, each text once."""
        line = dict(self._line)
        found = [line.setdefault(text, len(line)) for text in queries]
        return np.array(found, dtype=np.int64)

    def _add(self, queries: Sequence[str]) -> None:
        """Keep the texts that are new, so that shards may name their lines."""
        new = [text for text in dict.fromkeys(queries) if text not in self._line]
        if new and self.folder is not None:
            lines = "".join(json.dumps(text) + "\n" for text in new).encode()
            with writing(self.folder), (self.folder / QUERIES).open("r+b") as file:
                file.truncate(self._end)
                file.seek(self._end)
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
            self._end += len(lines)
        for text in new:
            self._line[text] = len(self._line)

    def _lay(self, key: IntArray, items: Sequence[str]) -> Shard:
        """A new shard of unpaid pairs (s,), those of similar length in one block."""
        texts = list(self._line)
        line, item = np.divmod(key, self.n)
        pairs = zip(line.tolist(), item.tolist(), strict=True)
        key = key[arranged([len(texts[q]) + len(items[i]) for q, i in pairs])]
        path = self.folder and self.folder / f"shard-{len(self._shards):06d}.bin"
        with writing(self.folder):
            self._shards.append(Shard.create(key, path))
        self._index = None
        return self._shards[-1]

    def _keys(self, lines: IntArray, pairs: Pairs) -> IntArray:
        """One number per pair (p,) of queries that stand in these lines (q,)."""
        for what, positions, count in (
            ("query", pairs.query, len(lines)),
            ("item", pairs.item, self.n),
        ):
            wrong = positions[(positions < 0) | (positions >= count)]
            if len(wrong):
                raise InputError(f"a pair names {what} {wrong[0]}, but there are {count}")
        return lines[pairs.query] * self.n + pairs.item

    def _of_lines(self, lines: IntArray) -> Pairs:
        """All pairs that a shard has of the queries in these lines (q,)."""
        key, _ = self._sorted()
        starts, ends = np.searchsorted(key, [lines * self.n, (lines + 1) * self.n])
        counts = ends - starts
        steps = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return Pairs(
            np.repeat(np.arange(len(lines)), counts),
            key[np.repeat(starts, counts) + steps] % self.n,
        )

    def _find(self, key: IntArray) -> IntArray:
        """Where the pairs (p,) are if all shards follow each other; -1 for what no shard has."""
        known, place = self._sorted()
        if not len(known):
            return np.full(len(key), -1, dtype=np.int64)
        at = np.minimum(np.searchsorted(known, key), len(known) - 1)
        return np.where(known[at] == key, place[at], -1)

    def _scores_of(self, key: IntArray) -> FloatArray:
        """Scores (p,) of pairs, NaN where unpaid."""
        scores = np.concatenate([*(shard.score for shard in self._shards), [np.float32(np.nan)]])
        return scores[self._find(key)].astype(np.float32)

    def _sorted(self) -> tuple[IntArray, IntArray]:
        """All keys, ascending, and where they are if all shards follow each other."""
        if self._index is None:
            key = np.concatenate([np.empty(0, np.int64), *(shard.key for shard in self._shards)])
            place = np.argsort(key, kind="stable")
            self._index = key[place], place
        return self._index


def _first(values: IntArray) -> IntArray:
    """Positions of the first of each of the values, ascending."""
    return np.sort(np.unique(values, return_index=True)[1])
