"""What a method, a retriever, a store or a scorer of your own is written with."""

from __future__ import annotations

from crossknn.methods.base import Method, Plan, Prediction, Predictor, equal_rounds
from crossknn.retrievers.base import ArrayStore, DenseRetriever, Retriever, VectorStore
from crossknn.retrievers.specs import open_retriever
from crossknn.scorers.base import Encoder, Scorer
from crossknn.scores.store import ScoreStore
from crossknn.search.loop import Search
from crossknn.spec import option
from crossknn.types import Candidates, Observed, Pairs, Queries

__all__ = ["ArrayStore", "Candidates", "DenseRetriever", "Encoder", "Method", "Observed", "Pairs"]
__all__ += ["Plan", "Prediction", "Predictor", "Queries", "Retriever", "ScoreStore", "Scorer"]
__all__ += ["Search", "VectorStore", "equal_rounds", "open_retriever", "option"]
