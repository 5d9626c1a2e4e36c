"""What searches gain from earlier searches, by the number of items and of earlier searches.

    python lab/benchmarks/use.py OUT MATRIX ...              # score matrices, or "sample"
    python lab/benchmarks/use.py OUT FOLDER BUNDLED LOG      # the 112,332 items; with OUT alone: print a table

Earlier searches made 120 calls each for a matrix's anchors, or for half of the sample's queries. Other queries are
searched with a prior that is fitted to their scores, and without one. OUT (JSON lines) gets a line for each of three
draws and each number of earlier searches; a killed run goes on. FOLDER is the index that lab/benchmarks/wide.py at
8389e6c6 made, with its scores, BUNDLED the models that it used, and LOG (JSON) lists the texts of its 300 earlier and
thirty later queries.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from together import ById

import crossknn as ck
from crossknn.evaluation.measures import paired
from crossknn.fitting.kriging import PER_ITEM, prior_of, with_gain
from crossknn.methods.base import Plan
from crossknn.methods.kriging import Kriging
from crossknn.scores.sparse import SparseScores
from crossknn.search.loop import simulate
from crossknn.types import FloatArray, IntArray, Pairs, Queries
from crossknn_lab.stored import StoredMatrix

CALLS, COUNTS, DRAWS, TESTS = 120, (30, 100, 300), 3, 60
KS, BUDGETS = (10, 100), (50, 100, 200, 500)
WIDE = Path(__file__).parents[2] / "benchmarks/data/wide.npz"


class Corpus(NamedTuple):
    """An index, queries, and their exact scores (q, n), NaN if unknown; the `first` queries may be
    searched earlier, or half of all if it is 0."""

    name: str
    index: Any
    texts: Sequence[str]
    scores: FloatArray
    first: int

    @staticmethod
    def of_matrix(path: Path) -> Corpus:
        if path.name == "sample":
            sample = ck.sample()
            scores = np.asarray(sample.scores, np.float32)
            return Corpus("sample", sample.index, sample.queries.texts, scores, 0)
        one = StoredMatrix.load(path)
        given = {f.name: getattr(one, f.name) for f in fields(StoredMatrix) if f.init}
        index = ById(**given | {"n_anchors": 0, "artifacts": {}})
        return Corpus(path.stem, index, one.query_ids, one.scores, one.n_anchors)

    @staticmethod
    def of_folder(folder: Path, bundled: Path, log: Path) -> Corpus:
        encoder, texts = ck.DualEncoder(bundled / "dual-encoder"), json.loads(log.read_text())
        index = ck.ItemIndex.load(folder, encoder={"dense": encoder})
        fingerprint = ck.CrossEncoder(bundled / "cross-encoder").fingerprint
        assert fingerprint is not None
        with np.load(WIDE) as file:
            exact = file["scores"].astype(np.float32)
        known = index.scores.sparse_scores(fingerprint, index.items.texts, texts[: -len(exact)])
        row = {text: q for q, text in enumerate(texts)}
        scores = np.full((len(texts), index.n), np.nan, np.float32)
        scores[np.array([row[t] for t in known.queries])[known.query], known.item] = known.score
        scores[-len(exact) :] = exact
        return Corpus("wide", index.for_scorer(fingerprint), texts, scores, len(texts) - len(exact))

    def drawn(self, draw: int) -> tuple[IntArray, IntArray]:
        """Return the positions of earlier queries, in random order, and of later queries."""
        rng, q = np.random.default_rng(draw), len(self.texts)
        if self.first:
            later = np.arange(self.first, min(q, self.first + TESTS))
            return rng.permutation(self.first), later
        order = rng.permutation(q)
        return order[: q // 2], order[q // 2 :]

    def left_by(self, rows: IntArray) -> SparseScores:
        """Return the scores that searches of the queries at `rows` left."""
        queries, known = Queries([self.texts[row] for row in rows]), self.scores[rows]
        if not np.isnan(known).any():
            plan = Kriging(together=False).plan_with(None, self.index, CALLS, 0)
            items = simulate(plan, queries, known).picks().items
            pairs = Pairs(np.repeat(np.arange(len(rows)), items.shape[1]), items.ravel())
        else:
            pairs = Pairs(*np.nonzero(~np.isnan(known)))
        scores = known[pairs.query, pairs.item]
        return SparseScores.of(queries.texts, self.index.n, pairs, scores)


def measured(corpus: Corpus, done: set[tuple[str, int, int]]) -> Iterator[dict[str, Any]]:
    """Compare searches with and without priors."""
    index, method = corpus.index, Kriging(together=False)
    for draw in range(DRAWS):
        earlier, later = corpus.drawn(draw)
        scores, queries = corpus.scores[later], Queries([corpus.texts[row] for row in later])
        best, without = np.argsort(-scores, axis=1, kind="stable")[:, : max(KS)], {}

        def recall(plan: Plan, best: IntArray = best, given: Any = (queries, scores)) -> FloatArray:
            found = [*zip(best, simulate(plan, *given).picks().items, strict=True)]
            return np.array(
                [[100 * np.isin(b[:k], items).mean() for k in KS] for b, items in found]
            )

        for count in sorted({min(count, len(earlier)) for count in COUNTS}):
            if (corpus.name, draw, count) in done or (draw and count == max(COUNTS)):
                continue  # all draws of as many searches as there are would be the same
            left = corpus.left_by(earlier[:count])
            prior, enough = prior_of(index, left), len(left) >= PER_ITEM * index.n
            prior, expected = with_gain(index, left, prior), prior.trends[-1].mean[-1]
            used = enough and prior.predicts
            about = {"draw": draw, "searches": count, "scores": len(left), "gain": prior.gain}
            about["weight"] = round(float(prior.trends[-1].mean[-1] / expected), 2)
            row: dict[str, Any] = {"set": corpus.name, "items": index.n, **about, "used": used}
            for b in BUDGETS if corpus.name == "wide" else BUDGETS[:-1]:
                if b not in without:
                    without[b] = recall(method.plan_with(None, index, b, 0))
                gains = recall(method.plan_with(prior, index, b, 0)) - without[b]
                for k, gained, old in zip(KS, gains.T, without[b].T, strict=True):
                    test = paired(gained)
                    values = float(old.mean()), test.difference, test.low, test.high
                    row[f"top {k}, {b} calls"] = [round(value, 2) for value in values]
            yield row


def table(rows: list[dict[str, Any]]) -> None:
    """Print the means of the draws, and the lowest and the highest."""
    places = [f"top {k}, {b} calls" for k in KS for b in BUDGETS[:-1]]
    print(f"| items | searches | scores per item | used | {' | '.join(places)} |")
    print("|---" * (4 + len(places)) + "|")
    for name, searches in dict.fromkeys((row["set"], row["searches"]) for row in rows):
        some = [row for row in rows if (row["set"], row["searches"]) == (name, searches)]
        ratio = np.mean([row["scores"] / row["items"] for row in some])
        cells = [f"{some[0]['items']:,} ({name})", searches, f"{ratio:.2g}"]
        cells.append(f"{sum(row['used'] for row in some)} of {len(some)}")
        for place in places:
            gains = [row[place][1] for row in some]
            cells.append(f"{np.mean(gains):+.1f} ({min(gains):+.1f} to {max(gains):+.1f})")
        print(f"| {' | '.join(map(str, cells))} |")


def main() -> None:
    out, *given = map(Path, sys.argv[1:])
    rows = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    if not given:
        table(rows)
        return
    done = {(row["set"], row["draw"], row["searches"]) for row in rows}
    folder = (given[0] / "crossknn-index.json").exists()
    for corpus in [Corpus.of_folder(*given)] if folder else map(Corpus.of_matrix, given):
        with out.open("a") as file:
            for row in measured(corpus, done):
                print(json.dumps(row), file=file, flush=True)


if __name__ == "__main__":
    main()
