"""Compare methods at equal numbers of scored pairs, by recall of exact search and by the task's
measures.

`compare` gets the exact scores of your own queries, or asks a scorer for the pairs that the methods
choose.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from crossknn.data.qrels import Qrels
from crossknn.data.queries import QuerySet, Texts, query_set
from crossknn.errors import InputError
from crossknn.evaluation.outcome import Outcome, Part, outcome, truth_of
from crossknn.evaluation.task import DEFAULT, Judgements, TaskMeasures
from crossknn.index.item_index import ItemIndex
from crossknn.methods import Method
from crossknn.methods.rerank import Exact
from crossknn.scorers import as_scorer
from crossknn.scorers.base import Scorer
from crossknn.scores.store import ScoreStore
from crossknn.scores.stored import StoredScorer
from crossknn.search.fusion import Fusion
from crossknn.types import FloatArray, IntArray, Pairs, Progress, Queries

BATCH = 64
"""Number of queries searched together, which limits memory to BATCH x n approximate scores."""


class Evaluation:
    """Searches of m queries, each of which is made once and shared by all comparisons.

    Comparisons of methods, diagnoses and trials are views of these outcomes.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        *,
        ks: Sequence[int] = (),
        depth: int = 1,
        seed: int = 0,
        task: TaskMeasures | None = None,
    ) -> None:
        """Evaluate the queries in `parts`, made by `batches`, with the further arguments of
        `outcome`."""
        self.parts, self.ks, self.depth, self.seed, self.task = parts, ks, depth, seed, task
        self.index = parts[0].index
        self._outcomes: dict[tuple[str, int, bool], Outcome] = {}

    def outcomes(
        self,
        methods: Mapping[str, Method],
        budgets: Sequence[int],
        fusion: Fusion | None = None,
        progress: Progress | None = None,
    ) -> Iterator[Outcome]:
        """Yield the outcome of every method at every budget as soon as it is finished.

        A method that makes no calls has one budget, 0. With a fusion answers are ordered, and
        searched for, by its final scores. `progress` is called with (done, total) pairs of the
        searches that were not made before.
        """
        runs = [
            (name, method, (str(method), budget, fusion is not None))
            for name, method in methods.items()
            for budget in (budgets if method.calls else (0,))
        ]
        new = {key for *_, key in runs} - self._outcomes.keys()
        total = sum(min(budget, self.index.n) for _, budget, _ in new)
        total, done = total * sum(len(part.queries) for part in self.parts), 0

        def scored(pairs: int) -> None:
            nonlocal done
            done += pairs
            if progress is not None:
                progress(done, total)

        for name, method, key in runs:
            if key not in self._outcomes:
                self._outcomes[key] = outcome(
                    name,
                    method,
                    self.parts,
                    self._truth(fusion),
                    budget=key[1],
                    ks=self.ks,
                    depth=self.depth,
                    seed=self.seed,
                    task=self.task,
                    fusion=fusion,
                    scored=scored,
                )
            yield replace(self._outcomes[key], method=name)

    def _truth(self, fusion: Fusion | None) -> IntArray | None:
        if not self.ks or self.parts[0].exact is None:
            return None
        return truth_of(self.parts, max(self.ks), fusion)


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
    """Compare methods at equal budgets: by recall of exact search, and by judgements.

    With all exact scores the first outcome is that of exact search. With a cross-encoder, only the
    pairs that the methods choose are scored, each once, and there is no recall.

    Args:
        index: The n items.
        queries: The m queries, with ids, as `read_queries` takes them.
        scores: Exact scores (m, n) of every query with every item, as `exact_scores` gives them; or
            a scorer, whose scores are kept in `index.scores`, or where a `StoredScorer` keeps them.
        methods: By name, such as `ck.parse_methods("rerank, axn(ridge=0.3)")`.
        budgets: Distinct pairs of each query. A method that makes no calls has one budget, 0.
        ks: The k of recall@k.
        qrels: Judgements, `{query id: {item id: grade}}`, for `measures`.
        measures: Names of ir-measures, such as "nDCG@10".
        fusion: Order answers, those of exact search too, by its final scores.
        keep_own: Count the item that has a query's id as any other, which `measures` do not see
            otherwise, as in BEIR.
        seed: Seed of all randomness.
        progress: Called with (done, total) pairs that the scorer scores, stored ones included.

    Raises:
        InputError: The index has deleted items, no query is judged, or a measure is unknown.
        ScorerError: The scorer fails as a whole.
    """
    index.check_compact("a comparison")
    queries, task = query_set(queries), None
    if qrels is not None and measures:
        judged = Judgements.from_qrels(qrels, queries, index.items.ids, keep_own=keep_own)
        task = TaskMeasures(judged, measures)
    if isinstance(scores, np.ndarray):
        parts, exact = batches(index, queries, exact=scores), {"exact": Exact()}
    elif task is None:
        raise InputError("without all exact scores a comparison needs qrels and measures")
    else:
        parts, exact, ks = batches(index, queries, as_scorer(scores)), {}, ()
    evaluation = Evaluation(parts, ks=ks, seed=seed, task=task)
    best = evaluation.outcomes(exact, [index.n], fusion)
    return [*best, *evaluation.outcomes(methods, budgets, fusion, progress)]


def batches(
    index: ItemIndex,
    queries: QuerySet,
    scorer: Scorer | None = None,
    exact: FloatArray | None = None,
) -> list[Part]:
    """Split the m queries into batches; the first m' of them have known exact scores (m', n).

    Pairs of the other queries are scored when a method asks for them, each once.
    """
    texts, parts = queries.texts, list[Part]()
    if scorer is not None:
        if not isinstance(scorer, StoredScorer):
            store = ScoreStore() if scorer.fingerprint is None else index.scores
            scorer = StoredScorer(scorer, store)
        index = index.for_scorer(scorer.scorer.fingerprint)
    known = 0 if exact is None else len(exact)
    for start in range(0, known, BATCH):
        stop = min(start + BATCH, known)
        assert exact is not None
        parts.append(Part.known(index, Queries(texts[start:stop]), exact[start:stop]))

    def score(pairs: Pairs, start: int) -> FloatArray:
        assert scorer is not None
        scores = np.full(len(pairs), np.nan, np.float32)
        asked = replace(pairs, query=pairs.query + start)
        for where, found in scorer.score(asked, texts, index.items.texts):
            scores[where] = found
        return scores

    for start in range(known, len(texts), BATCH):
        together = Queries(texts[start : start + BATCH])
        parts.append(Part(index, together, partial(score, start=start)))
    return parts
