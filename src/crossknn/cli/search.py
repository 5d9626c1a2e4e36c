"""`crossknn search`: answer queries from an index."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from crossknn.cli import options as o
from crossknn.cli.answers import show
from crossknn.cli.lists import add_lists, using_lists
from crossknn.cli.output import note, progress
from crossknn.data.queries import QuerySet, own_items, read_queries
from crossknn.errors import CrossknnError, InputError
from crossknn.files import parse_json
from crossknn.index.item_index import ItemIndex
from crossknn.methods import DEFAULT, parse_method
from crossknn.scores.stored import StoredScorer
from crossknn.search.results import Results
from crossknn.search.searcher import Budget, Searcher
from crossknn.types import NO_ITEM

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
            together=question.together,
            trace=explain,
            progress=report,
        )
    shown = tuple(hits[:k] for hits in results.hits) if one_more else results.hits
    show(replace(results, hits=shown), json)
    scorer = searcher.scorer
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
