"""Exact scores of (query, item) pairs from models, services, functions and matrices.

Heavy libraries are imported only when a model is opened.
"""

from crossknn.scorers.base import Encoder as Encoder
from crossknn.scorers.base import Scorer as Scorer
from crossknn.scorers.http import HttpScorer as HttpScorer
from crossknn.scorers.library import PredictScorer as PredictScorer
from crossknn.scorers.library import SentenceTransformerEncoder as SentenceTransformerEncoder
from crossknn.scorers.llm import LLMScorer as LLMScorer
from crossknn.scorers.opening import CrossEncoder as CrossEncoder
from crossknn.scorers.opening import DualEncoder as DualEncoder
from crossknn.scorers.opening import LateInteraction as LateInteraction
from crossknn.scorers.opening import as_scorer as as_scorer
from crossknn.scorers.plain import CallableScorer as CallableScorer
from crossknn.scorers.plain import MatrixScorer as MatrixScorer
from crossknn.scorers.streaming import NothingScoredError as NothingScoredError
from crossknn.scorers.token_models import OnnxModel as OnnxModel
from crossknn.scorers.token_models import TokenEncoder as TokenEncoder
from crossknn.scorers.token_models import TokenScorer as TokenScorer
