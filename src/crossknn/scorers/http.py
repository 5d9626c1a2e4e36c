"""Use a `/rerank` endpoint as the cross-encoder."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Literal, get_args

import numpy as np

from crossknn.errors import InputError, ScorerError
from crossknn.files import parse_json
from crossknn.scorers.base import Priced
from crossknn.scorers.endpoint import Endpoint
from crossknn.scorers.streaming import Call, Deadline
from crossknn.types import FloatArray, IntArray

logger = logging.getLogger(__name__)

Api = Literal["cohere", "tei"]

_EPSILON = 1e-7
_FEW = 5
"""If the first scores, this many, lie between 0 and 1, they are taken for probabilities."""


class HttpScorer(Priced, Endpoint):
    """Scores with the reranking service at `url` (`/rerank` is added to a URL without a path).

    A batch that the service cannot score is halved. Requests use the proxy of the environment.
    `fingerprint` is None unless `model` is named, because the model behind a URL may change.
    `score` raises ScorerError if the endpoint is down, too slow, refuses the key or returns an
    invalid answer.

    Args:
        url: Address of the service, http:// or https://.
        model: Name of the model, sent with every request.
        api_key: The API key; by default the environment variable CROSSKNN_API_KEY.
        api: "cohere" (also Jina, infinity, vLLM): `query`, `documents` -> `results[{index,
            relevance_score}]`; "tei" (Text Embeddings Inference): `query`, `texts`, `raw_scores` ->
            `[{index, score}]`.
        timeout: Seconds for a request, from connecting to the last byte of the answer.
        retries: How often to repeat a request after a failed connection or the HTTP status 408,
            425, 429, 502 to 504 or 520 to 530, after growing pauses or those that `Retry-After`
            asks for, up to a minute.
        batch, concurrency: Maximum number of items in a request, and of requests at the same time.
        price: Money for a thousand items; `spent` then sums up.
        probabilities: Turn scores between 0 and 1 back into logits, which methods predict better; a
            warning is logged once if the scores look like probabilities.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        api_key: str | None = None,
        api: Api = "cohere",
        timeout: float = 10.0,
        retries: int = 2,
        batch: int = 64,
        concurrency: int = 4,
        price: float | None = None,
        probabilities: bool = False,
    ) -> None:
        if api not in get_args(Api):
            raise InputError(f"api must be cohere or tei, got {api!r}")
        if not isinstance(model, str | None) or not isinstance(probabilities, bool):
            raise InputError("model must be a name, and probabilities true or false")
        how: dict[str, Any] = {"api_key": api_key, "timeout": timeout, "retries": retries}
        super().__init__(url, "/rerank", per_request=batch, concurrency=concurrency, **how)
        self._model, self.probabilities = model, probabilities
        self._api, self._range = api, _Range()
        self._set_price(price)
        if api == "cohere":
            self._hint = " (Text Embeddings Inference needs the option api=tei)"
        raw = "|probabilities" if probabilities else ""
        self.fingerprint = None if model is None else f"http:{self.name}|model={model}{raw}"

    def _batches(self, call: Call) -> Iterator[IntArray]:
        """Yield batches (positions of pairs) of one query each, queries in order of appearance."""
        _, first, inverse = np.unique(call.pairs.query, return_index=True, return_inverse=True)
        order = np.argsort(first[inverse], kind="stable")
        starts = np.searchsorted(first[inverse][order], np.sort(first))
        for group in np.split(order, starts[1:]):
            size = self.per_request
            yield from (group[at : at + size] for at in range(0, len(group), size))

    def _run(self, call: Call, positions: IntArray) -> FloatArray:
        pairs = call.texts(positions)
        scores = self._rerank(pairs[0][0], [item for _, item in pairs], call.deadline)
        self._scored.add(len(pairs))
        if not self.probabilities:
            if self._range.looks_like_probabilities(scores):
                logger.warning(
                    "all scores of %s lie between 0 and 1: if they are probabilities, give the "
                    "option probabilities (--scorer-option probabilities=true), which turns them "
                    "back into logits: with these, recall of the exact top items was 4 to 25 "
                    "points higher on two of three corpora",
                    self.name,
                )
            return scores
        if len(outside := scores[(scores < -_EPSILON) | (scores > 1 + _EPSILON)]):
            raise ScorerError(
                f"{self.name} gave the score {outside[0]:g}, which is not a probability: leave "
                "out the option probabilities"
            )
        clipped = np.clip(scores, _EPSILON, 1 - _EPSILON)
        return np.log(clipped / (1 - clipped))

    def _rerank(self, query: str, texts: list[str], deadline: Deadline) -> FloatArray:
        body: dict[str, Any] = {"query": query, "documents": texts, "top_n": len(texts)}
        if self._api == "tei":
            body = {"query": query, "texts": texts, "raw_scores": True, "truncate": True}
        elif self._model is not None:
            body["model"] = self._model
        data = self._request(body, len(texts), deadline)
        if (scores := _parse(self._api, data, len(texts))) is None:
            raise ScorerError(
                f"{self.name} sent an answer that is not {len(texts)} scores in the format of "
                f"{self._api}: {self._excerpt(data)}"
            )
        return scores


class _Range:
    """Whether all scores of an endpoint may be probabilities; copies of a scorer share it."""

    count, done = 0, False

    def looks_like_probabilities(self, scores: FloatArray) -> bool:
        """Check scores (b,); return true once, when enough were checked and all lay in 0 to 1."""
        inside = scores.min(initial=1) >= -_EPSILON and scores.max(initial=0) <= 1 + _EPSILON
        self.count += len(scores)
        warns = bool(inside) and not self.done and self.count >= _FEW
        self.done = self.done or warns or not inside
        return warns


def _parse(api: Api, data: bytes, count: int) -> FloatArray | None:
    """Parse scores (count,) in the order of the request; None for any other answer."""
    field = "score" if api == "tei" else "relevance_score"
    with suppress(ValueError, TypeError, KeyError, OverflowError, RecursionError):
        answer = parse_json(data)
        rows = answer if api == "tei" else answer["results"]
        by_index = {row["index"]: row[field] for row in rows}
        scores = [by_index[index] for index in range(count)]
        if len(rows) == count and {type(score) for score in scores} <= {int, float}:
            return np.array(scores, dtype=np.float64)
    return None
