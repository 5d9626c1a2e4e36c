"""crossknn: k-nearest-neighbour search directly with a cross-encoder, under a budget of calls.

    import crossknn as ck
    searcher = ck.Searcher(ck.ItemIndex.load("docs.index"), ck.CrossEncoder())
    results = searcher.search(["how do I unzip a file"], k=10, budget=100)

Names are loaded on first use: importing the package loads nothing heavier than NumPy.
"""

from __future__ import annotations

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
