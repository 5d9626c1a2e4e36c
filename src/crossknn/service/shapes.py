"""The bodies of requests and answers: crossknn's own, and those of reranking services.

In every optional field, null stands for the default.
"""

from __future__ import annotations

import time
import uuid
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator
from scipy.special import expit

from crossknn.search.rerank import Reranked

MAX_K = 1000
MAX_DOCUMENTS = 1000
Text = Annotated[str, StringConstraints(min_length=1, max_length=32_768)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
# Even the first stage takes 20 ms.
DeadlineMs = Annotated[float, Field(ge=20, le=3_600_000)]
Positive = Annotated[int, Field(ge=1)]
Vector = Annotated[list[float], Field(min_length=1, max_length=8192, fail_fast=True)]


class Body(BaseModel):
    """Base class of bodies and of objects inside them."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class SearchBody(Body):
    """A search for one or several queries, and limits of its cost."""

    query: Text | Annotated[list[Text], Field(min_length=1, max_length=100)] = Field(
        examples=["how do I open a zip file"]
    )
    index: Name | None = Field(None, description="Name of an index; by default the first.")
    k: Annotated[int, Field(ge=1, le=MAX_K)] | None = Field(
        None, description="Items to return for each query; by default 10."
    )
    budget: Positive | list[Positive] | None = Field(
        None, description="Cross-encoder calls for each query; with several scorers, of each."
    )
    target_recall: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="A query ends when it expects to have this share of its true top k."
    )
    method: Text | None = Field(None, description="A method that GET /indexes lists.")
    deadline_ms: DeadlineMs | None = Field(
        None, description="Milliseconds from arrival to answer, with the best hits so far."
    )
    filter: dict[str, Any] | Annotated[list[Name], Field(fail_fast=True)] | None = Field(
        None, description='Conditions on fields, such as {"lang": "en"}, or ids of items.'
    )
    group_by: Name | None = Field(
        None, description="Find the k best groups: items with the same value of this field."
    )
    group_size: Annotated[int, Field(ge=1, le=MAX_K)] | None = Field(
        None, description="Scored items of a group in the answer; by default 1."
    )
    explain: bool | None = Field(
        False, description="Add every scored item, and each hit's rank in the first stage."
    )

    @property
    def texts(self) -> list[str]:
        """All queries."""
        return [self.query] if isinstance(self.query, str) else self.query


# Reranking of given documents: docs.cohere.com/reference/rerank, api.jina.ai/redoc, infinity's and
# huggingface.github.io/text-embeddings-inference


class DocumentBody(Body):
    """A document; with its retriever's `embedding`, fewer calls find the best documents."""

    text: str
    title: str | None = None
    embedding: Vector | None = None


class RerankBody(Body):
    """Documents to order: `documents`, as for Cohere, Jina and infinity, or `texts`, as for Text
    Embeddings Inference. Without a `budget` all are scored, up to the service's budget; other
    documents follow by predicted score. The last five fields are accepted and ignored."""

    query: Text = Field(examples=["how do I open a zip file"])
    documents: (
        Annotated[list[str | DocumentBody], Field(min_length=1, max_length=MAX_DOCUMENTS)] | None
    ) = Field(None, examples=[["Sort a list in place.", "Extract a zip archive."]])
    texts: Annotated[list[str], Field(min_length=1, max_length=MAX_DOCUMENTS)] | None = None
    top_n: Positive | None = None
    return_documents: bool | None = Field(None, description="By default true at /v1/rerank alone.")
    return_text: bool | None = False
    raw_scores: bool | None = Field(
        False, description="Return logits; by default, scores are between 0 and 1."
    )
    budget: Positive | list[Positive] | None = Field(
        None, description="Number of documents that are scored; with several scorers, by each."
    )
    deadline_ms: DeadlineMs | None = None
    model: str | None = None
    max_tokens_per_doc: int | None = None
    priority: int | None = None
    truncate: bool | None = None
    truncation_direction: Literal["Right", "right"] | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> RerankBody:
        if (self.documents is None) == (self.texts is None):
            raise ValueError("give either documents or texts")
        return self


def rerank_answer(
    body: RerankBody, ranked: Reranked, degraded: bool, *, strings: bool
) -> dict[str, Any] | list[dict[str, Any]]:
    """Make the answer to a request with `documents` or `texts`. With `strings`, a returned document
    is a text instead of an object."""
    entries = list[dict[str, Any]]()
    for document in ranked:
        score = document["score"] if body.raw_scores else float(expit(document["score"]))
        entry = {"index": document["corpus_id"], "predicted": "predicted" in document}
        entry["score" if body.documents is None else "relevance_score"] = score
        if (text := document.get("text")) is not None:
            name = "text" if body.documents is None else "document"
            entry[name] = text if strings or body.documents is None else {"text": text}
        entries.append(entry)
    if body.documents is None:
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
