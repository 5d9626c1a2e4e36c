"""The public names and their homes: what type checkers read, and what is loaded on first use."""

from . import extend as extend
from .data.items import read_items as read_items
from .data.qrels import read_qrels as read_qrels
from .data.queries import QuerySet as QuerySet
from .data.queries import read_queries as read_queries
from .errors import CrossknnError as CrossknnError
from .errors import IndexFormatError as IndexFormatError
from .errors import InputError as InputError
from .errors import MissingExtraError as MissingExtraError
from .errors import ScorerError as ScorerError
from .errors import SpecError as SpecError
from .errors import StoreError as StoreError
from .evaluation.compare import compare as compare
from .evaluation.diagnosis import diagnose as diagnose
from .fitting.anchors import collect_anchors as collect_anchors
from .fitting.calibration import fit_calibration as fit_calibration
from .fitting.fit import fit as fit
from .fitting.fusion import fit_fusion as fit_fusion
from .fitting.learning import Learner as Learner
from .fitting.learning import learn as learn
from .index.elastic import ElasticStore as ElasticStore
from .index.item_index import ItemIndex as ItemIndex
from .index.pgvector import PgVectorStore as PgVectorStore
from .index.qdrant import QdrantStore as QdrantStore
from .methods import parse_method as parse_method
from .methods import parse_methods as parse_methods
from .methods.adacur import ADACUR as ADACUR
from .methods.axn import AXN as AXN
from .methods.cur import ANNCUR as ANNCUR
from .methods.kriging import Kriging as Kriging
from .sample import sample as sample
from .scorers.http import HttpScorer as HttpScorer
from .scorers.llm import LLMScorer as LLMScorer
from .scorers.opening import CrossEncoder as CrossEncoder
from .scorers.opening import DualEncoder as DualEncoder
from .scorers.plain import CallableScorer as CallableScorer
from .scores.collect import collect as collect
from .scores.stored import StoredScorer as StoredScorer
from .search.rerank import rerank as rerank
from .search.results import Hit as Hit
from .search.results import Results as Results
from .search.searcher import Budget as Budget
from .search.searcher import Searcher as Searcher

__version__: str
