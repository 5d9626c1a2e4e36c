"""crossknn: k-nearest-neighbour search directly with a cross-encoder, under a budget of calls.

    import crossknn as ck
    search = ck.Searcher(ck.ItemIndex.load("docs.index"), ck.CrossEncoder())
    results = search.search(["how do I unzip a file"], k=10, budget=100)

Names are loaded on first use: importing the package loads nothing heavier than NumPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crossknn.data.dataset import Dataset as Dataset
    from crossknn.data.dataset import split as split
    from crossknn.data.items import Items as Items
    from crossknn.data.queries import QuerySet as QuerySet
    from crossknn.data.reading import read_dataset as read_dataset
    from crossknn.data.reading import read_items as read_items
    from crossknn.data.reading import read_qrels as read_qrels
    from crossknn.data.reading import read_queries as read_queries
    from crossknn.errors import CrossknnError as CrossknnError
    from crossknn.errors import InputError as InputError
    from crossknn.evaluation.compare import compare as compare
    from crossknn.fitting.anchors import collect_anchors as collect_anchors
    from crossknn.fitting.anchors import collect_item_scores as collect_item_scores
    from crossknn.fitting.fit import fit as fit
    from crossknn.fitting.log import fit_from_log as fit_from_log
    from crossknn.fitting.matrix import MatrixFile as MatrixFile
    from crossknn.index.estimate import estimate as estimate
    from crossknn.index.item_index import ItemIndex as ItemIndex
    from crossknn.methods import method as method
    from crossknn.methods import methods as methods
    from crossknn.methods.adacur import ADACUR as ADACUR
    from crossknn.methods.axn import AXN as AXN
    from crossknn.methods.base import Method as Method
    from crossknn.methods.base import equal_rounds as equal_rounds
    from crossknn.methods.cur import ANNCUR as ANNCUR
    from crossknn.methods.cur import FixedItem as FixedItem
    from crossknn.methods.cur import ItemCUR as ItemCUR
    from crossknn.methods.feedback import Feedback as Feedback
    from crossknn.methods.feedback import ReFIT as ReFIT
    from crossknn.methods.gar import GAR as GAR
    from crossknn.methods.gp import GP as GP
    from crossknn.methods.graph import LADR as LADR
    from crossknn.methods.graph import Greedy as Greedy
    from crossknn.methods.kriging import Kriging as Kriging
    from crossknn.methods.rerank import Exact as Exact
    from crossknn.methods.rerank import Rerank as Rerank
    from crossknn.methods.rerank import Retrieve as Retrieve
    from crossknn.methods.tour import TOUR as TOUR
    from crossknn.retrievers.base import Retriever as Retriever
    from crossknn.retrievers.base import VectorStore as VectorStore
    from crossknn.scorers import CallableScorer as CallableScorer
    from crossknn.scorers import CrossEncoder as CrossEncoder
    from crossknn.scorers import DualEncoder as DualEncoder
    from crossknn.scorers import HttpScorer as HttpScorer
    from crossknn.scorers import MatrixScorer as MatrixScorer
    from crossknn.scorers import Scorer as Scorer
    from crossknn.scorers import open_late as open_late
    from crossknn.scores.collect import Limits as Limits
    from crossknn.scores.collect import collect as collect
    from crossknn.scores.collect import dense_scores as dense_scores
    from crossknn.scores.store import ScoreStore as ScoreStore
    from crossknn.scores.stored import StoredScorer as StoredScorer
    from crossknn.search.loop import Search as Search
    from crossknn.search.plan import Plan as Plan
    from crossknn.search.predictor import Prediction as Prediction
    from crossknn.search.predictor import Predictor as Predictor
    from crossknn.search.results import Hit as Hit
    from crossknn.search.results import Results as Results
    from crossknn.search.searcher import Budget as Budget
    from crossknn.search.searcher import Searcher as Searcher

__version__ = "0.1.0"

_HOMES = {
    "data.dataset": ("Dataset", "split"),
    "data.items": ("Items",),
    "data.reading": ("read_dataset", "read_items", "read_qrels", "read_queries"),
    "data.queries": ("QuerySet",),
    "errors": ("CrossknnError", "InputError"),
    "evaluation.compare": ("compare",),
    "fitting.anchors": ("collect_anchors", "collect_item_scores"),
    "fitting.fit": ("fit",),
    "fitting.log": ("fit_from_log",),
    "fitting.matrix": ("MatrixFile",),
    "index.estimate": ("estimate",),
    "index.item_index": ("ItemIndex",),
    "methods": ("method", "methods"),
    "methods.adacur": ("ADACUR",),
    "methods.axn": ("AXN",),
    "methods.base": ("Method", "equal_rounds"),
    "methods.cur": ("ANNCUR", "FixedItem", "ItemCUR"),
    "methods.feedback": ("Feedback", "ReFIT"),
    "methods.gar": ("GAR",),
    "methods.gp": ("GP",),
    "methods.graph": ("LADR", "Greedy"),
    "methods.kriging": ("Kriging",),
    "methods.rerank": ("Exact", "Rerank", "Retrieve"),
    "methods.tour": ("TOUR",),
    "retrievers.base": ("Retriever", "VectorStore"),
    "scorers": (
        "CallableScorer",
        "CrossEncoder",
        "DualEncoder",
        "HttpScorer",
        "MatrixScorer",
        "Scorer",
        "open_late",
    ),
    "scores.collect": ("Limits", "collect", "dense_scores"),
    "scores.store": ("ScoreStore",),
    "scores.stored": ("StoredScorer",),
    "search.loop": ("Search",),
    "search.plan": ("Plan",),
    "search.predictor": ("Prediction", "Predictor"),
    "search.results": ("Hit", "Results"),
    "search.searcher": ("Budget", "Searcher"),
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted([*_MODULES, "__version__"])


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
