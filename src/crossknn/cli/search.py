"""`crossknn search`: answer queries from an index."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.text import Text
from typer import Argument, Option

from crossknn.cli import options as o
from crossknn.cli.output import note, out, print_json, progress, say, show_table
from crossknn.data.queries import QuerySet, own_items, read_queries
from crossknn.errors import CrossknnError, InputError, counted, visible
from crossknn.files import parse_json
from crossknn.index.item_index import ItemIndex
from crossknn.methods import DEFAULT, Method, parse_method
from crossknn.methods.kriging import FIRST_BATCH, Kriging
from crossknn.methods.prior import stored_prior, trend_retrievers
from crossknn.retrievers.base import CandidateLists
from crossknn.retrievers.specs import AUTO, HYBRID, first_stage, stage_names
from crossknn.scores.stored import StoredScorer
from crossknn.search.results import Hit, Results
from crossknn.search.searcher import Budget, Searcher
from crossknn.spec import Spec
from crossknn.table import Cell, Plain, Table
from crossknn.types import NO_ITEM, Queries

EPILOG = (
    o.examples(
        'crossknn search docs.index "how do I unzip a file" --budget 100 --explain',
        "crossknn search docs.index --queries queries.jsonl --run answers.trec",
    )
    + o.RERANKERS
)
Run = Annotated[Path | None, Option(help="Also write the results to this file, as a TREC run.")]
Explain = Annotated[
    bool, Option("--explain", help="Show every scored item with its round and predicted score.")
]
Learn = Annotated[
    bool, Option(help="Fit the index to past searches, after 30 queries and each tenth more.")
]


@dataclass(frozen=True, kw_only=True)
class QuestionOptions:
    """Options for the queries, the filter and the budget."""

    queries: Annotated[Path | None, Option(help="File of queries, or - for standard input.")] = None
    k: Annotated[
        int | None,
        Option("-k", "--k", help="Items to return: 10 by default, and all with --min-score."),
    ] = None
    min_score: Annotated[
        float | None, Option(help="Return only items with at least this score.")
    ] = None
    budget: o.PerQuery = None
    seconds: Annotated[
        float | None,
        Option(
            parser=o.duration,
            metavar="DURATION",
            help="Instead of --budget: as many pairs as the scorers score in this time per query.",
        ),
    ] = None
    cost: Annotated[
        float | None,
        Option(help="Instead of --budget: money per query (--scorer-option price=...)."),
    ] = None
    target_recall: Annotated[
        float | None, Option(help="With kriging: stop at this expected recall (0-1).")
    ] = None
    deadline: o.Deadline = None
    together: Annotated[
        bool, Option("--together/--apart", help="Let queries learn from each other's scores.")
    ] = True
    filter: Annotated[
        str | None,
        Option(help='Search only these items: a file of ids, or conditions, \'{"lang": "en"}\'.'),
    ] = None

    group_by: Annotated[
        str | None, Option(help="Find the best groups: items with the same value of this field.")
    ] = None
    group_size: Annotated[int, Option(help="Scored items of a group to show.", min=1)] = 1

    def read(self, texts: list[str]) -> QuerySet:
        """Read the queries from the command line or a file."""
        if bool(texts) == (self.queries is not None):
            raise InputError("give queries either as arguments or with --queries FILE")
        if self.queries is None and texts != [o.STDIN]:
            return read_queries(o.typed(texts))
        return o.read_queries(self.queries or Path(o.STDIN))

    def conditions(self) -> Any:
        """Parse the filter: conditions on fields, or ids in a file."""
        if self.filter is None or not self.filter.lstrip().startswith("{"):
            return None if self.filter is None else o.read_ids(Path(self.filter))
        try:
            return parse_json(self.filter)
        except ValueError as error:
            raise InputError(f"--filter {self.filter:.80} is not valid JSON: {error}") from None


@o.grouped
def command(
    folder: o.Folder,
    query: Annotated[
        list[str] | None, Argument(help="Query texts, or - for standard input.")
    ] = None,
    *,
    question: QuestionOptions,
    method: o.Method = DEFAULT,
    lists: o.Lists = None,
    run: Run = None,
    keep_own: o.KeepOwn = False,
    fuse: o.Fused = "auto",
    explain: Explain = False,
    scorer: o.ScorerOptions,
    store: o.Store = None,
    learn: Learn = True,
    private: o.Private = False,
    json: o.AsJson = False,
) -> None:
    """Find the k best items by cross-encoder score, under a budget of cross-encoder calls.

    Exact scores are stored in the index, or in --store, and never computed
    twice. The index learns from them, which gives later searches a higher
    recall.

    If `crossknn fit` has fitted a fusion, results are ordered by the exact score
    plus weighted retriever scores; after a calibration, each hit shows its
    probability of relevance.
    """
    chosen = parse_method(method)
    o.check_path("--run", run)
    queries, index = question.read(query or []), ItemIndex.load(folder)
    add_lists(index, lists, None if question.queries is None else queries)
    opened = scorer.open_all() if chosen.calls else []
    first = chosen if len(opened) < 2 else parse_method(DEFAULT)
    if lists is not None:  # for the cheapest scorer: the others go on from its search
        fingerprint = opened[0].fingerprint if opened else None
        first = using_lists(index, first, queries, fingerprint, (question.budget or [100])[0])
    scorers = [o.stored(each, index, store, private=private) for each in opened]
    cheapest, others = scorers[0] if scorers else None, scorers[1:]
    searcher = Searcher(index, cheapest, first, fuse=o.fuse_of(fuse))
    if others:
        searcher = Searcher(index, [searcher, *others], chosen, fuse=o.fuse_of(fuse))
    results = _search(searcher, queries, question, run, keep_own, explain, json)
    if learn and isinstance(cheapest, StoredScorer) and cheapest.store is index.scores:
        _learn(index, cheapest)
    _end(results, json)


def _end(results: Results, json: bool) -> None:
    """Exit with code 3 if a query failed, and print the reason."""
    if results.error is None:
        return
    message = results.error  # where it is not printed beside each query
    if len(results) > 1 and not json:
        failed = sum(error is not None for error in results.errors)
        message = f"{failed} of {len(results)} queries ended early"
    if any(results):
        message += "; the results above were found before the failure"
    note(f"crossknn: {message}")
    raise typer.Exit(3)


def _search(
    searcher: Searcher,
    queries: QuerySet,
    question: QuestionOptions,
    run: Path | None,
    keep_own: bool,
    explain: bool,
    json: bool,
) -> Results:
    """Search, print the answers, and write them to the file."""
    k, wanted, one_more = question.k, question.k, False
    limits = Budget(
        per_query=question.budget,
        deadline=question.deadline,
        target_recall=question.target_recall,
        seconds=question.seconds,
        cost=question.cost,
    )
    if run is not None and not keep_own and question.min_score is None:
        one_more = bool((own_items(queries, searcher.index.items.ids) != NO_ITEM).any())
    if one_more:  # the file has k items beside the one that has the id of its query
        k = min(10, len(searcher.index)) if k is None else k
        wanted = min(k + 1, max(k, len(searcher.index)))
    with progress("scoring", "pairs") as report:
        results = searcher.search(
            queries,
            wanted,
            limits,
            min_score=question.min_score,
            filter=question.conditions(),
            group_by=question.group_by,
            group_size=question.group_size,
            together=question.together,
            trace=explain,
            progress=report,
        )
    shown = tuple(hits[:k] for hits in results.hits) if one_more else results.hits
    _show(replace(results, hits=shown), json)
    scorer = searcher.scorer
    if explain and (pace := getattr(scorer, "pace", None)) and pace.each:
        fixed, each = 1000 * np.array(pace.curve or (0.0, pace.each))
        batch = f"a batch takes {fixed:.3g} ms, and " if fixed else ""
        note(f"{counted(results.rounds, 'round')}; {batch}{each:.3g} ms for each pair")
    if scorer is not None and scorer.fingerprint is None and results.error is None:
        note("scores are not kept: name the model behind the endpoint with --endpoint-model")
    if question.filter is not None and not results.n_scored and not any(results):
        note("the filter allows no item")
    if run is not None:
        results.to_run(run, keep_own=keep_own)
        if one_more:
            note(f"{run} leaves out items with the id of their query: --keep-own keeps them")
    return results


def _learn(index: ItemIndex, scorer: StoredScorer) -> None:
    """Learn from the index's searches if enough are new; the answers have been printed before."""
    from crossknn.fitting import learning

    if index.folder is None or not learning.is_due(index, scorer):
        return
    note("fitting the index to past searches, for a higher recall later; --no-learn prevents it")
    try:
        if not learning.learn_apart(index.folder, scorer.fingerprint, learning.PATIENCE):
            note("the fit continues in the background, at low priority")
    except (CrossknnError, OSError) as error:
        note(f"crossknn: the index was not fitted to past searches: {error}")


def _show(results: Results, json: bool) -> None:
    """Print the answers, as text or as one JSON object."""
    if json:
        print_json(results.to_dict())
        return
    for q, text in enumerate(results.queries):
        if results.trace is not None and results.trace[q]:
            _explain(results.trace[q])
        out.print(Text(visible(text), style="bold"))
        for rank, hit in enumerate(results[q], start=1):
            _show_hit(rank, hit, hit.rung < len(results.rungs))
            for member in hit.members[1:]:
                _show_hit("", member, member.rung < len(results.rungs))
        if results.errors[q] is not None and len(results) > 1:
            what = "ended early" if results[q] else "no answer"
            say(f"{what}: {results.errors[q]}")
        if (least := results.min_score) is not None:
            best = results.best_scores[q]
            reached = f"{counted(len(results[q]), 'item')} scored {least:g} or more"
            if not results[q]:
                why = "nothing was scored" if best is None else f"the best score is {best:.2f}"
                reached = f"no scored item reaches {least:g}: {why}"
            out.print(Text(reached, style="dim"))
        if results.none_relevant and (chance := results.none_relevant[q] or 0) >= 0.5:
            out.print(Text(f"probably no relevant item ({chance:.0%})", style="dim"))
        out.print()
    default = results.method == str(parse_method(DEFAULT))
    named = f"{DEFAULT} ({results.method})" if default else results.method
    calls = "".join(f"{each.n_calls:,} + " for each in results.rungs[:-1])
    scores = "".join(f"{each.n_scored:,} + " for each in results.rungs[:-1])
    costs = [each.cost for each in results.rungs if each.cost is not None]
    notes = {
        f"{named}: {calls}{counted(results.n_calls, 'cross-encoder call')} "
        f"({scores}{counted(results.n_scored, 'score')} used), {results.seconds:.2f} s": True,
        f"{results.together} queries learned from each other": results.together,
        f"cost {sum(costs):.3g}": costs,
        f"stopped by {results.stopped_by}": results.stopped_by != "budget",
        f"{counted(results.n_failed, 'pair')} could not be scored": results.n_failed,
        f"{counted(results.truncated or 0, 'pair')} truncated to the model's maximum length": (
            results.truncated
        ),
    }
    out.print(Text("; ".join(text for text, applies in notes.items() if applies), style="dim"))


def _show_hit(rank: int | str, hit: Hit, cheap: bool) -> None:
    """Print two lines: rank, score, group, id and round, if any, or whether only a cheaper scorer
    scored the item; then the beginning of the text, of a document that of its best passage."""
    exact = "" if hit.final_score == hit.score else f"(exact {hit.score:.2f})  "
    head = Text(f"{rank:3}  {hit.final_score:7.2f}  {exact}")
    if hit.predicted:
        head = Text(f"{rank:3}  predicted  ")
    if hit.group not in (None, hit.id):
        head.append(f"{visible(str(hit.group))}  ", style="bold cyan")
    head.append(visible(hit.id), style="cyan")
    if hit.calibrated is not None:
        head.append(f"  {hit.calibrated:.0%} relevant", style="dim")
    if hit.rung and cheap:
        head.append("  scored by a cheaper scorer only", style="dim")
    elif hit.round:
        head.append(f"  round {hit.round}", style="dim")
    if (best := hit.passage) is not None:
        head.append(f"  characters {best.start:,} to {best.end:,}", style="dim")
    out.print(head, no_wrap=True, overflow="ellipsis")
    read = hit.text if best is None else best.text
    body = read.removeprefix(f"{hit.title}\n")
    shown = read if body == read else f"{hit.title}: {body}"
    text = Text(" " * 14 + visible(" ".join(shown.split())))
    out.print(text, no_wrap=True, overflow="ellipsis", soft_wrap=False)


def _explain(trace: list[Hit]) -> None:
    """Print each round: the picked items with their predicted and exact scores."""
    rows, best, previous, highest = list[list[Cell]](), set[tuple[int, int]](), 0, float("-inf")
    for place, hit in enumerate(trace):
        std = "" if hit.std is None else f" ± {hit.std:.3f}"
        approx = None if hit.approx is None else f"{hit.approx:.3f}{std}"
        begun = str(hit.round) if hit.round != previous else ""
        rows.append([begun, approx, f"{hit.score:.3f}", hit.source, Plain(hit.id)])
        if hit.score > highest:
            best.add((place, 0))
        previous, highest = hit.round, max(highest, hit.score)
    legend = "bold: the best so far; in round 1 'predicted' is the retriever's own score\n"
    head = ["round", "predicted", "exact", "by", "id"]
    show_table(Table(head=head, rows=rows, best=frozenset(best), caption=legend))


def add_lists(index: ItemIndex, path: Path | None, queries: QuerySet | None) -> None:
    """Add the user's own candidates, of a TREC run, as the retriever `lists`."""
    if path is None:
        return
    if queries is None:
        raise InputError("--lists refers to queries by id: give the queries with --queries FILE")
    index.add_retriever("lists", CandidateLists.from_run(path, queries, index.items.ids))


def using_lists(
    index: ItemIndex, method: Method, queries: QuerySet, fingerprint: str | None, budget: int
) -> Method:
    """Return the method with `lists` as its retriever, unless it names another one itself.

    Lists shorter than the first batch are filled up by the default retriever. Kriging also uses the
    lists' scores in its trends, unless the index has a prior, whose queries had no lists.
    """
    if getattr(method, "retriever", None) != AUTO:
        if "lists" not in str(method):
            note(
                f"{method} does not use --lists: name it as the retriever, as in --method "
                "'rerank(retriever=lists)', or leave --method out"
            )
        return method
    lists = Spec("lists")
    first_batch = min(max(FIRST_BATCH, budget // 20), index.n)
    items = index.retrievers["lists"].top(Queries(queries.texts), first_batch).items
    is_short = items.shape[1] < first_batch or (items == NO_ITEM).any()
    filled = replace(HYBRID, args=(lists, Spec(first_stage(index))))
    options: dict[str, Any] = {"retriever": filled if is_short else lists}
    without_prior = stored_prior(index.for_scorer(fingerprint)) is None or not getattr(
        method, "use_anchors", True
    )
    if isinstance(method, Kriging) and method.mean is None and without_prior:
        stages = (*map(Spec, stage_names(index, trend_retrievers(index))), lists)
        options["mean"] = replace(HYBRID, args=stages)
    return replace(method, **options)
