"""Compare search methods that score equally many pairs, by recall against exact search and by
measures of relevance judgements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from crossknn.data.qrels import Qrels
from crossknn.data.queries import QuerySet, Texts, query_set
from crossknn.errors import InputError
from crossknn.evaluation.outcome import Outcome, QueryBatch, outcome, truth_of
from crossknn.evaluation.task import DEFAULT, Judgements, TaskMeasures
from crossknn.index.item_index import ItemIndex
from crossknn.methods import Method
from crossknn.methods.rerank import Exact
from crossknn.scorers.base import Scorer
from crossknn.scorers.opening import as_scorer
from crossknn.scores.store import ScoreStore
from crossknn.scores.stored import StoredScorer
from crossknn.search.fusion import Fusion
from crossknn.table import Cell, Table
from crossknn.types import FloatArray, Pairs, Progress, Queries

BATCH = 64
"""Number of queries searched together, which limits memory to BATCH x n approximate scores."""


@dataclass(kw_only=True, eq=False)
class Evaluation:
    """Makes each search of the queries in `batches` once, and keeps its outcome. `ks`, `depth` and
    `task` are as in `outcome`."""

    batches: Sequence[QueryBatch]
    ks: Sequence[int] = ()
    depth: int = 1
    seed: int = 0
    task: TaskMeasures | None = None
    _outcomes: dict[tuple[str, int, bool], Outcome] = field(default_factory=dict)

    def outcomes(
        self,
        methods: Mapping[str, Method],
        budgets: Sequence[int],
        fusion: Fusion | None = None,
        progress: Progress | None = None,
    ) -> Iterator[Outcome]:
        """Yield the outcome of every method at every budget; a method that scores no pairs has one
        budget, 0. With a fusion, its final scores guide the search and order the answers."""
        runs = [
            (name, method, (str(method), budget, fusion is not None))
            for name, method in methods.items()
            for budget in (budgets if method.calls else (0,))
        ]
        n, m = self.batches[0].index.n, sum(len(batch.queries) for batch in self.batches)
        new = {key for *_, key in runs} - self._outcomes.keys()
        total, done = m * sum(min(budget, n) for _, budget, _ in new), 0
        truth = None
        if self.ks and self.batches[0].exact is not None:
            truth = truth_of(self.batches, max(self.ks), fusion)

        def scored(pairs: int) -> None:
            nonlocal done
            done += pairs
            if progress is not None:
                progress(done, total)

        for name, method, key in runs:
            if key not in self._outcomes:
                self._outcomes[key] = outcome(
                    *(name, method, self.batches, truth),
                    budget=key[1],
                    ks=self.ks,
                    depth=self.depth,
                    seed=self.seed,
                    task=self.task,
                    fusion=fusion,
                    scored=scored,
                )
            yield replace(self._outcomes[key], method=name)


def compare(
    index: ItemIndex,
    queries: Texts,
    scores: FloatArray | Scorer,
    methods: Mapping[str, Method],
    budgets: Sequence[int],
    ks: Sequence[int] = (),
    *,
    qrels: Qrels | None = None,
    measures: Sequence[str] = DEFAULT,
    fusion: Fusion | None = None,
    keep_own: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[Outcome]:
    """Compare methods at equal budgets, by recall against exact search and by judgements.

    If `scores` has the exact scores of all pairs, the first outcome is that of exact search. If it
    is a cross-encoder, only pairs that the methods choose are scored, and recall is not measured.

    Args:
        index: The n items.
        queries: The m queries, with ids, as `read_queries` takes them.
        scores: Exact scores (m, n) of every query with every item, as `exact_scores` gives them; or
            a scorer, whose scores are kept in `index.scores` or in a `StoredScorer`'s own store.
        methods: By name, such as `ck.parse_methods("rerank, axn(ridge=0.3)")`.
        budgets: Numbers of pairs to score per query. A method that scores none has one budget, 0.
        ks: The k of recall@k.
        qrels: Judgements, `{query id: {item id: grade}}`, for `measures`.
        measures: Names of ir-measures, such as "nDCG@10".
        fusion: Order all answers, also those of exact search, by this fusion's final scores.
        keep_own: Count an item that has the query's id like any other; by default `measures` leave
            it out, as in BEIR.
        seed: Seed of all randomness.
        progress: Called with the numbers (done, total) of pairs to score, stored scores included.
    """
    index.check_compact("a comparison")
    queries, task = query_set(queries), None
    if qrels is not None and measures:
        judged = Judgements.from_qrels(qrels, queries, index.answer_ids, keep_own=keep_own)
        task = TaskMeasures(judged, measures)
    if isinstance(scores, np.ndarray):
        batches, exact = query_batches(index, queries, exact=scores), {"exact": Exact()}
    elif task is None:
        raise InputError("without all exact scores a comparison needs qrels and measures")
    else:
        batches, exact, ks = query_batches(index, queries, as_scorer(scores)), {}, ()
    evaluation = Evaluation(batches=batches, ks=ks, seed=seed, task=task)
    best = evaluation.outcomes(exact, [index.n], fusion)
    return [*best, *evaluation.outcomes(methods, budgets, fusion, progress)]


def query_batches(
    index: ItemIndex,
    queries: QuerySet,
    scorer: Scorer | None = None,
    exact: FloatArray | None = None,
) -> list[QueryBatch]:
    """Split the m queries into batches. The first m' have known exact scores (m', n); pairs of the
    others are scored when a method asks for them, each once."""
    texts, batches = queries.texts, list[QueryBatch]()
    if scorer is not None:
        if not isinstance(scorer, StoredScorer):
            store = ScoreStore() if scorer.fingerprint is None else index.scores
            scorer = StoredScorer(scorer, store)
        index = index.for_scorer(scorer.scorer.fingerprint)
    exact = np.empty((0, index.n), np.float32) if exact is None else exact
    for start in range(0, len(exact), BATCH):
        rows = exact[start : start + BATCH]
        batches.append(QueryBatch.scored(index, Queries(texts[start : start + len(rows)]), rows))

    def score(pairs: Pairs, start: int) -> FloatArray:
        assert scorer is not None
        scores = np.full(len(pairs), np.nan, np.float32)
        pairs = replace(pairs, query=pairs.query + start)
        for where, values in scorer.score(pairs, texts, index.items.texts):
            scores[where] = values
        return scores

    for start in range(len(exact), len(texts), BATCH):
        together = Queries(texts[start : start + BATCH])
        batches.append(QueryBatch(index, together, partial(score, start=start)))
    return batches


def table_of(outcomes: Iterable[Sequence[Mapping[str, Any]]]) -> Table:
    """Tabulate the rows of outcomes: one line per budget, below a line with the method's name."""
    table = [[*rows] for rows in outcomes]
    ks = [row["k"] for row in table[0] if "k" in row]
    offline = any(rows[0]["index_calls"] for rows in table)
    lines, previous = list[list[Cell]](), ""
    for rows in table:
        row = rows[0]
        if (name := f"{row['method']}, fused" if "fused" in row else row["method"]) != previous:
            lines.append([name])
        previous = name
        line: list[Cell] = [f"{row['calls']:.0f}"]
        if offline:
            line.append(row["index_calls"])
        for of_k in rows if ks else ():
            low, high = of_k["ci"]
            line.append(f"{100 * of_k['recall']:.1f} [{100 * low:.0f}-{100 * high:.0f}]")
        values = row.get("measures", {}).values()
        lines.append([*line, *(None if value is None else f"{value:.3f}" for value in values)])
    legend = {
        "k=...: recall of the k best items by exact score, in % [95% interval]": ks,
        "fused: answers and recall are by the final score": any(
            "fused" in rows[0] for rows in table
        ),
        "offline: cross-encoder calls made once, to prepare the index": offline,
    }
    measures = table[0][0].get("measures", {})
    return Table(
        head=["calls", *(["offline"] * offline), *(f"k={k}" for k in ks), *measures],
        rows=lines,
        caption="; ".join(text for text, applies in legend.items() if applies),
    )
