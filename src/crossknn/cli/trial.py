"""`crossknn try`: test on your own texts whether searching pays."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
from rich.text import Text
from typer import Argument, Option

from crossknn.cli import options as o
from crossknn.cli.output import err, note, out, print_json, progress, say
from crossknn.errors import InputError, counted, visible

if TYPE_CHECKING:
    from crossknn.data.queries import QuerySet
    from crossknn.evaluation.diagnosis import Diagnosis
    from crossknn.index.item_index import ItemIndex
    from crossknn.page import Section
    from crossknn.scorers.base import Scorer
    from crossknn.scores.store import ScoreStore
    from crossknn.trial.data import TrialData
    from crossknn.trial.plan import Plan
    from crossknn.trial.result import Trial
    from crossknn.types import FloatArray

EPILOG = o.examples(
    "crossknn try scifact/    # a BEIR folder, with its own queries and judgements",
    "crossknn try docs.jsonl --queries queries.jsonl --qrels qrels.tsv --scorer my-reranker/",
)
_WIDTH, _CASES = 32, 3


@dataclass(frozen=True, kw_only=True)
class TrialOptions:
    """Options for the data, the size and the measure of a trial."""

    queries: Annotated[
        Path | None,
        Option(
            help="Your queries, or a BEIR folder; by default those of the BEIR folder ITEMS, "
            "or queries made from the items."
        ),
    ] = None
    qrels: Annotated[
        Path | None,
        Option(
            help="Judgements: item ids by query id; by default those of the BEIR folder that "
            "has the queries."
        ),
    ] = None
    budget: Annotated[
        int,
        Option(
            min=1,
            help="Cross-encoder calls for each query; the verdict is also made at half and at "
            "twice this budget.",
        ),
    ] = 50
    n_queries: Annotated[
        int, Option(min=5, help="Number of queries to score against every item.")
    ] = 20
    max_items: Annotated[int, Option(min=100, help="Use a sample of this many items.")] = 10_000
    minutes: Annotated[
        float,
        Option(
            min=0.1,
            help="Choose the numbers of items and queries (at least eight scored against "
            "every item) to fit into this time.",
        ),
    ] = 10.0
    measure: Annotated[str, Option(help="Measure used for the verdict, with judgements.")] = (
        "nDCG@10"
    )
    encoder: Annotated[
        str, Option(help="Dual encoder: 'bundled', a model folder, a hub name or none.")
    ] = "bundled"
    folder: Annotated[
        Path, Option("--out", help="Folder for the index, the scores and the page.")
    ] = Path("crossknn-try")


@o.grouped
def command(
    items: Annotated[
        Path, Argument(metavar="ITEMS", help="File of items: JSONL, CSV, TSV, text or BEIR folder.")
    ],
    *,
    options: TrialOptions,
    fields: o.FieldOptions,
    scorer: o.ScorerOptions,
    seed: o.Seed = 0,
    json: o.AsJson = False,
) -> None:
    """Test on your own texts whether searching with your cross-encoder pays, and at which budget.

    A BEIR folder has its own queries and judgements; otherwise, without --queries, some are made
    from the items. The command first estimates its cost. Then it encodes a sample of the items and
    scores some queries against all of them, to measure what reranking misses. With judgements the
    verdict uses your measure. The result is also written as an HTML page. Scores are kept in --out:
    run the same command again to resume after an interruption.
    """
    from crossknn.scores.stored import StoredScorer
    from crossknn.trial.result import Trial

    o.check_path("--out", options.folder, folder=True)
    data = _read(items, options, fields, seed)
    exact = scorer.open(workers=o.threads(None))
    plan = _plan(data, options, exact)
    data = data.sample(plan.items, seed)
    for sentence in data.check(options.measure):
        note(sentence)
    if plan.judged < data.n_judged:
        data = data.first(plan.judged)
    _say_cost(plan, data, options.minutes)
    index = _index(data, options)
    store = o.open_store(exact, index, None)
    until = time.monotonic() + 60 * options.minutes
    queries = data.queries.take(range(plan.queries))
    scores = _score(index, queries, exact, store, until, options.budget, seed)
    in_time = len(scores) == plan.queries
    judged = data.first(plan.judged if in_time else len(scores))
    with progress("verdict", "pairs") as report:
        trial = Trial.run(
            *(index, judged.queries, scores, judged.qrels),
            scorer=StoredScorer(exact, store),
            budget=options.budget,
            budgets=plan.budgets,
            measure=options.measure,
            seed=seed,
            made_up=data.made_up,
            progress=report,
        )
    about = (
        f"{items}: {index.n:,} items, {counted(len(judged.queries), 'query')}{data.origin}; "
        f"cross-encoder {scorer.scorer}, retriever {trial.diagnosis.retriever}."
    )
    _report(trial, options.folder, about, json)


def _read(items: Path, options: TrialOptions, fields: o.FieldOptions, seed: int) -> TrialData:
    from crossknn.trial.data import TrialData

    read = fields.read(items)
    if options.budget // 2 > (n := min(len(read), options.max_items)):
        raise InputError(
            f"--budget is {options.budget}, but there are only {n} items: give {n} or less"
        )
    queries = options.queries
    return TrialData.read(
        read,
        items if queries is None else queries,
        None if queries is None else o.source(queries),
        options.qrels,
        n_queries=options.n_queries,
        seed=seed,
    )


def _plan(data: TrialData, options: TrialOptions, scorer: Scorer) -> Plan:
    """Measure the models, and choose sizes that fit into the minutes."""
    from crossknn.trial import plan as planning

    texts = data.items.texts
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
    )


def _say_cost(plan: Plan, data: TrialData, minutes: float) -> None:
    """Print the planned numbers of pairs, and the estimated time, before scoring."""
    fitting = "" if plan.complete else f"; as many as fit into {minutes:g} minutes"
    verdict = ""
    if plan.verdict_pairs:
        verdict = f"; then at most {plan.verdict_pairs:,} for the verdict on {plan.judged} queries"
    pairs = plan.queries * plan.items
    note(
        f"{len(data.items):,} items, {counted(len(data.queries), 'query')}{data.origin}{fitting}; "
        f"the cross-encoder scores {plan.pairs_per_second:,.0f} pairs a second here: everything "
        f"for {counted(plan.queries, 'query')} is {pairs:,} pairs{verdict}; {plan.minutes:.1f} "
        "minutes, or less where scores are kept from before"
    )


def _index(data: TrialData, options: TrialOptions) -> ItemIndex:
    """Open the index of an earlier trial of these texts, or build and save a new one."""
    from crossknn.index.item_index import ItemIndex
    from crossknn.index.storage import MANIFEST

    saved = options.folder / "index"
    index = ItemIndex.load(saved) if (saved / MANIFEST).is_file() else None
    if index is None or list(index.items.texts) != list(data.items.texts):
        name = None if options.encoder == "none" else options.encoder
        with progress("encoding", "items") as report:
            index = ItemIndex.build(data.items, encoder=name, folder=saved, progress=report)
    return index


def _score(
    index: ItemIndex,
    queries: QuerySet,
    scorer: Scorer,
    store: ScoreStore,
    until: float,
    budget: int,
    seed: int,
) -> FloatArray:
    """Score queries against every item, one after the other, and print the result of each.

    Queries that would begin after the time `until` are left out, unless so few would show no clear
    difference.
    """
    from crossknn.evaluation.diagnosis import ENOUGH
    from crossknn.scores.collect import Limits, exact_scores
    from crossknn.trial.result import Trial

    m = len(queries)
    rows: list[FloatArray] = []
    for q in range(m):
        if q >= ENOUGH and time.monotonic() > until:
            note(f"the time is over after {q} of {m} queries; the others are left out")
            break
        one = queries.take([q])
        with progress(f"query {q + 1} of {m}", "pairs") as report:
            limits = Limits(workers=o.threads(None))
            texts = one.texts, index.items.texts
            rows += [*exact_scores(store, scorer, *texts, limits=limits, progress=report)]
        trial = Trial.run(index, one, np.stack(rows[-1:]), budget=budget, seed=seed)
        by_rerank, by_search = (
            round(trial.k * float(trial.neighbours[way][0])) for way in ("rerank", "crossknn")
        )
        note(
            f"{q + 1} of {m}: reranking finds {by_rerank} of the true top {trial.k}, searching "
            f"{by_search}: {' '.join(one.texts[0].split()):.60}"
        )
    return np.stack(rows)


def _report(trial: Trial, folder: Path, about: str, json: bool) -> None:
    """Print the trial and its verdict, and write the page."""
    diagnosis = trial.diagnosis
    said = _verdict(diagnosis)
    show(trial, json)
    if json:
        print_json({"verdict": diagnosis.as_dict()})
    else:
        out.print(Text(f"Verdict: {said}", "bold"))
        note(
            f"next: crossknn compare {folder / 'index'} --queries FILE --qrels FILE, which "
            "reuses these scores"
        )
    sections = [_by_budget(diagnosis)]
    write(trial, folder, "Does searching pay here?", f"{said} {about}", sections)


def _verdict(diagnosis: Diagnosis) -> str:
    if diagnosis.verdict is None:
        return diagnosis.sentence
    said = f"by {diagnosis.measure} of {diagnosis.queries} queries: {diagnosis.sentence}"
    nothing = [at.budget for at in diagnosis.figures if at.reach and not at.reach.high]
    if nothing:
        said += (
            f" No relevant item ranks below the first {nothing[0]}: searching can find no more "
            "relevant items."
        )
    return said


def _by_budget(diagnosis: Diagnosis) -> Section:
    from crossknn.page import Section, Table

    head, *rows = diagnosis.table()
    at = ", ".join(str(figures.budget) for figures in diagnosis.figures)
    about = f"The verdict is made at {at} calls: half the budget, the budget, and twice the budget."
    return Section(title="By budget", blocks=[about, Table(head=head, rows=rows), diagnosis.legend])


def show(trial: Trial, json: bool) -> None:
    """Print the bars, the items that reranking missed, and the verdict."""
    if json:
        print_json(trial.as_dict())
        return
    for title, rows in trial.groups().items():
        out.print(Text(title, "bold"))
        for place, (name, share) in enumerate(rows):
            full = round(_WIDTH * share)
            style = "blue" if place == 1 else "default"
            bar = Text("█" * full, style).append("░" * (_WIDTH - full), "dim")
            out.print(Text(f"  {name:24} ").append(bar).append(f" {100 * share:5.1f}%"))
        out.print()
    _show_cases(trial)
    say(trial.sentence)


def _show_cases(trial: Trial) -> None:
    """Print the first queries whose right item was found only by the search."""
    cases, opposite = trial.cases
    if not cases:
        return
    other = f" (and {opposite} the other way round)" if opposite else ""
    which = "the first " if len(cases) > _CASES else ""
    found = f"Found by searching, missed by reranking: {counted(len(cases), 'query')}{other}"
    out.print(Text(f"{found}, {which}{min(_CASES, len(cases))} here", "bold"))
    for case in cases[:_CASES]:
        title, *others = visible(case.text).splitlines() or [""]
        about = f"{title}: {' '.join(others)}" if others else title
        for line, style in ((f"“{visible(case.query)}”", "cyan"), (f"  {about}", "")):
            out.print(Text(f"  {line}", style), no_wrap=True, overflow="ellipsis")
        out.print(
            f"    number {case.retriever_place:,} of the retriever: reranking {trial.budget} "
            f"never sees it; number {case.search_place} of the search",
            style="dim",
            highlight=False,
        )
    out.print()


def write(
    trial: Trial, folder: Path, title: str, lead: str, sections: Sequence[Section] = ()
) -> None:
    """Write the trial's page and print its path."""
    from crossknn.page import write_page

    write_page(trial.page(title, lead, sections), folder)
    note(f"page: {folder / 'index.html'}")
