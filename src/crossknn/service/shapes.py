"""The bodies of requests and answers: our own, and those of others that clients know."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator
from scipy.special import expit

from crossknn.errors import InputError
from crossknn.index.filters import comparison, joined
from crossknn.rerank import Reranked
from crossknn.search.results import Hit, Results
from crossknn.search.searcher import Budget

MOST_K = 1000
MOST_DOCUMENTS = 1000
Text = Annotated[str, StringConstraints(min_length=1, max_length=32_768)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
K = Annotated[int, Field(ge=1, le=MOST_K)]
DeadlineMs = Annotated[float, Field(ge=20)]  # in less not even the first stage answers
Calls = Annotated[int, Field(ge=1, description="Cross-encoder calls for each query.")]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class ErrorBody(BaseModel):
    """What went wrong, in a sentence; `field` is the one at fault, if it is one."""

    message: str
    status: int
    field: str | None = None


class ErrorAnswer(BaseModel):
    """The answer to every request that cannot be served."""

    error: ErrorBody


class BudgetBody(_Body):
    """`per_query` calls for each query, or a `total` for all together; with `target_recall` a query
    ends when it expects to have found that share of its true top k."""

    per_query: Annotated[int, Field(ge=1)] | None = None
    total: Annotated[int, Field(ge=1)] | None = None
    target_recall: Annotated[float, Field(gt=0, le=1)] | None = None


class SearchBody(_Body):
    """A search: a `query` or several `queries`, and what it may cost."""

    query: Text | None = None
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
    filter: dict[str, Any] | list[Name] | None = Field(
        None, description='Conditions on fields, such as {"lang": "en"}, or ids of items.'
    )
    explain: bool = Field(False, description="Also every pick, and the first stage's ranks.")
    stream: bool = Field(False, description="Send each round as a server-sent event.")

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"query": "how do I open a zip file", "k": 3, "budget": 50},
                {"queries": ["copy a folder", "sort a list"], "budget": {"total": 100}},
            ]
        }
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> SearchBody:
        if (self.query is None) == (self.queries is None):
            raise ValueError("give either query or queries")
        return self


class HitBody(BaseModel):
    """An item that was found; `crossknn.Hit` says what the fields mean."""

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


class FoundBody(BaseModel):
    """The answer to one query."""

    id: str
    query: str
    error: str | None
    hits: list[HitBody]
    trace: list[dict[str, Any]] | None = None


class SearchAnswer(BaseModel):
    """What was found for each query, and what it cost; `degraded` if it is less than asked for."""

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
    results: list[FoundBody]


def search_answer(
    results: Results, degraded: bool, ranks: Sequence[Sequence[int | None]] | None
) -> dict[str, Any]:
    """A `SearchAnswer`."""
    found = results.to_dict()
    for entry, own in zip(found["results"], ranks or (), strict=False):
        for hit, rank in zip(entry["hits"], own, strict=True):
            hit["first_rank"] = rank
    return {"degraded": degraded} | found


def round_event(round: int, picks: Sequence[Sequence[Hit]]) -> dict[str, Any]:
    """What was scored in a round, for each query."""
    names = ("id", "title", "approx", "std", "score", "final_score", "source")
    return {
        "round": round,
        "picks": [[{name: getattr(hit, name) for name in names} for hit in own] for own in picks],
    }


def budget_of(given: int | BudgetBody | None, deadline_ms: float | None, per_query: int) -> Budget:
    """The library's budget; `per_query` calls if nothing is given."""
    seconds = None if deadline_ms is None else deadline_ms / 1000
    if given is None or isinstance(given, int):
        return Budget(per_query=per_query if given is None else given, deadline=seconds)
    return Budget(
        per_query=per_query if given.total is None and given.per_query is None else given.per_query,
        total=given.total,
        target_recall=given.target_recall,
        deadline=seconds,
    )


# Dify's external knowledge API: docs.dify.ai/en/use-dify/knowledge/external-knowledge-api


class DifySetting(_Body):
    top_k: K = 10
    score_threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    score_threshold_enabled: bool | None = None


class DifyCondition(_Body):
    name: Annotated[list[Name], Field(min_length=1, max_length=10)]
    comparison_operator: str
    value: str | int | float | None = None


class DifyConditions(_Body):
    logical_operator: Literal["and", "or"] | None = "and"
    conditions: Annotated[list[DifyCondition], Field(max_length=100)] = []


class DifyBody(_Body):
    """Dify's external knowledge API; `knowledge_id` is the name of an index."""

    knowledge_id: Name
    query: Text
    retrieval_setting: DifySetting = DifySetting()
    metadata_condition: DifyConditions | None = None
    budget: Calls | None = None

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "knowledge_id": "docs.index",
                    "query": "how do I open a zip file",
                    "retrieval_setting": {"top_k": 3, "score_threshold": 0.5},
                }
            ]
        }
    )


_DIFY = {">": "gt", "≥": "gte", "<": "lt", "≤": "lte", "after": "gt", "before": "lt"}


def dify_filter(given: DifyConditions | None) -> dict[str, Any] | None:
    """Our filter; `InputError` for an operator that it has not."""
    if given is None or not given.conditions:
        return None
    parts = [_dify_part(c, name) for c in given.conditions for name in c.name]
    return joined(parts, any=given.logical_operator == "or")


def _dify_part(condition: DifyCondition, name: str) -> dict[str, Any]:
    how, value = condition.comparison_operator, condition.value
    if how in ("empty", "not empty"):
        return {name: None} if how == "empty" else {"not": {name: None}}
    if value is not None and how in ("is", "="):
        return {name: value}
    if value is not None and how in ("is not", "≠"):
        return {name: {"not": value}}
    if value is not None and how in _DIFY:
        return {name: {_DIFY[how]: value}}
    raise InputError(
        f"the condition on {name!r:.80} compares by {how!r:.80} and {value!r:.80}, which no filter "
        "here does: use is, is not, =, ≠, >, ≥, <, ≤, before, after, empty or not empty"
    )


def dify_answer(hits: Sequence[Hit], degraded: bool, least: float | None) -> dict[str, Any]:
    """Dify's records, of probabilities of at least `least`."""
    return {
        "degraded": degraded,
        "records": [
            {
                "content": hit.text,
                "score": _probability(hit),
                "title": hit.title or hit.id,
                "metadata": {**hit.extra, "id": hit.id},
            }
            for hit in hits
            if least is None or _probability(hit) >= least
        ],
    }


def _unscored(hit: Hit) -> bool:
    """Whether it is the first stage's, in whose place the cross-encoder could score nothing."""
    return hit.round == 0 and not hit.predicted


def _probability(hit: Hit) -> float:
    """0 where nothing but the first stage's score is known, which is no logit."""
    return 0.0 if _unscored(hit) else hit.probability


# OpenAI's search of a vector store: platform.openai.com/docs/api-reference/vector-stores/search


class OpenAIFilter(_Body):
    """A comparison of a field, or `and` and `or` of several filters."""

    type: Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin", "and", "or"]
    key: Name | None = None
    value: str | bool | int | float | list[str | int | float] | None = None
    filters: Annotated[list[OpenAIFilter], Field(min_length=1, max_length=100)] | None = None


class OpenAIRanking(_Body):
    ranker: str | None = None
    score_threshold: Annotated[float, Field(ge=0, le=1)] | None = None


class OpenAIBody(_Body):
    """OpenAI's search of a vector store. Several queries are searched one by one, and each item is
    returned once, with its best score."""

    query: Text | Annotated[list[Text], Field(min_length=1, max_length=20)]
    max_num_results: Annotated[int, Field(ge=1, le=50)] = 10
    filters: OpenAIFilter | None = None
    ranking_options: OpenAIRanking | None = None
    rewrite_query: bool = Field(False, description="Accepted; queries are never rewritten.")
    budget: Calls | None = None

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"query": "how do I open a zip file", "max_num_results": 3}]
        }
    )


def openai_filter(given: OpenAIFilter | None) -> dict[str, Any] | None:
    """Our filter; `InputError` for one that says nothing."""
    if given is None:
        return None
    how, key, value = given.type, given.key, given.value
    if how in ("and", "or"):
        if given.filters is None:
            raise InputError(f"the filter {how!r} needs a list of filters")
        parts = [part for f in given.filters if (part := openai_filter(f)) is not None]
        return joined(parts, any=how == "or")
    if key is None or value is None or isinstance(value, list) != (how in ("in", "nin")):
        what = "a list as value" if how in ("in", "nin") else "a value that is no list"
        raise InputError(f"the filter {how!r} needs a key, and {what}")
    return comparison(key, how, value)


def openai_answer(
    queries: Sequence[str],
    results: Sequence[Sequence[Hit]],
    degraded: bool,
    most: int,
    least: float | None,
) -> dict[str, Any]:
    """A page of results; the only one."""
    best: dict[str, Hit] = {}
    found = (hit for hits in results for hit in hits)
    for hit in sorted(found, key=lambda hit: (_unscored(hit), -hit.final_score)):
        best.setdefault(hit.id, hit)
    hits = [*best.values()][:most]
    return {
        "degraded": degraded,
        "object": "vector_store.search_results.page",
        "search_query": list(queries),
        "data": [
            {
                "file_id": hit.id,
                "filename": hit.title or hit.id,
                "score": _probability(hit),
                "attributes": _attributes(hit.extra),
                "content": [{"type": "text", "text": hit.text}],
            }
            for hit in hits
            if least is None or _probability(hit) >= least
        ],
        "has_more": False,
        "next_page": None,
    }


def _attributes(extra: Mapping[str, object]) -> dict[str, object]:
    """What OpenAI's clients take as attributes: texts, numbers and truth values."""
    return {
        key: value for key, value in extra.items() if isinstance(value, str | bool | int | float)
    }


# Reranking of given documents: docs.cohere.com/reference/rerank, api.jina.ai/redoc, infinity's and
# huggingface.github.io/text-embeddings-inference


class DocumentBody(_Body):
    """A document; with the vector of whatever retrieved it fewer calls find the best ones."""

    text: str
    title: str | None = None
    embedding: Annotated[list[float], Field(min_length=1, max_length=8192)] | None = None


class RerankBody(_Body):
    """Documents to order: `documents`, as for Cohere (v2), Jina and infinity, or `texts`, as for
    Text Embeddings Inference. Without a `budget` all are scored, up to the service's own budget;
    beyond it the others follow by predicted score."""

    query: Text
    documents: (
        Annotated[list[str | DocumentBody], Field(min_length=1, max_length=MOST_DOCUMENTS)] | None
    ) = None
    texts: Annotated[list[str], Field(min_length=1, max_length=MOST_DOCUMENTS)] | None = None
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool | None = Field(None, description="By default true at /v1/rerank alone.")
    return_text: bool = False
    raw_scores: bool = Field(False, description="Logits; by default numbers between 0 and 1.")
    budget: Annotated[int, Field(ge=1, description="Documents that are scored.")] | None = None
    deadline_ms: DeadlineMs | None = None
    model: str | None = Field(None, description="Accepted; the service has one cross-encoder.")
    max_tokens_per_doc: int | None = Field(None, description="Accepted; the model's window counts.")
    priority: int | None = Field(None, description="Accepted; deadlines say who is first.")
    truncate: bool | None = Field(None, description="Accepted; what is too long is cut.")
    truncation_direction: Literal["Right", "right"] | None = None

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "query": "how do I open a zip file",
                    "documents": ["Sort a list in place.", "Extract a zip archive."],
                    "budget": 1,
                },
                {"query": "how do I open a zip file", "texts": ["Sort a list.", "Unzip a file."]},
            ]
        }
    )

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
    asked: RerankBody, found: Reranked, degraded: bool, *, infinity: bool
) -> dict[str, Any] | list[dict[str, Any]]:
    """A `RerankAnswer`, or a list of `RankBody` to `texts`."""
    entries = [
        {
            "index": entry["corpus_id"],
            "score": entry["score"] if asked.raw_scores else float(expit(entry["score"])),
            "predicted": "predicted" in entry,
        }
        | {name: entry[name] for name in ("text",) if name in entry}
        for entry in found
    ]
    if asked.texts is not None:
        return entries
    for entry in entries:
        entry["relevance_score"] = entry.pop("score")
        if "text" in entry:
            text = entry.pop("text")
            entry["document"] = text if infinity else {"text": text}
    return {
        "id": str(uuid.uuid4()),
        "object": "rerank",
        "created": int(time.time()),
        "model": asked.model or "crossknn",
        "results": entries,
        "usage": {"prompt_tokens": 0, "total_tokens": 0},
        "meta": {
            "api_version": {"version": "2"},
            "calls": found.results.n_calls,
            "degraded": degraded,
        },
    }


# The page's judgements


class JudgementBody(_Body):
    """Which of two lists of results is better, and what they were."""

    query: Text
    side: Literal["left", "same", "right"]
    left: Annotated[list[Name], Field(max_length=100)]
    right: Annotated[list[Name], Field(max_length=100)]
    left_method: Text
    right_method: Text
    budget: Annotated[int, Field(ge=1)]
    index: Name | None = None

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "query": "how do I open a zip file",
                    "side": "right",
                    "left": ["gzip.open"],
                    "right": ["zipfile.ZipFile"],
                    "left_method": "rerank",
                    "right_method": "auto",
                    "budget": 50,
                }
            ]
        }
    )
