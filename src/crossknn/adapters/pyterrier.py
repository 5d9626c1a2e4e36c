"""PyTerrier: a transformer that searches an index, a transformer that reranks under a budget, and
an adapter that makes a PyTerrier scorer a cross-encoder. They do not start Java."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from crossknn.adapters import PREDICTED, PREFIX, rerank_documents
from crossknn.errors import InputError, needs_extra
from crossknn.scorers.plain import CallableScorer
from crossknn.search.searcher import PER_QUERY, Budget, Searcher

with needs_extra("crossknn.adapters.pyterrier", "pyterrier"):
    import pandas as pd
    import pyterrier as pt

_ADDED = ["docno", "score", "rank", f"{PREFIX}iteration", "text"]


class CrossknnRetriever(pt.Transformer):
    """Searches an index; adds the columns `docno`, `score` (the final score), `rank` and
    `crossknn_iteration` (the round in which the item was chosen) from 0, and `text`."""

    def __init__(
        self,
        searcher: Searcher,
        num_results: int | None = None,
        budget: int | Sequence[int] | Budget = PER_QUERY,
        filter: Any = None,
    ) -> None:
        super().__init__()
        self.searcher, self.num_results = searcher, num_results
        self.budget, self.filter = budget, filter

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Return the results of queries; `inp` needs the columns `qid` and `query`."""
        pt.validate.query_frame(inp, extra_columns=["query"])
        _check(inp, "query")
        queries = inp.reset_index(drop=True)
        rows: list[tuple[Any, ...]] = []
        if len(queries):
            answers = self.searcher.search(
                queries["query"].tolist(), self.num_results, self.budget, filter=self.filter
            )
            answers.check()
            rows = [
                (q, hit.id, hit.final_score, rank, hit.round - 1, hit.text)
                for q, hits in enumerate(answers)
                for rank, hit in enumerate(hits)
            ]
        results = pd.DataFrame(rows, columns=["_query", *_ADDED])
        own = queries.drop(columns=_ADDED, errors="ignore")
        own = own.take(results.pop("_query").astype(int)).reset_index(drop=True)
        return pd.concat([own, results], axis=1)


class CrossknnReranker(pt.Transformer):
    """Orders results by `ck.rerank`, scoring `budget` results of each query, by default all; marks
    the others as `crossknn_predicted`. If results have `doc_vec` and `query_vec`, as pyterrier_dr
    names them, the vectors help to choose which to score."""

    def __init__(
        self,
        scorer: Any = None,
        budget: int | Budget | None = None,
        text_field: str | None = "text",
    ) -> None:
        super().__init__()
        self.scorer, self.budget, self.text_field = scorer, budget, text_field or "text"

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Return the same results in their new order."""
        pt.validate.result_frame(inp, extra_columns=["query", self.text_field])
        _check(inp, "query", self.text_field)
        if inp.empty:
            return inp.assign(
                score=pd.Series(dtype=float), rank=pd.Series(dtype=int), **{PREDICTED: False}
            )
        groups = inp.groupby("qid", sort=False)
        return pd.concat([self._ranked(given) for _, given in groups], ignore_index=True)

    def _ranked(self, given: pd.DataFrame) -> pd.DataFrame:
        if "rank" in given:
            given = given.sort_values("rank", kind="stable")
        elif "score" in given:
            given = given.sort_values("score", kind="stable", ascending=False)
        if given["query"].nunique() > 1:
            raise InputError(f"the qid {given['qid'].iloc[0]!r} has several queries: give each one")
        has_vectors = {"doc_vec", "query_vec"} <= {*given}
        ranked = rerank_documents(
            given["query"].iloc[0],
            range(len(given)),
            given[self.text_field].tolist(),
            budget=self.budget,
            scorer=self.scorer,
            embeddings=given["doc_vec"].tolist() if has_vectors else [None],
            query_embedding=given["query_vec"].iloc[0] if has_vectors else None,
            check=True,
        )
        rows, scores, marks = zip(*ranked, strict=True)
        predicted = {PREDICTED: [PREDICTED in each for each in marks]}
        return given.iloc[[*rows]].assign(score=scores, rank=range(len(rows)), **predicted)


def _check(frame: pd.DataFrame, *columns: str) -> None:
    """Refuse rows without a query id, which grouping would drop, or without a text."""
    wrong = {"qid": frame["qid"].isna()}
    wrong |= {c: [not isinstance(text, str) for text in frame[c]] for c in columns}
    for name, rows in wrong.items():
        if np.any(rows):
            row = int(np.flatnonzero(rows)[0])
            value = frame[name].iloc[row]
            raise InputError(f"the {name} of row {row} is {value!r:.80}: fill it, or drop the row")


def as_scorer(transformer: pt.Transformer, text_field: str = "text") -> CallableScorer:
    """Make a scorer from a PyTerrier transformer such as monoT5 or ELECTRA, which reads `query` and
    the column `text_field`, and writes `score`."""

    def score(pairs: Sequence[tuple[str, str]]) -> list[float]:
        frame = pd.DataFrame(pairs, columns=["query", text_field])
        frame["qid"] = [f"q{number}" for number in pd.factorize(frame["query"])[0]]
        frame["docno"] = [str(number) for number in range(len(frame))]
        scored = transformer(frame).set_index("docno")["score"]
        return [float(value) for value in scored.loc[frame["docno"]]]

    return CallableScorer(score)
