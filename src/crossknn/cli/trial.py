"""`crossknn try`: test on your own texts whether searching pays."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from rich.text import Text
from typer import Argument, Option

from crossknn.cli import options as o
from crossknn.cli.index import note_long
from crossknn.cli.output import err, note, out, print_json, progress, say, show_table
from crossknn.data.items import Items
from crossknn.data.passages import cut
from crossknn.data.queries import QuerySet
from crossknn.errors import InputError, counted
from crossknn.index.building import cutting_of
from crossknn.index.item_index import ItemIndex
from crossknn.scorers.base import Scorer
from crossknn.scores.collect import Limits, exact_scores
from crossknn.scores.stored import StoredScorer
from crossknn.search.searcher import Searcher
from crossknn.table import Table
from crossknn.types import FloatArray

if TYPE_CHECKING:
    from crossknn.evaluation.diagnosis import Diagnosis
    from crossknn.evaluation.task import TaskMeasures
    from crossknn.trial.data import Plan, TrialData
    from crossknn.trial.result import Trial

EPILOG = (
    o.examples(
        "crossknn try scifact/    # a BEIR folder, with its own queries and judgements",
        "crossknn try docs.jsonl --queries queries.jsonl --qrels qrels.tsv --scorer my-reranker/",
    )
    + o.RERANKERS
)
DEMO = o.examples("crossknn demo", "crossknn demo --budget 100")
SAMPLE = 200
"""Number of documents that are cut to estimate how many passages there are."""
_UNJUDGED = "No verdict: only judged queries (--qrels) show whether the answers get better."


@dataclass(frozen=True, kw_only=True)
class TrialOptions:
    """Options for the data, the size and the measure of a trial."""

    queries: Annotated[
        Path | None, Option(help="Your queries; else those of the BEIR folder, or made from items.")
    ] = None
    qrels: Annotated[
        Path | None, Option(help="Judgements: item ids by query id; else those of the BEIR folder.")
    ] = None
    budget: Annotated[int, Option(min=1, help="Cross-encoder calls per query.")] = 50
    n_queries: Annotated[int, Option(min=5, help="Queries to score against every item.")] = 20
    max_items: Annotated[int, Option(min=100, help="Use a sample of this many items.")] = 10_000
    minutes: Annotated[
        float, Option(min=0.1, help="Use as many items and queries as fit into this time.")
    ] = 10.0
    measure: Annotated[str, Option(help="Measure of the verdict, with judgements.")] = "nDCG@10"
    encoder: Annotated[str, Option(help="Dual encoder: a folder, a hub name or none.")] = "bundled"
    passages: o.Passages = None
    folder: Annotated[Path, Option("--out", help="For index and scores.")] = Path("crossknn-try")


@o.grouped
def command(
    items: Annotated[
        Path, Argument(metavar="ITEMS", help="File of items: JSONL, CSV, TSV, text or BEIR folder.")
    ],
    *,
    options: TrialOptions,
    fields: o.FieldOptions,
    scorer: o.ScorerOptions,
    json: o.AsJson = False,
) -> None:
    """Test on your own texts whether searching with your cross-encoder pays, at --budget calls.

    The command first says what it will cost. Then it encodes a sample of the items and scores some
    queries against the whole sample, to measure what reranking misses. With judgements, a verdict
    by --measure follows. With several --scorer, a table shows what is found if the cheaper ones
    search first, in the same time. Run the same command again to resume after an interruption.
    """
    from crossknn.trial.result import Trial

    o.check_path("--out", options.folder, folder=True)
    data = _read(items, options, fields)
    *others, exact = scorer.open_all(workers=o.threads(None))
    plan = _plan(data, options, exact)
    data = data.sample(plan.items)
    for sentence in data.check(options.measure):
        note(sentence)
    data = data.first(plan.judged) if plan.judged < data.n_judged else data
    _say_cost(plan, data, options.minutes)
    index = _built(data.items, options)
    stored = StoredScorer(exact, o.open_store(exact, index, None))
    until = time.monotonic() + 60 * options.minutes
    scores = _score(index, data.queries.take(range(plan.queries)), stored, until)
    in_time = len(scores) == plan.queries
    judged = data.first(plan.judged if in_time else len(scores))
    with progress("verdict", "pairs") as report:
        trial = Trial.run(
            *(index, judged.queries, scores, judged.qrels),
            scorer=stored,
            budget=options.budget,
            measure=options.measure,
            made_up=data.made_up,
            progress=report,
        )
    task = judged.first(len(scores)).task(options.measure, index.answer_ids)
    splits = _splits(others, stored, trial, scores, task) if others else None
    show(trial, json, splits)
    if json:
        return
    say("")
    if trial.made_up:
        say("These queries are made from your items, and easier than real ones.")
    if trial.diagnosis is None:
        say(_UNJUDGED)
    else:
        show_diagnosis(trial.diagnosis)
    saved = options.folder / "index"
    note(f"next: crossknn compare {saved} --queries FILE --qrels FILE, which reuses these scores")


def _read(items: Path, options: TrialOptions, fields: o.FieldOptions) -> TrialData:
    from crossknn.trial.data import read_trial

    read, queries = fields.read(items), options.queries
    n, is_whole = min(len(read), options.max_items), options.passages is None
    if is_whole and options.budget // 2 > n:  # a document has several passages
        raise InputError(f"give a --budget of {n} or less: there are only {n} items")
    place, given = (items, None) if queries is None else (queries, o.source(queries))
    return read_trial(read, place, given, options.qrels, options.n_queries)


def _built(items: Items, options: TrialOptions) -> ItemIndex:
    """Build the index; an earlier trial's vectors and scores in its folder are kept."""
    encoder, folder = None if options.encoder == "none" else options.encoder, options.folder
    given: dict[str, Any] = {"encoder": encoder, "passages": options.passages}
    with progress("encoding", "items") as report:
        index = ItemIndex.build(items, folder=folder / "index", progress=report, **given)
    if options.passages is None:
        note_long(index)
    return index


def _plan(data: TrialData, options: TrialOptions, scorer: Scorer) -> Plan:
    """Measure the models, and choose sizes that fit into the minutes."""
    from crossknn.trial import data as planning

    items, texts_per_item = data.items, 1.0
    texts: Sequence[str] = items.texts
    if (cutting := cutting_of(options.passages, None, None, None)) is not None:
        some = items.take(range(0, len(items), len(items) // SAMPLE + 1))
        texts = cut(some, cutting).texts
        texts_per_item = len(texts) / len(some)
    with err.status("measuring the models"):
        speed, per_text = planning.pairs_per_second(scorer, texts), 0.0
        if options.encoder != "none":
            per_text = 1 / planning.texts_per_second(options.encoder, texts)
    return planning.Plan.within(
        options.minutes,
        pairs_per_second=speed,
        seconds_per_text=per_text,
        items=min(len(data.items), options.max_items),
        judged=max(data.n_judged, min(len(data.queries), options.n_queries)),
        n_queries=options.n_queries,
        budget=options.budget,
        texts_per_item=texts_per_item,
    )


def _say_cost(plan: Plan, data: TrialData, minutes: float) -> None:
    fitting = "" if plan.complete else f"; as many as fit into {minutes:g} minutes"
    verdict = ""
    if plan.verdict_pairs:
        verdict = f"; then at most {plan.verdict_pairs:,} for the verdict on {plan.judged} queries"
    note(
        f"{len(data.items):,} items, {counted(len(data.queries), 'query')}{data.origin}{fitting}; "
        f"the cross-encoder scores {plan.pairs_per_second:,.0f} pairs a second here: all items "
        f"for {counted(plan.queries, 'query')} are {plan.pairs:,} pairs{verdict}; "
        f"{plan.minutes:.1f} minutes, or less where scores are kept from before"
    )


def _score(index: ItemIndex, queries: QuerySet, stored: StoredScorer, until: float) -> FloatArray:
    """Score queries against every item, one after the other, until the time `until`; as many as can
    show a clear difference are scored in any case."""
    from crossknn.evaluation.diagnosis import ENOUGH

    n, m, limits = index.n, len(queries), Limits(workers=o.threads(None))
    rows: list[FloatArray] = []
    with progress("every item", "pairs") as report:
        for q, text in enumerate(queries.texts):
            if q >= ENOUGH and time.monotonic() > until:
                note(f"the time is over after {q} of {m} queries; the others are left out")
                break

            def of_all(done: int, _: int, q: int = q) -> None:
                report(q * n + done, m * n)

            given = stored.store, stored.scorer, [text], index.items.texts
            rows += [*exact_scores(*given, limits=limits, progress=of_all)]
    return np.stack(rows)


def _splits(
    cheaper: Sequence[Scorer],
    stored: StoredScorer,
    trial: Trial,
    scores: FloatArray,
    task: TaskMeasures | None,
) -> Table:
    """Tabulate what is found if cheaper scorers take a share of the time."""
    from crossknn.evaluation.compare import Evaluation, query_batches
    from crossknn.evaluation.rungs import splits_of

    index, queries = trial.index, trial.queries
    batches = query_batches(index, queries, stored, scores)
    evaluation = Evaluation(batches=batches, ks=[trial.k], depth=trial.budget, task=task)
    searcher = Searcher(index, [*(o.stored(each, index) for each in cheaper), stored])
    with progress("splits", "splits") as report:
        rates = Searcher(index, [*cheaper, stored.scorer]).rates(queries.texts)
        return splits_of(searcher, evaluation, trial.budget, rates, report)


def show(trial: Trial, json: bool, splits: Table | None = None) -> None:
    """Print the shares, their difference, what reranking missed, and splits between scorers."""
    if json:
        made = trial.as_dict()
        if splits is not None:
            made["splits"] = [dict(zip(splits.head, row, strict=True)) for row in splits.rows]
        print_json(made)
        return
    show_table(trial.table())
    say("")
    say(trial.sentence)
    for table in filter(None, (trial.missed, splits)):
        say("")
        show_table(table)


def show_diagnosis(diagnosis: Diagnosis) -> None:
    """Print a verdict, and the tables behind it."""
    out.print(Text(diagnosis.sentence, "bold"))
    for table in (diagnosis.table(), diagnosis.comparisons()):
        say("")
        show_table(table)


def demo(
    budget: Annotated[int, Option(min=1, max=1000, help="Cross-encoder calls per query.")] = 50,
    json: o.AsJson = False,
) -> None:
    """Show what reranking misses and searching finds with equally many cross-encoder calls.

    The package contains a sample: sentences with a marked word, 11,587 meanings, and stored scores
    of a real cross-encoder, so that the demo takes seconds.
    """
    from crossknn.sample import sample
    from crossknn.trial.result import Trial

    began = time.perf_counter()
    with err.status("opening the sample"):
        data = sample()
    if not json:
        say(
            f"{len(data.queries)} sentences with a marked word, {data.index.n:,} meanings of "
            f"nouns: which is meant? {counted(budget, 'cross-encoder call')} for each."
        )
        say("")
    given = data.index, data.queries, data.scores, data.qrels
    with err.status("searching"):
        trial = Trial.run(*given, budget=budget)
    show(trial, json)
    note(f"{time.perf_counter() - began:.0f} s; next, with your own texts: crossknn try FILE")
