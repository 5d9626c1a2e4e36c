"""`crossknn demo`: compare a search with reranking, on stored scores or with live models."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

from typer import Option

from crossknn.cli import options as o
from crossknn.cli import trial as shown
from crossknn.cli.answers import show
from crossknn.cli.output import err, note, plain, print_json, progress, say
from crossknn.errors import counted

FOLDER = Path("crossknn-demo")
EPILOG = o.examples("crossknn demo", "crossknn demo --live")
_LEAD = (
    "The queries are sentences with one marked word, the items 11,587 meanings of nouns "
    "(WordNet 3.0). The scores of a cross-encoder with six layers are stored in the package; "
    "the retriever is the bundled dual encoder."
)


def command(
    live: Annotated[
        bool, Option("--live", help="Score with the bundled cross-encoder, not from stored scores.")
    ] = False,
    budget: Annotated[int, Option(min=1, max=1000, help="Cross-encoder calls per query.")] = 50,
    folder: Annotated[Path, Option(help="Where the demo keeps its files.")] = FOLDER,
    seed: o.Seed = 0,
    json: o.AsJson = False,
) -> None:
    """Show what reranking misses and searching finds with equally many cross-encoder calls.

    The package contains a sample: sentences with a marked word, 11,587 meanings, and stored scores
    of a real cross-encoder, so that the demo takes seconds. With --live the small bundled
    cross-encoder scores the pairs now; the command first estimates how long that takes. Stop it
    with Ctrl-C at any time; running the command again resumes.
    """
    o.check_path("--folder", folder, folder=True)
    if live:
        _live(budget, folder, seed, json)
    else:
        _stored(budget, folder, seed, json)


def _stored(budget: int, folder: Path, seed: int, json: bool) -> None:
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
        trial = Trial.run(*given, budget=budget, seed=seed)
    shown.show(trial, json, folder, "What reranking misses", _LEAD)
    note(
        f"{time.perf_counter() - began:.0f} s; next, with a live model: crossknn demo --live; "
        "with your own texts: crossknn try FILE"
    )


def _live(budget: int, folder: Path, seed: int, json: bool) -> None:
    """Show three answers of the bundled cross-encoder at once, and then the diagnosis of all."""
    from crossknn.evaluation.diagnosis import diagnose
    from crossknn.sample import sample
    from crossknn.scorers import CrossEncoder
    from crossknn.scores.stored import StoredScorer
    from crossknn.search.searcher import Searcher
    from crossknn.trial.plan import pairs_per_second

    data, scorer = sample(), CrossEncoder("bundled", threads=o.threads(None))
    index, queries = data.index, data.queries
    with err.status("measuring the cross-encoder"):
        speed = pairs_per_second(scorer, index.items.texts)
    took = plain(2 * len(queries) * budget / speed, "seconds")
    note(
        f"about {took if took[-1].isalpha() else f'{took} seconds'}: reranking and searching for "
        f"{counted(len(queries), 'sentence')} with {counted(budget, 'call')} each. Stop it with "
        "Ctrl-C at any time; running the same command again resumes"
    )
    folder.mkdir(parents=True, exist_ok=True)
    stored = StoredScorer(scorer, folder / "sample-scores.db")
    if not json:
        for text in queries.texts[:3]:
            show(Searcher(index, stored).search(text, k=3, budget=budget, seed=seed), json)
    with progress("searching and reranking", "pairs") as report:
        diagnosis = diagnose(
            *(index, stored, queries, data.qrels),
            budgets=[budget],
            measure="R@20",
            seed=seed,
            progress=report,
        )
    if json:
        print_json({"diagnosis": diagnosis.as_dict()})
    else:
        shown.show_diagnosis(diagnosis)


def sample_index(folder: Path) -> Path:
    """Return the index of the sample in a folder; it is saved if it does not exist."""
    from crossknn.index.storage import MANIFEST
    from crossknn.sample import sample

    saved = folder / "sample.index"
    if not (saved / MANIFEST).is_file():
        folder.mkdir(parents=True, exist_ok=True)
        sample().index.save(saved)
    return saved
