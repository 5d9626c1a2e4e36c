"""Several corpora as one: the queries and items that training draws from, by global position."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from crossknn.data.dataset import Labelled
from crossknn.errors import InputError
from crossknn.models.tokens import Row, token_batches
from crossknn.types import NO_ITEM, IntArray, Pairs

TOKENS_PER_PASS = 2048
"""A pass through a model holds rows of similar lengths, so many tokens with their padding."""


class Corpora:
    """The queries and items of several corpora in one numbering, and each query's wrong items.

    `queries` and `items` are texts, `positives` a tuple of item positions (each at least one).
    """

    def __init__(self, parts: Sequence[Labelled]) -> None:
        if not parts or not any(len(part) for part in parts):
            raise InputError("there are no train queries")
        self.parts = tuple(parts)
        self.starts = np.cumsum([0, *(len(part.items) for part in parts)])
        self.queries = [text for part in parts for text in part.queries.texts]
        self.ids = [f"{part.name}/{i}" for part in parts for i in part.queries.ids]
        self.items = [text for part in parts for text in part.items.texts]
        self.positives = tuple(
            found + start
            for part, start in zip(parts, self.starts, strict=False)
            for found in part.positives
        )

    def __len__(self) -> int:
        return len(self.queries)

    @cached_property
    def digest(self) -> str:
        """Hash of every query, item and positive."""
        found = hashlib.blake2b(digest_size=8)
        for text in (*self.ids, *self.queries, *self.items):
            found.update(text.encode("utf-8", "surrogatepass") + b"\0")
        for positives in self.positives:
            found.update(positives.astype(np.int64).tobytes() + b"\0")
        return found.hexdigest()

    def describe(self, rows: Sequence[int]) -> str:
        """What a batch holds, for messages."""
        return f"the queries {', '.join(self.ids[row] for row in rows[:8])}"

    def together(self, wrong: Sequence[IntArray]) -> IntArray:
        """Item positions of each corpus (m_i, depth) -> of all (m, depth)."""
        width = max(found.shape[1] for found in wrong)
        rows = np.full((len(self), width), NO_ITEM, dtype=np.int64)
        done = 0
        for found, start in zip(wrong, self.starts, strict=False):
            rows[done : done + len(found), : found.shape[1]] = np.where(
                found == NO_ITEM, NO_ITEM, found + start
            )
            done += len(found)
        return rows

    def lists(self, rows: Sequence[int], wrong: IntArray, count: int, seed: int) -> IntArray:
        """A right item and `count` wrong ones of each query, drawn by the seed: (b, 1 + count).

        `wrong` (m, depth) as `together` gives it; short rows end with `NO_ITEM`.
        """
        lists = np.full((len(rows), 1 + count), NO_ITEM, dtype=np.int64)
        for place, row in enumerate(rows):
            generator = np.random.default_rng([seed, row])
            lists[place, 0] = generator.choice(self.positives[row])
            known = wrong[row][wrong[row] != NO_ITEM]
            drawn = generator.permutation(len(known))[:count]
            lists[place, 1 : 1 + len(drawn)] = known[drawn]
        return lists

    def pairs(self, rows: Sequence[int], lists: IntArray) -> Pairs:
        """The pairs of b queries with their lists (b, c), row by row, without `NO_ITEM`."""
        kept = lists != NO_ITEM
        return Pairs(np.repeat(np.asarray(rows), kept.sum(1)), lists[kept])


def in_passes(rows: Sequence[Row], run: Callable[[list[Row]], Tensor]) -> Tensor:
    """`run` on all rows (b), in passes of similar lengths; its outputs (b, ...) in their order."""
    lengths = np.array([len(row.ids) for row in rows])
    batches = list(token_batches(lengths, TOKENS_PER_PASS))
    found = torch.cat([run([rows[r] for r in batch]) for batch in batches])
    order = torch.from_numpy(np.argsort(np.concatenate(batches)))
    return found[order.to(found.device)]


def checked_rows(rows: Sequence[Row | InputError]) -> list[Row]:
    """The rows, or the error of the first that could not be made."""
    for row in rows:
        if isinstance(row, InputError):
            raise row
    return [row for row in rows if isinstance(row, Row)]
