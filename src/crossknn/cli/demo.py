"""`crossknn demo`: compare a search with reranking, on stored scores or with live models."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from typer import Option

from crossknn.cli import options as o
from crossknn.cli import trial as shown
from crossknn.cli.answers import show
from crossknn.cli.output import err, note, plain, progress, say
from crossknn.errors import counted

if TYPE_CHECKING:
    from crossknn.search.results import Hit

FOLDER = Path("crossknn-demo")
EPILOG = o.examples(
    "crossknn demo --live", 'crossknn demo --search "measure how long a small piece of code takes"'
)


def command(
    live: Annotated[
        bool, Option("--live", help="Search the documentation of your own Python instead.")
    ] = False,
    search: Annotated[
        str | None, Option(help="Answer this question from that documentation.")
    ] = None,
    budget: Annotated[int, Option(min=1, max=1000, help="Cross-encoder calls per query.")] = 50,
    folder: Annotated[Path, Option(help="Where the demo keeps its files.")] = FOLDER,
    n_queries: Annotated[int, Option(min=1, help="Live: number of queries to compare.")] = 10,
    seed: o.Seed = 0,
    json: o.AsJson = False,
) -> None:
    """Show what reranking misses and searching finds for the same cross-encoder calls.

    Without options it uses the sample in the package: sentences with a marked word, 11,587
    meanings, and stored scores of a real cross-encoder, which takes seconds. With --live the
    bundled models answer the same sentences and search the documentation of your own Python,
    offline. It first estimates how long that takes. Stop it with Ctrl-C at any time; running it
    again resumes.
    """
    o.check_path("--folder", folder, folder=True)
    if live or search is not None:
        _live(search, budget, folder, n_queries, seed, json)
        return
    from crossknn.sample import sample
    from crossknn.trial.result import Trial

    began = time.perf_counter()
    with err.status("opening the sample"):
        found = sample()
    if not json:
        say(
            f"{len(found.queries)} sentences with a marked word, {found.index.n:,} meanings of "
            f"nouns: which is meant? {counted(budget, 'cross-encoder call')} for each."
        )
        say("")
    with err.status("searching"):
        trial = Trial.run(
            found.index, found.queries, found.scores, found.qrels, budget=budget, seed=seed
        )
    shown.show(trial, json)
    shown.write(trial, folder, "What reranking misses", _LEAD)
    note(
        f"{time.perf_counter() - began:.0f} s; next, with models that run: crossknn demo --live; "
        "on texts of yours: crossknn try FILE"
    )


_LEAD = (
    "The queries are sentences with one marked word, the items 11,587 meanings of nouns "
    "(WordNet 3.0). The scores of a cross-encoder with six layers are stored in the package; "
    "the retriever is the bundled dual encoder."
)


def _say_time(texts: Sequence[str], budget: int, n_queries: int, encoded: bool) -> None:
    """Estimate the duration of the live demo on this machine, from a measurement of some
    seconds."""
    from crossknn.demo import SEARCHES
    from crossknn.sample import sample
    from crossknn.scorers import CrossEncoder
    from crossknn.trial.plan import pairs_per_second, texts_per_second

    with err.status("measuring the models"):
        speed = pairs_per_second(CrossEncoder(max_length=96, threads=o.threads(None)), texts)
        encoding = 0.0 if encoded else len(texts) / texts_per_second("bundled", texts)
    searches = (len(sample().queries) + len(SEARCHES)) * budget / speed
    comparing = n_queries * len(texts) / speed
    total = plain(searches + encoding + comparing, "seconds")
    if total[-1].isdigit():
        total += " seconds"
    note(
        f"about {total}: {searches:,.0f} s of searches, {encoding:,.0f} s to encode "
        f"{len(texts):,} documented things, and {comparing:,.0f} s to score all of them for "
        f"{counted(n_queries, 'query')}. Stop it with Ctrl-C at any time; running the same "
        "command again resumes"
    )


def _sample_live(budget: int, seed: int, folder: Path) -> None:
    """Search for the sample's own sentences with the bundled cross-encoder: show three answers at
    once, and then how often the right item is returned."""
    from crossknn.sample import sample
    from crossknn.scorers import CrossEncoder
    from crossknn.scores.stored import StoredScorer
    from crossknn.search.searcher import Searcher

    found, opened = sample(), CrossEncoder("bundled", threads=o.threads(None))
    folder.mkdir(parents=True, exist_ok=True)
    searcher = Searcher(found.index, StoredScorer(opened, folder / "sample-scores.db"))
    queries = found.queries
    answers: list[list[Hit]] = []

    def rank(query: int) -> int:
        right = found.qrels[queries.ids[query]]
        return next((place for place, hit in enumerate(answers[query]) if hit.id in right), 10)

    for query, text in enumerate(queries.texts[:3]):
        with err.status("searching for the sample's sentences; the bundled cross-encoder scores"):
            answers += searcher.search(text, k=10, budget=budget, seed=seed)
        say(text)
        for place in sorted({0, rank(query)} - {10}):
            title = " ".join(answers[query][place].text.split())
            right = "  <- the right one" if place == rank(query) else ""
            say(f"  {place + 1}  {title:.100}{right}")
        say("")
    with progress("the other sentences", "pairs") as report:
        others = queries.texts[3:]
        answers += searcher.search(others, k=10, budget=budget, seed=seed, progress=report)
    ranks = [rank(query) for query in range(len(queries))]
    first, among = (sum(rank < k for rank in ranks) for k in (1, 10))
    say(
        f"the sample's {len(ranks)} sentences, scored now by the bundled cross-encoder: the right "
        f"meaning is first for {first}, among the first ten for {among}"
    )
    say("")


def python_index(folder: Path, first: Callable[[Sequence[str], bool], None] | None = None) -> Path:
    """Return the index of this Python's documentation in a folder; it is built if it does not
    exist.

    Before encoding it calls `first` with the texts, and with whether they are encoded already.
    """
    from crossknn import demo
    from crossknn.data.items import read_items
    from crossknn.data.layouts import write_beir
    from crossknn.index.item_index import ItemIndex
    from crossknn.index.storage import MANIFEST

    began, texts = time.perf_counter(), folder / f"python-{platform.python_version()}"
    saved = texts / "docs.index"
    if (saved / MANIFEST).is_file():
        if first is not None:
            first(ItemIndex.load(saved).items.texts, True)
    else:
        with progress("reading the standard library", "modules") as report:
            corpus = demo.build_corpus(demo.standard_library_items(report))
        write_beir(texts, *corpus)
        items = read_items(texts)
        if first is not None:
            first(items.texts, False)
        note(f"{len(items):,} documented things are encoded, once")
        with progress("encoding", "items") as report:
            how: dict[str, Any] = {"encoder": "bundled", "folder": saved}
            ItemIndex.build(items, **how, progress=report).save(saved)
        note(f"index: {saved} ({time.perf_counter() - began:.0f} s)")
    return saved


def _live(
    search: str | None, budget: int, folder: Path, n_queries: int, seed: int, json: bool
) -> None:
    from crossknn.data.qrels import read_qrels
    from crossknn.data.queries import query_set, read_queries
    from crossknn.demo import SEARCHES
    from crossknn.index.item_index import ItemIndex
    from crossknn.scorers import CrossEncoder
    from crossknn.scores.collect import Limits, exact_scores
    from crossknn.scores.stored import StoredScorer
    from crossknn.search.searcher import Searcher
    from crossknn.trial.result import Trial

    began, cores = time.perf_counter(), o.threads(None)
    asked = query_set(SEARCHES if search is None else search).texts  # before anything is encoded

    def first(texts: Sequence[str], encoded: bool) -> None:
        _say_time(texts, budget, n_queries, encoded)
        if not json:
            _sample_live(budget, seed, folder)

    saved = python_index(folder, first if search is None else None)
    texts = saved.parent
    made, index = read_queries(texts), ItemIndex.load(saved)
    scorer = CrossEncoder(max_length=96, threads=1)  # most docstrings say early what they do
    stored = StoredScorer(scorer, index.scores)
    show(Searcher(index, stored).search(asked, k=5 if search else 2, budget=budget), json)
    if search is not None:
        return
    # Take the first queries of a fixed order, so that a longer run reuses the scores of a shorter
    # one.
    order = np.random.default_rng(seed).permutation(len(made))
    queries = made.take(order[:n_queries].tolist())
    note(
        f"for the comparison, all items are scored for {counted(len(queries), 'sentence')} "
        f"from docstrings: {len(queries) * index.n:,} pairs, stored in the index"
    )
    with progress("exact search", "pairs") as report:
        limits = Limits(workers=cores)
        given = index.scores, scorer, queries.texts, index.items.texts
        scores = exact_scores(*given, limits=limits, progress=report)
    trial = Trial.run(
        index, queries, scores, read_qrels(texts), budget=budget, seed=seed, made_up=True
    )
    shown.show(trial, json)
    lead = (
        f"{index.n:,} documented things of Python {platform.python_version()}, the bundled models."
    )
    shown.write(trial, texts, "The documentation of your Python", lead)
    note(f"{time.perf_counter() - began:.0f} s; next: crossknn demo --search 'your question'")
