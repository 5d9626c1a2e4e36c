"""The bodies of requests and answers: crossknn's own, and those of reranking services.

null stands for the default of every optional field. The models of answers describe them in
/openapi.json; answers are written as dictionaries.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator
from scipy.special import expit

from crossknn.search.rerank import Reranked
from crossknn.search.results import Hit, Results
from crossknn.search.searcher import Budget

MAX_K = 1000
MAX_DOCUMENTS = 1000
Text = Annotated[str, StringConstraints(min_length=1, max_length=32_768)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
K = Annotated[int, Field(ge=1, le=MAX_K)]
# In less than 20 ms not even the first stage answers.
DeadlineMs = Annotated[float, Field(ge=20, le=3_600_000)]
Calls = Annotated[int, Field(ge=1, description="Cross-encoder calls for each query.")]
Vector = Annotated[list[float], Field(min_length=1, max_length=8192, fail_fast=True)]


class Body(BaseModel):
    """Base class of bodies and of objects inside them."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class ErrorBody(BaseModel):
    """What went wrong, in a sentence; `field` is the first wrong field, and `errors` has `field`
    and `message` of the first ten."""

    message: str
    status: int
    field: str | None = None
    errors: list[dict[str, str]] | None = None


class ErrorAnswer(BaseModel):
    """The answer to every request that cannot be served."""

    error: ErrorBody


class BudgetBody(Body):
    """Limits of a search: `per_query` cross-encoder calls per query; with `target_recall` a query
    ends when its expected recall of its true top k reaches that share."""

    per_query: Annotated[int, Field(ge=1)] | None = None
    target_recall: Annotated[float, Field(gt=0, le=1)] | None = None


class SearchBody(Body):
    """A search: a `query` or several `queries`, and what it may cost."""

    query: Text | None = Field(None, examples=["how do I open a zip file"])
    queries: Annotated[list[Text], Field(min_length=1, max_length=100)] | None = None
    index: Name | None = Field(None, description="By default the first one that is served.")
    k: K | None = Field(
        None, description="Items to return for each query; by default 10, or all there are."
    )
    budget: Calls | BudgetBody | None = None
    method: Text | None = Field(None, description="One of those that GET /indexes lists.")
    deadline_ms: DeadlineMs | None = Field(
        None, description="From the arrival of the request; then the best so far is the answer."
    )
    filter: dict[str, Any] | Annotated[list[Name], Field(fail_fast=True)] | None = Field(
        None, description='Conditions on fields, such as {"lang": "en"}, or ids of items.'
    )
    explain: bool | None = Field(
        False, description="Also every scored item, and the ranks in the first stage."
    )
    stream: bool | None = Field(False, description="Send each round as a server-sent event.")

    @model_validator(mode="after")
    def _one_of_both(self) -> SearchBody:
        if (self.query is None) == (self.queries is None):
            raise ValueError("give either query or queries")
        return self

    @property
    def texts(self) -> list[str]:
        """All queries."""
        return self.queries or [self.query or ""]


class HitBody(BaseModel):
    """A returned item; see `crossknn.Hit` for the fields."""

    id: str
    score: float
    final_score: float
    probability: float | None
    round: int
    source: str
    approx: float | None
    std: float | None
    predicted: bool
    title: str
    text: str
    extra: dict[str, Any]
    first_rank: int | None = None


class QueryAnswer(BaseModel):
    """The answer to one query."""

    id: str
    query: str
    error: str | None
    hits: list[HitBody]
    trace: list[dict[str, Any]] | None = None


class SearchAnswer(BaseModel):
    """The hits of each query, and their cost; `degraded` if this is less than requested."""

    method: str
    budget: int
    n_calls: int
    n_scored: int
    n_failed: int
    stopped_by: str
    error: str | None
    seconds: float
    scoring_seconds: float
    degraded: bool
    results: list[QueryAnswer]


def search_answer(
    results: Results, degraded: bool, ranks: Sequence[Sequence[int | None]] | None
) -> dict[str, Any]:
    """A `SearchAnswer`."""
    answer = results.to_dict()
    for entry, own in zip(answer["results"], ranks or (), strict=False):
        for hit, rank in zip(entry["hits"], own, strict=True):
            hit["first_rank"] = rank
    return {"degraded": degraded} | answer


def round_event(round: int, picks: Sequence[Sequence[Hit]]) -> dict[str, Any]:
    """Make the event with the items that were scored in a round, for each query."""
    names = ("id", "title", "approx", "std", "score", "final_score", "source")
    return {
        "round": round,
        "picks": [[{name: getattr(hit, name) for name in names} for hit in own] for own in picks],
    }


def budget_of(given: int | BudgetBody | None, deadline_ms: float | None, per_query: int) -> Budget:
    """Make the library's budget; `per_query` calls by default."""
    if not isinstance(given, BudgetBody):
        given = BudgetBody(per_query=given)
    return Budget(
        per_query=given.per_query or per_query,
        target_recall=given.target_recall,
        deadline=None if deadline_ms is None else deadline_ms / 1000,
    )


# Reranking of given documents: docs.cohere.com/reference/rerank, api.jina.ai/redoc, infinity's and
# huggingface.github.io/text-embeddings-inference


class DocumentBody(Body):
    """A document; with the vector of whatever retrieved it fewer calls find the best ones."""

    text: str
    title: str | None = None
    embedding: Vector | None = None


class RerankBody(Body):
    """Documents to order: `documents`, as for Cohere, Jina and infinity, or `texts`, as for Text
    Embeddings Inference. Without a `budget` all are scored, up to the service's own budget; beyond
    it the others follow by predicted score."""

    query: Text = Field(examples=["how do I open a zip file"])
    documents: (
        Annotated[list[str | DocumentBody], Field(min_length=1, max_length=MAX_DOCUMENTS)] | None
    ) = Field(None, examples=[["Sort a list in place.", "Extract a zip archive."]])
    texts: Annotated[list[str], Field(min_length=1, max_length=MAX_DOCUMENTS)] | None = None
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool | None = Field(None, description="By default true at /v1/rerank alone.")
    return_text: bool | None = False
    raw_scores: bool | None = Field(
        False, description="Logits; by default numbers between 0 and 1."
    )
    budget: Annotated[int, Field(ge=1, description="Documents that are scored.")] | None = None
    deadline_ms: DeadlineMs | None = None
    model: str | None = Field(None, description="Accepted; the service has one cross-encoder.")
    max_tokens_per_doc: int | None = Field(None, description="Accepted; the model's window counts.")
    priority: int | None = Field(None, description="Accepted; deadlines say who is first.")
    truncate: bool | None = Field(None, description="Accepted; what is too long is cut.")
    truncation_direction: Literal["Right", "right"] | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> RerankBody:
        if (self.documents is None) == (self.texts is None):
            raise ValueError("give either documents or texts")
        return self


class RankedBody(BaseModel):
    """A document by its position in the request; `predicted` if it was not scored."""

    index: int
    relevance_score: float
    predicted: bool
    document: str | dict[str, str] | None = None


class RerankAnswer(BaseModel):
    """Documents, the best first. `usage` counts no tokens; `meta` has the `calls`, and `degraded`,
    whether they are fewer than asked for."""

    id: str
    object: Literal["rerank"]
    created: int
    model: str
    results: list[RankedBody]
    usage: dict[str, int]
    meta: dict[str, Any]


class RankBody(BaseModel):
    """A document in the shape of Text Embeddings Inference."""

    index: int
    score: float
    predicted: bool
    text: str | None = None


def rerank_answer(
    body: RerankBody, ranked: Reranked, degraded: bool, *, strings: bool
) -> dict[str, Any] | list[dict[str, Any]]:
    """A `RerankAnswer`, or a list of `RankBody` to `texts`. With `strings` a returned document is
    its text, and no object."""
    score_name = "relevance_score" if body.texts is None else "score"
    entries = list[dict[str, Any]]()
    for document in ranked:
        score = document["score"] if body.raw_scores else float(expit(document["score"]))
        entry = {
            "index": document["corpus_id"],
            score_name: score,
            "predicted": "predicted" in document,
        }
        if "text" in document:
            text = document["text"]
            document_text = text if strings else {"text": text}
            entry |= {"document": document_text} if body.texts is None else {"text": text}
        entries.append(entry)
    if body.texts is not None:
        return entries
    return {
        "id": str(uuid.uuid4()),
        "object": "rerank",
        "created": int(time.time()),
        "model": body.model or "crossknn",
        "results": entries,
        "usage": {"prompt_tokens": 0, "total_tokens": 0},
        "meta": {
            "api_version": {"version": "2"},
            "calls": ranked.results.n_calls,
            "degraded": degraded,
        },
    }
