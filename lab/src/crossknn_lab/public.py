"""Search beside reranking on a public data set, with models that anyone can load.

The retriever's vectors and every computed score are kept in a folder, so that the same command
continues after an interruption.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from crossknn.data.items import Items, read_items
from crossknn.data.qrels import Qrels, read_qrels
from crossknn.data.queries import QuerySet, read_queries
from crossknn.errors import InputError
from crossknn.evaluation.compare import compare
from crossknn.evaluation.measures import bootstrap, paired
from crossknn.evaluation.outcome import Outcome
from crossknn.files import write_file
from crossknn.index.item_index import ItemIndex
from crossknn.methods import parse_methods
from crossknn.scorers.opening import CrossEncoder, DualEncoder
from crossknn.scores.stored import StoredScorer
from crossknn.table import Cell, Table
from crossknn_lab.curves import Curve, curves, draw, write_report
from crossknn_lab.page import Page, Section
from crossknn_lab.sweep_report import environment

METHODS = "retrieve(retriever=dense), rerank(retriever=dense), rerank(retriever=hybrid), axn, auto"
RERANK, SEARCH = "rerank(retriever=dense)", "auto"
PRECISION = {"device": "cuda", "model_kwargs": {"dtype": "bfloat16"}}
"""Options of a sentence-transformers model on a GPU."""


class PublicSet(NamedTuple):
    """Items, judged queries and their judgements."""

    items: Items
    queries: QuerySet
    qrels: Qrels


@dataclass(frozen=True, kw_only=True)
class PublicRun:
    """What is compared: a data set, models by hub name or folder, budgets in pairs per query, and
    the measure; `gpu` loads both models on a GPU in bfloat16."""

    data: str
    scorer: str
    retriever: str
    budgets: Sequence[int] = (20, 50, 100, 200)
    measure: str = "nDCG@10"
    gpu: bool = False

    def run(self, folder: Path, queries: int | None, progress: Any) -> list[Outcome]:
        """Search the first `queries` judged queries by all methods, and write `results.json`,
        `page.md` and `index.html`; `progress(what, unit)` shows how far a step is."""
        began, options = time.time(), self._options()
        data = read_set(self.data)
        judged = [q for q, name in enumerate(data.queries.ids) if name in data.qrels][:queries]
        if not judged:
            raise InputError(f"{self.data} has no query with judgements: name a split that has")
        asked = data.queries.take(judged)
        with progress("encoding", "items") as report:
            encoder = DualEncoder(self.retriever, **options)
            index = ItemIndex.build(
                data.items, encoder=encoder, folder=folder / "index", progress=report
            )
        scorer = StoredScorer(CrossEncoder(self.scorer, **options), index.scores)
        with progress("scoring", "pairs") as report:
            outcomes = compare(
                *(index, asked, scorer, parse_methods(METHODS), self.budgets),
                qrels=data.qrels,
                measures=[self.measure],
                progress=report,
            )
        about = {
            "set": self.data,
            "items": index.n,
            "queries": len(asked),
            "cross-encoder": self.scorer,
            "fingerprint": str(scorer.fingerprint),
            "retriever": self.retriever,
            "gpu": gpu_name() if self.gpu else "none",
            **environment(),
            "date": time.strftime("%Y-%m-%d", time.gmtime(began)),
        }
        rows = [row for outcome in outcomes for row in outcome.rows()]
        text = json.dumps({"about": about, "rows": rows}, indent=1)
        write_file(folder, "results.json", text.encode())
        write_report(self.page(outcomes, about), folder)
        return outcomes

    def _options(self) -> dict[str, Any]:
        if not self.gpu:
            return {}
        import torch

        if not torch.cuda.is_available():
            raise InputError("--gpu: torch finds no GPU here; leave it out to use the CPU")
        return PRECISION

    def table(self, outcomes: Sequence[Outcome]) -> Table:
        """Tabulate the measure by method and budget, and the search's gain over reranking."""
        values = {(of.method, of.budget): of.task[self.measure] for of in outcomes}
        rows = list[list[Cell]]()
        for (method, budget), own in values.items():
            gain: Cell = None
            if method == SEARCH:
                found = paired(100 * (own - values[RERANK, budget]))
                gain = f"{found.difference:+.1f} [{found.low:+.1f}, {found.high:+.1f}]"
            rows.append([method, budget, round(100 * float(np.nanmean(own)), 1), gain])
        head = ["method", "calls", f"{self.measure}, %", "gain over reranking [95%]"]
        about = "Calls: pairs that the cross-encoder scores for a query. Gain: at equal calls."
        return Table(head=head, rows=rows, caption=about)

    def page(self, outcomes: Sequence[Outcome], about: dict[str, Any]) -> Page:
        """Make the page: the table, the picture, and how it was made."""
        lines = dict[str, list[tuple[int | None, Any]]]()
        for of in outcomes:
            estimate = bootstrap(of.task[self.measure])
            lines.setdefault(of.method, []).append((of.budget or None, estimate))
        shown = [Curve.through(name, *zip(*points, strict=True)) for name, points in lines.items()]
        figure = draw(
            curves,
            {"": shown},
            alt=f"{self.measure} over calls, one line for each method",
            title=f"{self.data}: search and reranking",
            x_label="cross-encoder calls per query",
            y_label=self.measure,
        )
        made = [f"{name}: {value}" for name, value in about.items()]
        sections = [
            Section(title="Figures", blocks=[self.table(outcomes), figure]),
            Section(title="How it was made", blocks=[made]),
        ]
        return Page(title=f"{self.data}: search beside reranking", sections=sections)


def read_set(name: str) -> PublicSet:
    """Read a data set: a folder in the layout of BEIR, TREC or MS MARCO, or a name in ir_datasets,
    whose split `test` is taken if the name itself has no judgements."""
    if Path(name).is_dir():
        return PublicSet(read_items(name), read_queries(name), read_qrels(name))
    try:
        import ir_datasets
    except ModuleNotFoundError as error:
        raise InputError(
            f"{name} is no folder, and reading it by name needs  pip install ir_datasets"
        ) from error
    try:
        data = ir_datasets.load(name)
        data = data if data.has_qrels() else ir_datasets.load(f"{name}/test")
    except KeyError as error:
        raise InputError(
            f"{name} is neither a folder nor a data set with judgements in ir_datasets, such as "
            "beir/nfcorpus/test"
        ) from error
    asked = [{"id": q.query_id, "text": q.default_text()} for q in data.queries_iter()]
    items = [document._asdict() for document in data.docs_iter()]
    return PublicSet(read_items(items), read_queries(asked), read_qrels(data.qrels_dict()))


def gpu_name() -> str:
    """Return the name of the GPU."""
    import torch

    return str(torch.cuda.get_device_name())
