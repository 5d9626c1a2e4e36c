"""`crossknn compare`: compare methods at equal budgets on your own queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from crossknn.cli import options as o
from crossknn.cli.output import note, print_json, progress, say, show_table
from crossknn.cli.search import add_lists, using_lists
from crossknn.cli.trial import show_diagnosis
from crossknn.data.qrels import read_qrels
from crossknn.data.queries import QuerySet
from crossknn.errors import InputError
from crossknn.index.item_index import ItemIndex
from crossknn.methods import DEFAULT, Method, parse_method, parse_methods
from crossknn.methods.rerank import Exact, Rerank
from crossknn.retrievers.specs import first_stage
from crossknn.scores.collect import Limits, exact_scores
from crossknn.scores.stored import StoredScorer
from crossknn.search.fusion import Fusion
from crossknn.search.searcher import Budget, Searcher
from crossknn.spec import text_of
from crossknn.types import FloatArray

if TYPE_CHECKING:
    from crossknn.evaluation.compare import Evaluation
    from crossknn.evaluation.task import TaskMeasures

EPILOG = o.examples(
    "crossknn compare docs.index --queries queries.jsonl -k 10",
    "crossknn compare docs.index --queries beir/ --qrels beir/qrels/test.tsv --budgets 50,100",
)
METHODS = f"rerank(retriever=bm25), rerank(retriever=hybrid), axn(rounds=10, ridge=0.3), {DEFAULT}"


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Queries, methods, budgets and measures of the comparison."""

    queries: Annotated[Path, Option(help="File of queries, BEIR folder, or - for standard input.")]
    qrels: Annotated[Path | None, Option(help="Judgements, for measures and the verdict.")] = None
    budgets: Annotated[str, Option(help="Pairs to score per query, such as 20,50.")] = "50,100,200"
    methods: Annotated[str, Option(help="Methods to compare, separated by commas.")] = METHODS
    k: o.Neighbours = None
    measures: Annotated[
        str | None, Option(help="Measures of ir-measures; the verdict uses the first (nDCG@10).")
    ] = None
    no_exact: Annotated[
        bool, Option("--no-exact", help="Skip exact search, and report only --measures.")
    ] = False
    keep_own: o.KeepOwn = False
    lists: o.Lists = None

    def check(self) -> None:
        """Raise `InputError` for options that contradict each other, before anything is read."""
        if self.measures is not None and self.qrels is None:
            raise InputError("--measures needs relevance judgements: give --qrels FILE")
        if self.no_exact and (self.qrels is None or self.k is not None):
            raise InputError("--no-exact measures no recall: give --qrels FILE, and leave out -k")

    def task(self, queries: QuerySet, index: ItemIndex) -> TaskMeasures | None:
        """Make the measures; problems with the judgements are reported before scoring."""
        from crossknn.evaluation.task import DEFAULT as MEASURES
        from crossknn.evaluation.task import Judgements, TaskMeasures, measure_names

        if self.qrels is None:
            return None
        qrels = read_qrels(self.qrels)
        judged = Judgements.from_qrels(qrels, queries, index.answer_ids, keep_own=self.keep_own)
        names = MEASURES if self.measures is None else measure_names(self.measures)
        task = TaskMeasures(judged, names)
        for sentence in judged.notes():
            note(sentence)
        return task


@o.grouped
def command(
    folder: o.Folder,
    *,
    options: CompareOptions,
    scorer: o.ScorerOptions,
    store: o.Store = None,
    json: o.AsJson = False,
) -> None:
    """Compare methods at equal budgets: recall against exact search, and measures by --qrels.

    Exact search scores every item for every query once. The scores are stored in the index, or in
    --store: run the same command again to resume after an interruption.

    Reranking and the first stage alone are always compared. With several --scorer, the last one is
    compared alone and after a search with the cheaper ones, which score ten pairs for one of the
    last. With --qrels, a verdict at the end says whether to search, rerank or keep the first stage.
    """
    from crossknn.evaluation.compare import Evaluation, query_batches, table_of

    options.check()
    methods, budgets = parse_methods(options.methods), o.numbers(options.budgets, "budgets")
    index = ItemIndex.load(folder)
    index.check_compact("a comparison")  # before anything is scored
    ks = o.neighbours(options.k, index.n, folder)
    queries = o.read_queries(options.queries)
    add_lists(index, options.lists, queries)
    task = options.task(queries, index)
    *others, exact = scorer.open_all(workers=1 if options.no_exact else o.threads(None))
    if options.lists is not None and not any("lists" in str(each) for each in methods.values()):
        for method in map(parse_method, ("rerank", DEFAULT)):
            method = using_lists(index, method, queries, exact.fingerprint, min(budgets))
            methods[str(method)] = method
    stored = StoredScorer(exact, o.open_store(exact, index, store))
    searcher = Searcher(index, [*(o.stored(each, index, store) for each in others), stored])
    for method in methods.values():
        searcher.check_scorer(method)
    scores = None if options.no_exact else _exact(stored, queries, index)
    evaluation = Evaluation(
        batches=query_batches(index, queries, stored, scores),
        ks=() if options.no_exact else ks,
        depth=max(budgets),
        task=task,
    )
    table = _searched(evaluation, methods, budgets, searcher.fusion)
    sentences = list[str]()
    if others:
        rungs, sentences = _after_cheaper(searcher, evaluation, budgets)
        table += rungs
    if json:
        for row in chain(*table):  # with all settings of its method
            method = parse_method(row["method"].partition(", after")[0])
            print_json({**row, "settings": text_of(method.name, method, full=True)})
    else:
        show_table(table_of(table))
    for text in sentences:
        (note if json else say)(text)
    _diagnose(evaluation, methods, budgets, searcher.fusion, json)


def _after_cheaper(
    searcher: Searcher, evaluation: Evaluation, budgets: Sequence[int]
) -> tuple[list[list[dict[str, Any]]], list[str]]:
    """Return rows of reranking and the default search after the cheaper searches, and sentences
    about the latter."""
    from crossknn.evaluation.rungs import after_cheaper, sentence_after
    from crossknn.search.ladder import rate_of

    methods = {name: parse_method(name) for name in ("rerank(retriever=search)", DEFAULT)}
    splits = [Budget(per_query=budget).of_each(searcher.scorers) for budget in budgets]
    with progress("searching with the cheaper scorers", "budgets") as report:
        rungs = [*after_cheaper(searcher, evaluation, methods, splits, report)]
    alone = [*evaluation.outcomes({DEFAULT: methods[DEFAULT]}, budgets)]
    models = [getattr(each, "scorer", each) for each in searcher.scorers]  # not stored scores
    texts = [text for batch in evaluation.batches for text in batch.queries.texts]
    seconds = [rate_of(each, texts, searcher.index.items.texts).seconds for each in models]
    sentences = [sentence_after(alone, *rung, seconds) for rung in rungs[1::2]]
    return [list(outcome.rows()) for _, outcome in rungs], sentences


def _exact(stored: StoredScorer, queries: QuerySet, index: ItemIndex) -> FloatArray:
    """Collect the exact scores (m, n) of all pairs."""
    limits, texts = Limits(workers=o.threads(None)), (queries.texts, index.items.texts)
    with progress("exact search", "pairs") as report:
        return exact_scores(stored.store, stored.scorer, *texts, limits=limits, progress=report)


def _searched(
    evaluation: Evaluation,
    methods: Mapping[str, Method],
    budgets: Sequence[int],
    fusion: Fusion | None,
) -> list[list[dict[str, Any]]]:
    """Return rows of exact search, the retriever and reranking, and of each method and budget.

    If there is a fusion, methods search with it, and exact search is by its final scores, too.
    """
    index = evaluation.batches[0].index
    stage = first_stage(index)
    names = [f"retrieve(retriever={stage})", f"rerank(retriever={stage})"]
    plain = {spec: parse_method(spec) for spec in names if fusion or spec not in methods}
    groups = [(plain, None), (methods, fusion)] if fusion else [({**plain, **methods}, None)]
    exact = {"exact": Exact()} if evaluation.ks else {}
    table: list[list[dict[str, Any]]] = []
    for chosen, by in groups:
        with progress("searching", "pairs") as report:
            best = evaluation.outcomes(exact, [index.n], by)
            outcomes = [*best, *evaluation.outcomes(chosen, budgets, by, report)]
        table += [list(each.rows()) for each in outcomes]
    return table


def _diagnose(
    evaluation: Evaluation,
    methods: Mapping[str, Method],
    budgets: Sequence[int],
    fusion: Fusion | None,
    json: bool,
) -> None:
    """Print a verdict on the last method that searches (or the default), or why there is none."""
    from crossknn.evaluation.diagnosis import check_enough, diagnosis_of, search_ways

    if evaluation.task is None:
        return
    searches = [m for m in methods.values() if m.calls and not isinstance(m, Rerank | Exact)]
    method = searches[-1] if searches else parse_method(DEFAULT)
    n = evaluation.batches[0].index.n
    small = sorted({budget for budget in budgets if budget <= n})
    try:
        check_enough(evaluation.task.judgements)
        if not small:
            raise InputError(f"every budget exceeds {n}, the number of items")
        with progress("verdict", "pairs") as report:
            ways = search_ways(evaluation, method, small, fusion, report)
        diagnosis = diagnosis_of(evaluation, method, ways)
    except InputError as error:
        note(f"no verdict: {error}")
        return
    if json:
        print_json({"diagnosis": diagnosis.as_dict()})
    else:
        say("")
        show_diagnosis(diagnosis)
