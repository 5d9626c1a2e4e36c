"""`crossknn try`: from texts of your own to a verdict."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from rich.text import Text
from typer import Argument, Option

from crossknn.cli import options as o
from crossknn.cli.estimate import pairs_per_second, texts_per_second
from crossknn.cli.output import note, out, print_json, progress, say
from crossknn.errors import InputError, counted, visible

if TYPE_CHECKING:
    from crossknn.data.items import Items
    from crossknn.data.queries import Qrels, QuerySet
    from crossknn.trial import Trial

EPILOG = o.examples(
    "crossknn try scifact/    # a BEIR folder, with its own queries and judgements",
    "crossknn try docs.jsonl --queries queries.jsonl --qrels qrels.tsv --scorer my-reranker/",
)
_WIDTH, _CASES = 32, 3
_FEWEST = 100
"""Items, or else searching is no question."""


def show(trial: Trial, json: bool) -> None:
    """Print the bars, what reranking missed, and what it all says."""
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
    cases, opposite = trial.cases
    if cases:
        other = f" (and {opposite} the other way round)" if opposite else ""
        shown = f", {'the first ' if len(cases) > _CASES else ''}{min(_CASES, len(cases))} here"
        said = f"Found by searching, missed by reranking: {counted(len(cases), 'query')}"
        out.print(Text(said + other + shown, "bold"))
    for case in cases[:_CASES]:
        title, *rest = visible(case.text).splitlines() or [""]
        about = f"{title}: {' '.join(rest)}" if rest else title
        for line, style in ((f"“{visible(case.query)}”", "cyan"), (f"  {about}", "")):
            out.print(Text(f"  {line}", style), no_wrap=True, overflow="ellipsis")
        out.print(
            f"    number {case.place:,} of the retriever: reranking {trial.budget} never sees it; "
            f"number {case.found} of the search",
            style="dim",
            highlight=False,
        )
    if cases:
        out.print()
    say(trial.sentence)


def write(trial: Trial, folder: Path, title: str, lead: str, sections: Any = ()) -> None:
    """Write the trial's page and say where it is."""
    from crossknn.page import write_page

    write_page(trial.page(title, lead, sections), folder)
    note(f"page: {folder / 'index.html'}")


@o.grouped
def command(
    items: Annotated[Path, Argument(metavar="ITEMS", help="JSONL, CSV, TSV, text or BEIR folder.")],
    *,
    queries: Annotated[
        Path | None,
        Option(
            help="Your queries, or a BEIR folder; by default those of the BEIR folder ITEMS, else "
            "some made of items."
        ),
    ] = None,
    qrels: Annotated[
        Path | None,
        Option(
            help="Judgements: item ids for query ids; by default those of the BEIR folder that "
            "has the queries."
        ),
    ] = None,
    budget: Annotated[
        int,
        Option(
            min=1,
            help="Cross-encoder calls for each query; the verdict is also made at half and at "
            "twice as many.",
        ),
    ] = 50,
    n_queries: Annotated[int, Option(min=5, help="Queries that everything is scored for.")] = 20,
    max_items: Annotated[int, Option(min=100, help="Take a sample of so many items.")] = 10_000,
    minutes: Annotated[
        float,
        Option(
            min=0.1,
            help="Take as many queries (eight at least, of which everything is scored) and as many "
            "of the items as fit into this time.",
        ),
    ] = 10.0,
    measure: Annotated[str, Option(help="What counts, with judgements.")] = "nDCG@10",
    encoder: Annotated[
        str, Option(help="'bundled', a model folder, a hub name or none.")
    ] = "bundled",
    fields: o.FieldOptions,
    folder: Annotated[
        Path, Option("--out", help="Keeps the index, the scores and the page.")
    ] = Path("crossknn-try"),
    scorer: o.ScorerOptions,
    seed: o.Seed = 0,
    json: o.AsJson = False,
) -> None:
    """Say whether searching with your cross-encoder pays on your own texts, and at which budget.

    A BEIR folder brings its own queries and judgements; else, without --queries, some are made of
    items. It first says what it will cost. Then it encodes a sample of the items and scores all of
    them for some queries, so that it is known what reranking misses. With judgements the verdict
    is in your measure. It ends with a page. Scores are kept in --out: if it is stopped, run the
    same command again to go on.
    """
    from crossknn.data.reading import read_qrels
    from crossknn.evaluation.diagnosis import ENOUGH, diagnose, relevant_to
    from crossknn.evaluation.task import Judgements, TaskMeasures
    from crossknn.index.item_index import ItemIndex
    from crossknn.index.storage import MANIFEST
    from crossknn.page import Section, Table
    from crossknn.scores.collect import Limits, exact_scores
    from crossknn.scores.stored import StoredScorer
    from crossknn.trial import Trial, questions_from

    own = _own(items if queries is None else queries, qrels)
    if qrels is not None and queries is None and own is None:
        raise InputError("--qrels judges queries: give them, too, with --queries FILE")
    o.check_path("--out", folder, folder=True)
    given = fields.read(items)
    judged, n = None, min(len(given), max_items)
    if budget // 2 > n:
        raise InputError(f"--budget is {budget}, for {n} items: give {n} or less")
    origin = ""
    if own is not None:
        asked, judged, origin = own
    elif queries is None:
        made = questions_from(given, n_queries, seed)
        given, asked, judged = made.items, made.queries, made.qrels
        origin = " made of items"
    else:
        asked = o.read_queries(queries)
        judged = read_qrels(qrels) if qrels is not None else None
    exact = scorer.open(workers=o.threads(None))
    speed = pairs_per_second(exact, given.texts)
    encoding = 0.0 if encoder == "none" else 1 / texts_per_second(encoder, given.texts)
    weighed = len(asked if judged is None else [q for q in asked.ids if q in judged])
    wanted = max(weighed, min(len(asked), n_queries))
    plan = _Plan.within(minutes, speed, encoding, n, wanted, n_queries, budget)
    asked, given = _sampled(asked, given, judged, plan.items, seed)
    if judged is not None:  # what is wrong with them is said before anything is scored
        judgements = Judgements.from_qrels(judged, asked, given.ids)
        for sentence in TaskMeasures(judgements, [measure]).judgements.notes():
            note(sentence)
        relevant_to(judgements)
    m, budgets, more = plan.queries, plan.budgets, plan.more
    fitting = f"; as many as fit into {minutes:g} minutes" * (
        plan.items < n or plan.weighed < wanted
    )
    if plan.weighed < wanted:
        asked = asked.take(range(plan.weighed))
        judged = judged and {query: judged[query] for query in asked.ids if query in judged}
    then = f"; then at most {more:,} for the verdict on {plan.weighed} queries" * bool(more)
    note(
        f"{len(given):,} items, {counted(len(asked), 'query')}{origin}{fitting}"
        f"; the cross-encoder scores {speed:,.0f} pairs a second here: everything for "
        f"{counted(m, 'query')} is {m * plan.items:,} pairs{then}; {plan.minutes:.1f} minutes, or "
        f"less where scores are kept from before"
    )
    saved = folder / "index"
    index = ItemIndex.load(saved) if (saved / MANIFEST).is_file() else None
    if index is None or list(index.items.texts) != list(given.texts):
        with progress("encoding", "items") as report:
            name = None if encoder == "none" else encoder
            index = ItemIndex.build(given, encoder=name, folder=saved, progress=report)
    stored = StoredScorer(exact, o.open_store(exact, index, None))
    rows: list[Any] = []
    until = time.monotonic() + 60 * minutes
    for q in range(m):
        if q >= ENOUGH and time.monotonic() > until:
            note(f"the time is over after {q} of {m} queries; the others are left out")
            m, asked = q, asked.take(range(q))
            break
        with progress(f"query {q + 1} of {m}", "pairs") as report:
            pair = [asked.texts[q]], index.items.texts
            limits = Limits(workers=o.threads(None))
            rows += [*exact_scores(stored.store, exact, *pair, limits=limits, progress=report)]
        one = Trial.run(index, asked.take([q]), np.stack(rows[-1:]), budget=budget, seed=seed)
        found = [round(one.k * float(way.recall[one.k].mean())) for way in (one.rerank, one.search)]
        note(
            f"{q + 1} of {m}: reranking finds {found[0]} of the true top {one.k}, searching "
            f"{found[1]}: {' '.join(asked.texts[q].split()):.60}"
        )
    how: dict[str, Any] = {"budget": budget, "seed": seed, "made": own is None and queries is None}
    trial = Trial.run(index, asked.take(range(m)), np.stack(rows), judged, **how)
    with progress("verdict", "pairs") as report:
        verdict = diagnose(
            index,
            stored,
            asked,
            judged,
            budgets=budgets,
            measure=measure,
            fuse="none",
            seed=seed,
            progress=report,
        )
    said = verdict.sentence
    if judged is not None:
        said = f"by {measure} of {verdict.queries} queries: {said}"
        nothing = [at.budget for at in verdict.figures if at.reach and not at.reach.high]
        if nothing:
            said += (
                f" No relevant item lies beyond the first {nothing[0]}: searching can find no more "
                "relevant items."
            )
    show(trial, json)
    if json:
        print_json({"verdict": verdict.as_dict()})
    else:
        out.print(Text(f"Verdict: {said}", "bold"))
        note(f"next: crossknn compare {saved} --queries FILE --qrels FILE, which has these scores")
    head, *lines = verdict.table()
    about = (
        f"{items}: {index.n:,} items, {counted(len(asked), 'query')}{origin}; cross-encoder "
        f"{scorer.scorer}, retriever {trial.retriever}."
    )
    also = (
        f"The verdict is made at {', '.join(map(str, budgets))} calls: the budget, half and twice."
    )
    blocks: list[Any] = [also, Table(head=head, rows=lines), verdict.legend]
    sections = [Section(title="By budget", blocks=blocks)]
    write(trial, folder, "Does searching pay here?", f"{said} {about}", sections)


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """How much is scored: everything for so many `queries`, and `more` pairs for the verdict on all
    that are `weighed`, at most."""

    items: int
    queries: int
    weighed: int
    budgets: list[int]
    minutes: float

    @property
    def more(self) -> int:
        """Pairs of the verdict: of two methods, at each budget."""
        return 2 * sum(self.budgets) * (self.weighed - self.queries)

    @classmethod
    def within(
        cls,
        minutes: float,
        speed: float,
        encoding: float,
        n: int,
        weighed: int,
        n_queries: int,
        budget: int,
    ) -> _Plan:
        """The most of n items and of the queries that fit, where `speed` pairs are scored in a
        second, and an item is encoded in `encoding` seconds; `InputError` if that is too little.

        Half of the time is for the verdict if that is on more queries than the others.
        """
        from crossknn.evaluation.diagnosis import ENOUGH

        fewest = min(ENOUGH, weighed, n_queries)
        whole = 60 * minutes
        of_scores = 0.5 if weighed > n_queries else 1.0

        def seconds(items: int) -> float:
            return items * (encoding + fewest / speed)

        fits = int(of_scores * whole / (encoding + fewest / speed))
        items = min(n, fits)
        least = min(n, max(_FEWEST, 2 * budget))
        if items < least:
            needed = math.ceil(10 * seconds(least) / of_scores / 60) / 10
            raise InputError(
                f"{minutes:g} minutes are too few: with {speed:,.3g} pairs a second, {fewest} "
                f"queries with {least} items take {needed:g} minutes; give --minutes {needed:g}"
            )
        left = speed * (of_scores * whole - items * encoding)
        queries = min(weighed, n_queries, int(left / items))
        budgets = sorted({b for b in (budget // 2, budget, 2 * budget) if 0 < b <= items})
        left = speed * (whole - items * encoding) - queries * items
        all_weighed = min(weighed, queries + int(left / (2 * sum(budgets))))
        pairs = queries * items + 2 * sum(budgets) * (all_weighed - queries)
        return cls(
            items=items,
            queries=queries,
            weighed=all_weighed,
            budgets=budgets,
            minutes=(items * encoding + pairs / speed) / 60,
        )


def _own(place: Path, qrels: Path | None) -> tuple[QuerySet, Qrels | None, str] | None:
    """Queries of a BEIR folder, judgements (the folder's, unless `qrels` names others), and which
    these are; None for anything else, and for a folder of items alone."""
    from crossknn.data.formats import Beir
    from crossknn.data.reading import read_qrels

    folder = Beir(place)
    if not any(place.glob("queries.jsonl*")):
        return None
    if qrels is not None:
        return folder.queries(None), read_qrels(qrels), f" of {place}, judged by {qrels}"
    known = folder.splits()
    if not known:
        return folder.queries(None), None, f" of {place}"
    if len(known) > 1 and "test" not in known:
        raise InputError(
            f"{place} has judgements of {', '.join(known)}: name one, such as --qrels "
            f"{place / 'qrels' / known[0]}.tsv"
        )
    split = folder.split(None)
    judged = f" of {place}, judged by its split {split}"
    return folder.queries(split), folder.qrels(split), judged


def _sampled(
    queries: QuerySet, items: Items, qrels: Qrels | None, max_items: int, seed: int
) -> tuple[QuerySet, Items]:
    """Queries in random order, judged ones first, and `max_items` items, judged ones among them."""
    order = np.random.default_rng(seed).permutation(len(queries)).tolist()
    judged = qrels or {}
    order.sort(key=lambda row: queries.ids[row] not in judged)
    queries = queries.take(order)
    if len(items) > max_items:
        wanted = {item for query in queries.ids for item in judged.get(query, ())}
        random = np.random.default_rng(seed).permutation(len(items)).tolist()
        random.sort(key=lambda position: items.ids[position] not in wanted)
        items = items.take(sorted(random[:max_items]))
    return queries, items
