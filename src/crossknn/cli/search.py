"""`crossknn search`: answer queries from an index."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from crossknn.cli import options as o
from crossknn.cli.lists import add_lists, using_lists
from crossknn.cli.output import note, out, print_json, progress, say
from crossknn.errors import CrossknnError, InputError, counted, visible
from crossknn.files import parse_json
from crossknn.methods import DEFAULT, parse_method

if TYPE_CHECKING:
    from crossknn.data.queries import QuerySet
    from crossknn.index.item_index import ItemIndex
    from crossknn.scores.stored import StoredScorer
    from crossknn.search.results import Hit, Results

EPILOG = o.examples(
    'crossknn search docs.index "how do I unzip a file" --budget 100 --explain',
    "crossknn search docs.index --queries queries.jsonl --run answers.trec",
)


@o.grouped
def command(
    folder: o.Folder,
    query: Annotated[
        list[str] | None, Argument(help="Query texts, or - for standard input.")
    ] = None,
    *,
    queries: Annotated[
        Path | None, Option(help="File of queries, or - for standard input.")
    ] = None,
    k: Annotated[
        int | None,
        Option(
            "-k",
            "--k",
            help="Number of items to return; by default 10 or all there are, and all with "
            "--min-score.",
        ),
    ] = None,
    min_score: Annotated[
        float | None,
        Option(help="Return only items with at least this score."),
    ] = None,
    budget: o.PerQuery = 100,
    target_recall: Annotated[
        float | None,
        Option(help="With kriging: stop a query when its expected recall reaches this (0-1)."),
    ] = None,
    method: o.Method = DEFAULT,
    filter: Annotated[
        str | None,
        Option(
            help="Search only these items: a file of ids, one per line, or conditions on their "
            'fields as JSON, such as \'{"lang": "en", "year": {"gte": 2020}}\'.'
        ),
    ] = None,
    deadline: o.Deadline = None,
    lists: o.Lists = None,
    run: Annotated[
        Path | None, Option(help="Also write the results to this file, as a TREC run.")
    ] = None,
    keep_own: o.KeepOwn = False,
    fuse: o.Fused = "auto",
    explain: Annotated[
        bool, Option("--explain", help="Show every scored item with its round and predicted score.")
    ] = False,
    scorer: o.ScorerOptions,
    store: o.Store = None,
    learn: Annotated[
        bool,
        Option(
            help="Fit the index to the scores of past searches: after 30 queries, then whenever "
            "the scores have grown by a tenth."
        ),
    ] = True,
    private: o.Private = False,
    seed: o.Seed = 0,
    json: o.AsJson = False,
) -> None:
    """Find the k best items by cross-encoder score, under a budget of cross-encoder calls.

    Exact scores are stored in the index, or in --store, and are never computed
    twice. The index learns from its stored scores, so that later searches find
    more; `crossknn index info` shows how much that helps.

    If `crossknn fit` has fitted a fusion, results are ordered by a final score:
    the exact score plus weighted retriever scores (--fuse none turns this off).
    If it has fitted a calibration, each hit shows its probability of relevance.
    A retriever alone, such as --method 'cmc(retriever=bm25)', makes no
    cross-encoder calls and returns its own scores.
    """
    from crossknn.index.item_index import ItemIndex
    from crossknn.scores.stored import StoredScorer
    from crossknn.searcher.searcher import Budget, Searcher

    chosen = parse_method(method)
    o.check_path("--run", run)
    given = _queries(o.typed(query or []), queries)
    index = ItemIndex.load(folder)
    add_lists(index, lists, None if queries is None else given)
    exact = scorer.open() if chosen.calls else None
    if lists is not None:
        by = None if exact is None else exact.fingerprint
        chosen = using_lists(index, chosen, given, by, budget)
    if exact is not None:
        kept = o.open_store(exact, index, store)
        kept.private |= private
        exact = exact if exact.fingerprint is None else StoredScorer(exact, kept)
    one_more = run is not None and min_score is None and not keep_own and _asks_items(index, given)
    if one_more:  # a run file has k items beside the one that is left out
        k = min(10, len(index)) if k is None else k
    with progress("scoring", "pairs") as report:
        results = Searcher(index, exact, chosen, fuse=o.fuse_of(fuse), seed=seed).search(
            given,
            k=min(k + 1, max(k, len(index))) if one_more and k is not None else k,
            min_score=min_score,
            budget=Budget(per_query=budget, deadline=deadline, target_recall=target_recall),
            filter=None if filter is None else _filter(filter),
            trace=explain,
            progress=report,
        )
    show(replace(results, hits=tuple(of[:k] for of in results.hits)) if one_more else results, json)
    if filter is not None and not results.n_scored and not any(results):
        note("the filter allows no item")
    if run is not None:
        results.to_run(run, keep_own=keep_own)
        if one_more:
            note(f"{run} leaves out items that have the id of their query (--keep-own keeps them)")
    if exact is not None and exact.fingerprint is None and results.error is None:
        note("scores are not kept: name the model behind the endpoint with --endpoint-model")
    if learn and isinstance(exact, StoredScorer) and exact.store is index.scores:
        _learn(index, exact)
    if results.error is not None:
        failed = sum(error is not None for error in results.errors)
        said = results.error  # where it is not said beside each query
        if len(results) > 1 and not json:
            said = f"{failed} of {len(results)} queries ended early"
        note(f"crossknn: {said}; the results above are what was found before")
        raise typer.Exit(3)


def _asks_items(index: ItemIndex, given: QuerySet) -> bool:
    """Whether a query is an item, by its id."""
    from crossknn.data.queries import own_items
    from crossknn.types import NO_ITEM

    return bool((own_items(given, index.items.ids) != NO_ITEM).any())


def _learn(index: ItemIndex, scorer: StoredScorer) -> None:
    """Learn from the searches of the index, if it is time; the answers are printed by now."""
    from crossknn.fitting import learning

    if index.folder is None or not learning.is_due(index, scorer.fingerprint):
        return
    note("fitting the index to past searches, so that later ones find more (--no-learn skips this)")
    try:
        if not learning.learn_apart(index.folder, scorer.fingerprint, learning.PATIENCE):
            note("the fit goes on in the background, at low priority")
    except (CrossknnError, OSError) as error:
        note(f"crossknn: the index was not fitted to past searches: {error}")


def _filter(given: str) -> Any:
    """Conditions on fields, or the ids in a file."""
    if not given.lstrip().startswith("{"):
        return o.read_ids(Path(given))
    try:
        return parse_json(given)
    except ValueError as error:
        raise InputError(f"--filter {given:.80} is not valid JSON: {error}") from None


def _queries(texts: list[str], file: Path | None) -> Any:
    """The queries of the command line, or those of a file."""
    from crossknn.data.reading import read_queries as read

    if bool(texts) == (file is not None):
        raise InputError("give queries either as arguments or with --queries FILE")
    if texts == [o.STDIN]:
        file = Path(o.STDIN)
    return read(texts) if file is None else o.read_queries(file)


def show(results: Results, json: bool) -> None:
    """Print the answers, as text or as one JSON object."""
    if json:
        print_json(results.to_dict())
        return
    for q, text in enumerate(results.queries):
        if results.trace is not None and results.trace[q]:
            _explain(results.trace[q])
        out.print(Text(visible(text), style="bold"))
        for rank, hit in enumerate(results[q], start=1):
            _show_hit(rank, hit)
        if results.errors[q] is not None and len(results) > 1:
            what = "ended early" if results[q] else "no answer"
            say(f"{what}: {results.errors[q]}")
        if results.min_score is not None:
            out.print(Text(_reached(results, q, results.min_score), style="dim"))
        if results.none_relevant and (chance := results.none_relevant[q] or 0) >= 0.5:
            out.print(Text(f"probably no relevant item ({chance:.0%})", style="dim"))
        out.print()
    default = results.method == str(parse_method(DEFAULT))
    named = f"{DEFAULT} ({results.method})" if default else results.method
    notes = [
        f"{named}: {counted(results.n_calls, 'cross-encoder call')} "
        f"({counted(results.n_scored, 'score')} used), {results.seconds:.2f} s"
    ]
    if results.stopped_by != "budget":
        notes.append(f"stopped by {results.stopped_by}")
    if results.n_failed:
        notes.append(f"{counted(results.n_failed, 'pair')} could not be scored")
    if results.truncated:
        notes.append(
            f"{counted(results.truncated, 'pair')} truncated to the model's maximum length"
        )
    if results.n_backfilled:
        notes.append(
            f"{counted(results.n_backfilled, 'item')} in index order: the retriever found too few"
        )
    out.print(Text("; ".join(notes), style="dim"))


def _reached(results: Results, q: int, least: float) -> str:
    """How many scored items of a query reached the least score."""
    if results[q]:
        return f"{counted(len(results[q]), 'item')} scored {least:g} or more"
    best = results.best_scores[q]
    found = "nothing was scored" if best is None else f"the best score is {best:.2f}"
    return f"no item that was scored reaches {least:g}: {found}"


def _show_hit(rank: int, hit: Hit) -> None:
    """Two lines: rank, score, id and round if it has one; the beginning of the text."""
    exact = "" if hit.final_score == hit.score else f"(exact {hit.score:.2f})  "
    # The score of what is predicted is cut to the one before it: it would look exact.
    head = Text(f"{rank:3}  {hit.final_score:7.2f}  {exact}")
    if hit.predicted:
        head = Text(f"{rank:3}  predicted  ")
    head.append(visible(hit.id), style="cyan")
    if hit.calibrated is not None:
        head.append(f"  {hit.calibrated:.0%} relevant", style="dim")
    if hit.round:
        head.append(f"  round {hit.round}", style="dim")
    out.print(head, no_wrap=True, overflow="ellipsis")
    body = hit.text.removeprefix(f"{hit.title}\n")
    said = hit.text if body == hit.text else f"{hit.title}: {body}"
    text = Text(" " * 14 + visible(" ".join(said.split())))
    out.print(text, no_wrap=True, overflow="ellipsis", soft_wrap=False)


def _explain(trace: list[Hit]) -> None:
    """Each round: what was picked, its predicted and its exact score."""
    table = Table(box=None, header_style="dim", padding=(0, 1))
    for name in ("round", "predicted", "exact"):
        table.add_column(name, justify="right")
    table.add_column("by")
    table.add_column("id")
    previous, best = 0, float("-inf")
    for hit in trace:
        std = "" if hit.std is None else f" +- {hit.std:.3f}"
        table.add_row(
            str(hit.round) if hit.round != previous else "",
            "-" if hit.approx is None else f"{hit.approx:.3f}{std}",
            f"{hit.score:.3f}",
            hit.source,
            Text(visible(hit.id)),
            style="bold" if hit.score > best else None,
        )
        previous, best = hit.round, max(best, hit.score)
    out.print(table)
    out.print(
        Text("bold: the best so far; in round 1 'predicted' is the retriever's own score\n", "dim")
    )
