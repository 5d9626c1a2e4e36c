"""crossknn: k-nearest-neighbour search directly with a cross-encoder, under a budget of calls.

    import crossknn as ck
    search = ck.Searcher(ck.ItemIndex.load("docs.index"), ck.CrossEncoder())
    results = search(["how do I unzip a file"], k=10, budget=100)

Names are loaded on first use: importing the package loads nothing heavier than NumPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crossknn.data.dataset import Dataset as Dataset
    from crossknn.data.dataset import split as split
    from crossknn.data.items import Items as Items
    from crossknn.data.reading import read_dataset as read_dataset
    from crossknn.data.reading import read_items as read_items
    from crossknn.data.reading import read_qrels as read_qrels
    from crossknn.data.reading import read_queries as read_queries
    from crossknn.errors import CrossknnError as CrossknnError
    from crossknn.errors import InputError as InputError
    from crossknn.index.estimate import estimate as estimate
    from crossknn.index.item_index import ItemIndex as ItemIndex
    from crossknn.methods import method as method
    from crossknn.methods import methods as methods
    from crossknn.scorers import CachedScorer as CachedScorer
    from crossknn.scorers import CallableScorer as CallableScorer
    from crossknn.scorers import CrossEncoder as CrossEncoder
    from crossknn.scorers import DualEncoder as DualEncoder
    from crossknn.scorers import HttpScorer as HttpScorer
    from crossknn.scorers import MatrixScorer as MatrixScorer
    from crossknn.scorers import open_late as open_late
    from crossknn.search.loop import Search as Search
    from crossknn.search.results import Hit as Hit
    from crossknn.search.results import Results as Results
    from crossknn.search.searcher import Searcher as Searcher

__version__ = "0.1.0"

_HOMES = {
    "CachedScorer": "scorers",
    "CallableScorer": "scorers",
    "CrossEncoder": "scorers",
    "CrossknnError": "errors",
    "Dataset": "data.dataset",
    "DualEncoder": "scorers",
    "Hit": "search.results",
    "HttpScorer": "scorers",
    "InputError": "errors",
    "ItemIndex": "index.item_index",
    "Items": "data.items",
    "MatrixScorer": "scorers",
    "Results": "search.results",
    "Search": "search.loop",
    "Searcher": "search.searcher",
    "estimate": "index.estimate",
    "method": "methods",
    "methods": "methods",
    "open_late": "scorers",
    "read_dataset": "data.reading",
    "read_items": "data.reading",
    "read_qrels": "data.reading",
    "read_queries": "data.reading",
    "split": "data.dataset",
}

__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
