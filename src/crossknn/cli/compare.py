"""`crossknn compare`: methods at equal budgets on your own queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich.text import Text
from typer import Option

from crossknn.cli import options as o
from crossknn.cli.lists import add_lists, using_lists
from crossknn.cli.output import err, note, out, print_json, progress, say
from crossknn.errors import InputError, counted
from crossknn.methods import DEFAULT, Method, parse_method, parse_methods

if TYPE_CHECKING:
    from crossknn.data.queries import Qrels, QuerySet
    from crossknn.evaluation.replay import RecallRow
    from crossknn.index.item_index import ItemIndex
    from crossknn.scorers.base import Scorer

EPILOG = o.examples(
    "crossknn compare docs.index --queries queries.jsonl --plot recall.png",
    "crossknn compare docs.index --queries beir/ --qrels beir/qrels/test.tsv --budgets 50,100",
)
METHODS = f"rerank(retriever=bm25), rerank(retriever=hybrid), axn(rounds=10, ridge=0.3), {DEFAULT}"


@o.grouped
def command(
    folder: o.Folder,
    *,
    queries: Annotated[Path, Option(help="File of queries, BEIR folder, or - for standard input.")],
    qrels: Annotated[
        Path | None, Option(help="Relevance judgements, for --measures and the diagnosis.")
    ] = None,
    budgets: Annotated[
        str, Option(help="Budgets to compare at, separated by commas.")
    ] = "50,100,200",
    methods: Annotated[str, Option(help="Methods to compare, separated by commas.")] = METHODS,
    k: o.Neighbours = None,
    measures: Annotated[
        str | None,
        Option(
            help="Measures of ir-measures, the first for the diagnosis; by default "
            "nDCG@10, R@10, R@20, R@100, RR@10."
        ),
    ] = None,
    fuse: Annotated[
        Literal["auto", "none"],
        Option(help="auto: search by the final score, if `crossknn fit INDEX fusion` was run."),
    ] = "auto",
    no_exact: Annotated[
        bool, Option("--no-exact", help="Skip exact search, report only --measures; needs --qrels.")
    ] = False,
    keep_own: o.KeepOwn = False,
    lists: o.Lists = None,
    limit: Annotated[
        int | None, Option(min=1, help="Use only this many queries, from the first.")
    ] = None,
    plot: Annotated[
        Path | None, Option(help="Plot recall against calls to this file; not with --no-exact.")
    ] = None,
    plot_offline: Annotated[
        Path | None,
        Option(
            help="Plot recall against the offline calls of the index to this file; not with "
            "--no-exact."
        ),
    ] = None,
    scorer: o.ScorerOptions,
    store: o.Store = None,
    workers: o.Workers = None,
    seed: o.Seed = 0,
    json: o.AsJson = False,
) -> None:
    """Compare methods with exact search at equal budgets: recall, and measures by --qrels.

    Exact search scores every item for every query once; `crossknn estimate`
    says how long that takes. The scores are stored in the index, or in --store:
    run the same command again to resume after an interruption.

    Reranking and the first-stage retriever alone are always compared. With
    --qrels, a diagnosis at the end recommends keeping the retriever, reranking
    or searching deeper.
    """
    from crossknn.data.reading import read_qrels
    from crossknn.evaluation.task import DEFAULT as MEASURES
    from crossknn.evaluation.task import Judgements, TaskMeasures, measure_names
    from crossknn.index.item_index import ItemIndex
    from crossknn.plots import recall_against_cost, recall_against_indexing

    o.check_picture("--plot", plot)
    o.check_picture("--plot-offline", plot_offline)
    if measures is not None and qrels is None:
        raise InputError("--measures needs relevance judgements: give --qrels FILE")
    if no_exact:
        recall = {"-k": k, "--plot": plot, "--plot-offline": plot_offline}
        out_of_place = [name for name, given in recall.items() if given]
        todo = ["give --qrels FILE"] * (qrels is None)
        todo += [f"leave out {', '.join(out_of_place)}"] * bool(out_of_place)
        if todo:
            raise InputError(f"--no-exact gives no recall: {', and '.join(todo)}")
    chosen, costs = parse_methods(methods), o.numbers(budgets, "budgets")
    index = ItemIndex.load(folder)
    index.check_compact("a comparison")  # before anything is scored
    ks = o.neighbours(k, index.n, folder)
    given = o.read_queries(queries, limit)
    add_lists(index, lists, given)
    judged = read_qrels(qrels) if qrels is not None else None
    wanted = MEASURES if measures is None else measure_names(measures)
    if judged is not None:  # what is wrong with them is said before anything is scored
        judgements = Judgements.from_qrels(judged, given, index.items.ids, keep_own=keep_own)
        for sentence in TaskMeasures(judgements, wanted).judgements.notes():
            note(sentence)
    at_once = o.threads(workers)
    exact = scorer.open(workers=1 if no_exact else at_once)
    if lists is not None and not any("lists" in str(known) for known in chosen.values()):
        for known in (parse_method("rerank"), parse_method(DEFAULT)):
            own = using_lists(index, known, given, exact.fingerprint, min(costs))
            chosen[str(own)] = own
    rows = run(
        index,
        given,
        exact,
        chosen,
        costs,
        ks,
        store=store,
        workers=at_once,
        json=json,
        qrels=judged,
        measures=wanted,
        seed=seed,
        fuse=fuse,
        exact=not no_exact,
        keep_own=keep_own,
    )
    data = f"{counted(index.n, 'item')}, {counted(len(given), 'query')}"
    if plot is not None:
        recall_against_cost(rows, plot, note=f"{data}. Bands: 95% intervals.")
        note(f"plot: {plot}")
    if plot_offline is not None:
        recall_against_indexing(rows, plot_offline, title=data)
        note(f"plot: {plot_offline}")


def run(
    index: ItemIndex,
    queries: QuerySet,
    scorer: Scorer,
    methods: Mapping[str, Method],
    budgets: Sequence[int],
    ks: Sequence[int],
    *,
    json: bool,
    store: Path | None = None,
    workers: int | None = None,
    qrels: Qrels | None = None,
    measures: Sequence[str] = (),
    seed: int = 0,
    fuse: str = "none",
    exact: bool = True,
    keep_own: bool = False,
) -> list[RecallRow]:
    """Compare the methods and print the table, then the diagnosis; the rows but exact search's."""
    from crossknn.evaluation.replay import compare
    from crossknn.methods.rerank import Exact, Rerank
    from crossknn.retrievers.specs import first_stage
    from crossknn.scores.collect import Limits, exact_scores
    from crossknn.scores.stored import StoredScorer
    from crossknn.searcher.searcher import Searcher
    from crossknn.spec import text_of

    stored = StoredScorer(scorer, o.open_store(scorer, index, store))
    searcher = Searcher(index, stored, fuse=fuse, seed=seed)
    for method in methods.values():
        searcher.check_scorer(method)
    own = searcher.of_scorer()
    fusion, stage = searcher.fusion, first_stage(own)
    known = [f"retrieve(retriever={stage})", f"rerank(retriever={stage})"]
    plain = {spec: parse_method(spec) for spec in known if fusion or spec not in methods}
    groups = [(plain, None), (methods, fusion)] if fusion else [({**plain, **methods}, None)]
    options: dict[str, Any] = {"measures": measures, "seed": seed, "keep_own": keep_own}
    table: list[list[RecallRow]] = []
    if exact:
        with progress("exact search", "pairs") as report:
            texts, limits = (queries.texts, index.items.texts), Limits(workers=o.threads(workers))
            scores = exact_scores(stored.store, scorer, *texts, limits=limits, progress=report)
    for chosen, by in groups:
        if exact:
            given = own, queries, scores, chosen, budgets, ks
            with err.status("searching"):
                found = compare(*given, qrels=qrels, fusion=by, **options)
                table += [list(each.rows()) for each in found]
        else:
            assert qrels is not None
            with progress("searching", "pairs") as report:
                options |= {"qrels": qrels, "progress": report}
                found = compare(index, queries, stored, chosen, budgets, fusion=by, **options)
                table += [list(each.rows()) for each in found]
    if json:
        for row in chain(*table):
            parsed = parse_method(row.method)
            print_json(row.as_dict() | {"settings": text_of(parsed.name, parsed, full=True)})
    else:
        show(table, ks if exact else ())
    if qrels:
        searches = [m for m in methods.values() if m.calls and not isinstance(m, Rerank | Exact)]
        _diagnose(
            *(index, stored, queries, qrels, json),
            budgets=[budget for budget in budgets if budget <= index.n],
            measure=measures[0],
            method=[DEFAULT, *searches][-1],
            fuse=fuse,
            keep_own=keep_own,
            seed=seed,
        )
    named = (replace(r, method=r.method + ", fused" * r.fused) for r in chain(*table))
    return [row for row in named if row.method.removesuffix(", fused") != "exact"]


def _diagnose(
    index: ItemIndex, scorer: Scorer, queries: QuerySet, qrels: Qrels, json: bool, **options: Any
) -> None:
    """Print the diagnosis; why there is none, if so."""
    from crossknn.evaluation.diagnosis import diagnose

    try:
        with progress("diagnosis", "pairs") as report:
            found = diagnose(index, scorer, queries, qrels, progress=report, **options)
    except InputError as error:
        note(f"no diagnosis: {error}")
        return
    if json:
        print_json({"diagnosis": found.as_dict()})
        return
    out.print()
    of = f", {found.measure} of {found.queries} judged queries: {found.retriever}, {found.method}"
    out.print(Text.assemble(("diagnosis", "bold"), of), soft_wrap=True)
    say(str(found))
    out.print(Text(found.legend, "dim"))
    out.print(Text(found.sentence, "bold"))


def show(table: Sequence[Sequence[RecallRow]], ks: Sequence[int]) -> None:
    """Print a block for each method: a line for each of its budgets, which has a row for each k."""
    measures, offline = list(table[0][0].measures), any(rows[0].index_calls for rows in table)
    widths = [7, *[11] * offline, *[15] * len(ks), *(len(m) + 2 for m in measures)]

    def line(cells: Sequence[str], style: str = "") -> None:
        padded = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        out.print(Text(" ".join(padded), style), soft_wrap=True)

    line(["calls", *["offline"] * offline, *(f"k={k}" for k in ks), *measures], "dim")
    previous = None
    for rows in table:
        method, fused = rows[0].method, ", fused" * rows[0].fused
        if method + fused != previous:
            out.print(Text(method + fused, "bold"), soft_wrap=True)
        previous = method + fused
        values = (rows[0].measures[measure] for measure in measures)
        line(
            [
                f"{rows[0].calls:.0f}",
                *[f"{rows[0].index_calls:,}"] * offline,
                *(
                    f"{100 * r.recall:.1f} [{100 * r.ci[0]:.0f}-{100 * r.ci[1]:.0f}]"
                    for r in rows
                    if ks
                ),
                *("-" if value is None else f"{value:.3f}" for value in values),
            ]
        )
    legend = ["k=...: recall of the k best items by exact score, in % [95% interval]"] * bool(ks)
    if any(rows[0].fused for rows in table):
        legend.append("fused: ordered by the final score, which recall also refers to")
    if offline:
        legend.append("offline: cross-encoder calls that the index needs once")
    if legend:
        out.print(Text("; ".join(legend), "dim"))
