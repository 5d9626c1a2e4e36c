"""The scores of (train query, item) pairs paid so far, kept so that none is paid twice.

    work.json       the cross-encoder that the scores are of
    queries.jsonl   the texts of the queries, each once; a pair names its query by line
    items.bin       what tells the texts of the items (16 bytes a line), each once; likewise
    shard-*.bin     scores (s,) float32, NaN where unpaid, then keys (s,) int64 of the two lines
    block-*.f32     scores of a block (see `distributed`), on their way into their shard
    seconds.json    how many pairs were scored, and in how many seconds

A shard is written at once with all its room, before any of its pairs is paid; then blocks of it
are, each by one write within a page. So whatever is killed, and whenever, a block is there or it
is not, and every other one stays.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from crossknn.errors import InputError
from crossknn.fitting.blocks import SHARD, Block, Shard, arranged
from crossknn.fitting.lines import Digests, ItemLines, QueryLines, digests
from crossknn.fitting.places import Places, keys_of, members, split
from crossknn.fitting.work import (
    ITEMS,
    QUERIES,
    add_seconds,
    damaged,
    open_folder,
    read_meta,
    read_seconds,
    shard_file,
    shards_in,
    still,
)
from crossknn.index.disk import alone, keeping
from crossknn.index.sparse import SparseScores
from crossknn.types import FloatArray, IntArray, Pairs


class ScoreBank:
    """Scores of pairs of texts, of one cross-encoder; on disk with a folder.

    Texts are what counts, not their positions: any train queries may be asked for, and the n
    `items` may be others at the next opening. Scores of those that are gone stay.
    """

    def __init__(self, items: Sequence[str], fingerprint: str | None, folder: Path | None) -> None:
        self.items, self.n = items, len(items)
        self.fingerprint, self.folder = fingerprint, folder
        self._meta = None if folder is None else read_meta(folder)
        self._spent = 0, 0.0
        self._adding: int | None = None  # the thread that does
        self._load(digests(items))

    @staticmethod
    def open(
        items: Sequence[str],
        *,
        fingerprint: str | None,
        folder: Path | None = None,
        rescore: bool = False,
    ) -> ScoreBank:
        """What `folder` has of these items (n,); without a folder, an empty bank.

        Scores of another cross-encoder are refused with InputError, unless `rescore` discards
        them, and so is a folder for one without a fingerprint.
        """
        if folder is not None:
            open_folder(folder, fingerprint, rescore)
        return ScoreBank(items, fingerprint, folder)

    def __len__(self) -> int:
        """Pairs that are paid, those of items that are gone included."""
        return sum(int(np.count_nonzero(~np.isnan(shard.score))) for shard in self._shards)

    @property
    def queries(self) -> list[str]:
        """The texts of all queries that a pair was ever asked of."""
        return self._queries.texts

    @property
    def token(self) -> str:
        """Tells the bank in a folder from any other that was there, or will be."""
        return self._meta.token if self._meta else ""

    @property
    def seconds_per_pair(self) -> float:
        """Seconds a paid pair has taken in all collections so far; 0.0 before there was one.

        Seconds of waiting: from the first block to the last, by however many workers.
        """
        pairs, seconds = self._spent
        return seconds / pairs if pairs else 0.0

    def count(self, queries: Sequence[str], pairs: Pairs) -> tuple[int, int]:
        """How many different pairs of texts these are, and how many of them are not paid."""
        key = keys_of(self._queries.of(queries), self._item, pairs)
        key = key[_first(key)]
        return len(key), int(np.count_nonzero(np.isnan(self._scores_at(self._places.find(key)))))

    def scores(self, queries: Sequence[str], pairs: Pairs | None = None) -> SparseScores:
        """G of these train queries (q,): all that is paid of them, or only of these pairs."""
        lines = self._queries.of(queries)
        if pairs is None:
            pairs = self._of_lines(lines)
        pairs = pairs.take(_first(pairs.query * self.n + pairs.item))
        score = self._scores_at(self._places.find(keys_of(lines, self._item, pairs)))
        paid = ~np.isnan(score)
        chosen = pairs.take(np.flatnonzero(paid))
        return SparseScores.of(queries, self.n, chosen, score[paid], self.fingerprint)

    def blocks(self, queries: Sequence[str], pairs: Pairs) -> Iterator[Block]:
        """The pairs that are not paid, in blocks: first those of earlier plans, as they were cut.

        Shards of new pairs are written as they are reached.
        """
        return self._blocks(queries, self.items, self._item, pairs)

    def put(self, block: Block, scores: FloatArray) -> None:
        """Keep the scores (b,) of a block; NaN is a pair that could not be scored."""
        with keeping(self.folder):
            self._shards[block.shard].put(block.places, scores)
            if self.folder is not None:
                block.file(self.folder, self.token).unlink(missing_ok=True)

    def know(
        self, queries: Sequence[str], items: Sequence[str], pairs: Pairs, scores: FloatArray
    ) -> int:
        """Keep scores (p,) of pairs that were paid elsewhere; returns how many were not here yet.

        They must be of the same cross-encoder; `items` may be others than those of the bank.
        Raises InputError for a score that is not a number, and as `exclusive`.
        """
        if len(scores) != len(pairs) or not np.isfinite(scores).all():
            raise InputError(f"the scores of {len(pairs)} pairs must be so many finite numbers")
        n = len(items)
        key, first = np.unique(pairs.query * n + pairs.item, return_index=True)
        with self.exclusive():
            lines = self._item if items is self.items else self._items.of(digests(items))
            before = len(self)
            for block in self._blocks(queries, items, lines, pairs):
                at = np.searchsorted(key, block.pairs.query * n + block.pairs.item)
                self.put(block, scores[first[at]].astype(np.float32))
            return len(self) - before

    def spend(self, pairs: int, seconds: float) -> None:
        """Add to what `seconds_per_pair` is made of: seconds in which pairs were paid."""
        if self.folder is None:
            self._spent = self._spent[0] + pairs, self._spent[1] + seconds
        else:
            self._spent = add_seconds(self.folder, pairs, seconds)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """While scores are added: everything others wrote is read, and nobody else writes.

        A thread that has entered it may enter it again. Raises InputError if another one is adding
        scores, or has discarded these, also with their folder.
        """
        if self._adding == threading.get_ident():
            yield
            return
        with alone(self.folder), self.adding():
            yield

    @contextmanager
    def adding(self) -> Iterator[None]:
        """`exclusive` for whoever is `alone` in the folder already."""
        if self.folder is None or self._meta is None:
            yield
            return
        still(self.folder, self._meta)
        self._load(self._items.digests[self._item])
        self._merge(self.folder)
        self._adding = threading.get_ident()
        try:
            yield
        finally:
            self._adding = None
            with keeping(self.folder):
                for shard in self._shards:
                    shard.sync()

    def _load(self, items: Digests) -> None:
        """Read what there is."""
        folder = self.folder
        self._shards: list[Shard] = []
        self._places = Places()
        try:
            # Shards first: the lines that a shard names are there before it is.
            shards = [Shard.read(path) for path in shards_in(folder)] if folder else []
            self._queries = QueryLines(folder and folder / QUERIES)
            self._items = ItemLines(folder and folder / ITEMS)
            for shard, key in shards:
                query, item = split(key)
                if not 0 <= query.min() <= query.max() < len(self._queries):
                    raise ValueError("a pair is of a query that is not there")
                if item.max() >= len(self._items):
                    raise ValueError("a pair is of an item that is not there")
                self._shards.append(shard)
                self._places.add(key)
            self._spent = read_seconds(folder) if folder else self._spent
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise damaged(folder, error) from error
        self._item = self._items.of(items)

    def _merge(self, folder: Path) -> None:
        """Take over blocks whose collection ended before they came into their shard."""
        with keeping(folder):
            for path in folder.glob(f"block-{self.token}-*.f32"):
                number, start = Block.named(path)
                if number < len(self._shards):
                    shard, found = self._shards[number], np.fromfile(path, "<f4")
                    room = shard.score[start : start + len(found)]
                    places = np.flatnonzero(np.isnan(room) & ~np.isnan(found[: len(room)]))
                    shard.put(start + places, found[places])
            for path in folder.glob("block-*"):
                path.unlink(missing_ok=True)

    def _blocks(
        self, queries: Sequence[str], items: Sequence[str], lines: IntArray, pairs: Pairs
    ) -> Iterator[Block]:
        """`blocks` of pairs of any items, which have these lines (n,)."""
        key = keys_of(self._queries.of(queries), lines, pairs)
        with keeping(self.folder):
            self._queries.keep()
            self._items.keep()
        first = _first(key)
        place = self._places.find(key[first])
        new = first[place < 0]
        waiting = np.flatnonzero((place >= 0) & np.isnan(self._scores_at(place)))
        waiting = waiting[np.argsort(place[waiting])]
        ends = np.cumsum([0, *map(len, self._shards)])
        cuts = np.searchsorted(place[waiting], ends)
        for number, shard in enumerate(list(self._shards)):
            chosen = waiting[cuts[number] : cuts[number + 1]]
            yield from shard.blocks(number, place[chosen] - ends[number], pairs.take(first[chosen]))
        for start in range(0, len(new), SHARD):
            laid = new[start : start + SHARD]
            texts = zip(pairs.query[laid].tolist(), pairs.item[laid].tolist(), strict=True)
            laid = laid[arranged([len(queries[q]) + len(items[i]) for q, i in texts])]
            shard = self._lay(key[laid])
            number, places = len(self._shards) - 1, np.arange(len(laid))
            yield from shard.blocks(number, places, pairs.take(laid))

    def _lay(self, key: IntArray) -> Shard:
        """A new shard of unpaid pairs (s,)."""
        path = self.folder and shard_file(self.folder, len(self._shards))
        with keeping(self.folder):
            self._shards.append(Shard.create(key, path))
        self._places.add(key)
        return self._shards[-1]

    def _of_lines(self, lines: IntArray) -> Pairs:
        """All pairs that a shard has of the queries in these lines (q,) and present items."""
        query, line = self._places.of_queries(lines)
        counts = np.bincount(self._item, minlength=len(self._items))
        ends, order = np.cumsum(counts), np.argsort(self._item, kind="stable")
        which, at = members(ends[line] - counts[line], ends[line])  # equal texts: each position
        return Pairs(query[which], order[at])

    def _scores_at(self, places: IntArray) -> FloatArray:
        """Scores (p,) at places, NaN where unpaid or nowhere (-1)."""
        scores = np.concatenate([*(shard.score for shard in self._shards), [np.float32(np.nan)]])
        return scores[places].astype(np.float32)


def _first(values: IntArray) -> IntArray:
    """Positions of the first of each of the values, ascending."""
    return np.sort(np.unique(values, return_index=True)[1])
