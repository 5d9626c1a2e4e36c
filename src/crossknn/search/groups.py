"""Searches for the k best groups of items, such as documents by their passages, each by its best
item.

Axes: m queries, n items, c candidates, b scored items of a query.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from crossknn.types import NO_ITEM, Candidates, FloatArray, IntArray, Ranking


@dataclass(frozen=True, eq=False)
class Groups:
    """The number of each item's group, `of` (n,), and how many groups a search looks for: `k`, each
    with an item of at least the final score `least`."""

    of: IntArray
    k: int
    least: float = -np.inf

    def spread(
        self,
        rank: Callable[[int], Candidates],
        wanted: int,
        n: int,
        items: IntArray,
        final: FloatArray,
    ) -> Candidates:
        """Return candidates in a new order: the j-th of a group counts as ranked j times as low,
        and those of the groups that are the k best so far come last, because another item cannot
        bring such a group into the answer.

        Args:
            rank: Returns at most so many candidates of each query, best first.
            wanted, n: How many candidates a query needs, and how many there are at most.
            items, final: Scored items (m, b), padded with `NO_ITEM`, and their scores.
        """
        depth = min(4 * wanted, n)
        while True:
            found = rank(depth)
            m, width = found.items.shape
            if not width:
                return found
            places = np.empty((m, width))
            for place, row, scored, scores in zip(places, found.items, items, final, strict=True):
                groups = self.of[row]
                place[:] = np.arange(1, width + 1) * _occurrence(groups)
                place[np.isin(groups, self._best(scored, scores))] = np.inf
                place[row == NO_ITEM] = np.nan  # sorted behind infinity
            order = np.argsort(places, axis=1, kind="stable")
            # A candidate after the last one has a place of more than `width`.
            last = np.take_along_axis(places, order[:, [min(wanted, width) - 1]], axis=1)
            if depth == n or width < depth or (last <= width).all():
                break
            depth = min(4 * depth, n)
        std = None if found.std is None else np.take_along_axis(found.std, order, axis=1)
        scores = np.take_along_axis(found.scores, order, axis=1)
        return Candidates(np.take_along_axis(found.items, order, axis=1), scores, std)

    def named(self, items: IntArray) -> IntArray:
        """Return the groups' numbers of items (m, c), `NO_ITEM` where there is none."""
        return np.where(items == NO_ITEM, NO_ITEM, self.of[items])

    def _best(self, items: IntArray, final: FloatArray) -> IntArray:
        """Return the groups of the k best so far, fewer if fewer have a score."""
        known = np.flatnonzero((items != NO_ITEM) & (final >= self.least))  # not NaN
        groups = self.of[items[known[np.argsort(-final[known], kind="stable")]]]
        _, first = np.unique(groups, return_index=True)
        return groups[np.sort(first)[: self.k]]

    def best(self, ranking: Ranking, size: int = 1) -> tuple[Ranking, Ranking]:
        """Return the first item of each of the first k groups in a ranking (m, c), and up to
        `size` items of each of these groups, group by group."""
        firsts, members = list[IntArray](), list[IntArray]()
        for items in ranking.items:
            columns = np.flatnonzero(items != NO_ITEM)
            groups = self.of[items[columns]]
            found, first = np.unique(groups, return_index=True)
            order = np.argsort(first)[: self.k]
            firsts.append(columns[first[order]])
            place = np.full(len(found), len(found))
            place[order] = np.arange(len(order))
            place = place[np.searchsorted(found, groups)]
            kept = np.flatnonzero((place < len(order)) & (_occurrence(groups) <= size))
            members.append(columns[kept[np.argsort(place[kept], kind="stable")]])
        return _taken(ranking, firsts), _taken(ranking, members)


def _taken(ranking: Ranking, columns: list[IntArray]) -> Ranking:
    """Select the items of each row at its columns (c,), padded to the longest row."""
    m, width = ranking.items.shape
    places = np.full((m, max(map(len, columns), default=0)), width)
    for row, own in zip(places, columns, strict=True):
        row[: len(own)] = own
    return ranking.beside(Ranking.empty(m, 1)).take(places)


def _occurrence(groups: IntArray) -> IntArray:
    """Number the items of each group by their order, from 1: groups (c,) -> (c,)."""
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
    numbers = np.empty(len(groups), np.int64)
    numbers[order] = np.arange(1, len(groups) + 1) - np.repeat(
        starts, np.diff(np.append(starts, len(groups)))
    )
    return numbers
