"""Align an index with a cross-encoder: pay for scores of train queries once, and fit vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossknn.errors import InputError
from crossknn.fitting.aligner import Aligner
from crossknn.fitting.aligners import DEFAULT, aligner
from crossknn.fitting.factorizations import FreeVectors
from crossknn.fitting.job import PER, Job, Spending, Strategy, Tell, silent
from crossknn.index.fitted import FittedVectors
from crossknn.index.item_index import ItemIndex
from crossknn.retrievers.specs import default_vectors, unfitted
from crossknn.scorers import as_scorer
from crossknn.spec import Spec, parse


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """What `align` did: the vectors are in the index under `name`.

    calls: pairs scored in this run; reused: pairs of its plan that were paid before; stopped_by:
    "max_calls", "deadline" or None. notes: sentences on what the data could not give.
    """

    name: str
    vectors: FittedVectors
    calls: int
    reused: int
    stopped_by: str | None
    notes: tuple[str, ...]


def align(
    index: ItemIndex,
    scorer: Any,
    queries: Sequence[str],
    method: str | Aligner = DEFAULT,
    *,
    name: str | None = None,
    vectors: str = "auto",
    strategy: Strategy = "q",
    per: int | None = None,
    retriever: str | Spec | None = None,
    spending: Spending | None = None,
    start: str | Path | None = None,
    encoder_folder: str | Path | None = None,
    seed: int = 0,
    tell: Tell = silent,
) -> Alignment:
    """Item vectors fitted with the cross-encoder, added to the index as `name` (AXN 2.1).

    `queries` are train queries; `method` a spec of `aligners`, whose name is the default `name`.
    `scorer` is a cross-encoder or its name (Ray needs a name). `vectors` are those to start from.
    With the `strategy` "q" `per` items (100) are scored for each query, a tenth of them random, the
    others the best of the retriever `retriever` (by default of these vectors); with "i" `per` random
    queries (5) for each item. Scores are
    kept in the index's folder as they come: whatever stops a run, the next one goes on there, and
    pays no pair twice. Vectors of that name that are there are replaced.

    Raises InputError for queries or options that cannot be used, scores of another cross-encoder
    (unless `spending.rescore`), a full disk; ScorerError for a score that is not a number.
    """
    chosen = aligner(method)
    name = name or chosen.name.replace("-", "_")
    index.check_free(name)
    if strategy not in ("q", "i"):
        raise InputError(f"strategy is {strategy!r}; it must be 'q' or 'i'")
    if chosen.name != "distill" and (start is not None or encoder_folder is not None):
        raise InputError(
            f"{chosen.name} trains no dual encoder: a start or a folder is for distill"
        )
    scorer_name = scorer if isinstance(scorer, str | Path) else None
    job = Job(
        index=index,
        scorer=as_scorer(scorer),
        queries=_texts(queries),
        base=_base(index, vectors),
        strategy=strategy,
        per=PER[strategy] if per is None else per,
        retriever=parse(retriever) if isinstance(retriever, str) else retriever,
        spending=spending or Spending(),
        scorer_name=scorer_name,
        start=start,
        encoder_folder=None if encoder_folder is None else Path(encoder_folder),
        seed=seed,
        tell=tell,
    )
    made = chosen.align(job)
    index.add_fitted(name, made, replace=True)
    return Alignment(
        name=name,
        vectors=made,
        calls=job.calls,
        reused=job.reused,
        stopped_by=job.stopped_by,
        notes=tuple(_notes(chosen, job, made)),
    )


def _base(index: ItemIndex, name: str) -> str:
    """The vectors to start from: not ones that were fitted already, unless they are named."""
    found = (name == "auto" and unfitted(index)) or default_vectors(index, name)
    if found in index.fitted_names:
        raise InputError(
            f"the vectors {found!r} are fitted already: start from the index's own, "
            f"{', '.join(n for n in index.vector_names if n not in index.fitted_names)}"
        )
    return found


def _texts(queries: Sequence[str]) -> list[str]:
    if isinstance(queries, str) or not all(isinstance(q, str) and q.strip() for q in queries):
        raise InputError("train queries must be a list of texts that are not empty")
    if not queries:
        raise InputError("there are no train queries")
    return list(dict.fromkeys(queries))


def _notes(chosen: Aligner, job: Job, made: FittedVectors) -> list[str]:
    found = []
    used, given = made.cost.queries, len(job.queries)
    if (short := max(job.unfinished, given - used)) > 0:
        found.append(f"{short} of {given} train queries have too few scores to learn from yet")
    if untouched := made.details.get("untouched"):
        found.append(
            f"{untouched} of {job.index.n} items have no score to learn from: they keep the "
            "vectors they had"
        )
    d = job.index.vectors(job.base).shape[1]
    if isinstance(chosen, FreeVectors) and used < d:
        found.append(
            f"{used} train queries move item vectors in {used} of {d} dimensions at most: more "
            "queries with fewer items each teach more"
        )
    return found
