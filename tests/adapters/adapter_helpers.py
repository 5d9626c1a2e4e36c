"""A few texts, a scorer that counts common words, and every framework called alike."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import pytest

TEXTS = [
    {
        "id": f"{verb}-{noun}",
        "title": f"{verb} {noun}",
        "text": f"how to {verb} a {noun} {'very ' * (n % 3)}fast",
        "lang": "en" if n % 2 else "de",
        "year": 2000 + n,
    }
    for n, (verb, noun) in enumerate(
        (verb, noun)
        for verb in ("zip", "sort", "copy", "lock", "read", "send")
        for noun in ("file", "list", "folder", "thread", "page")
    )
]
QUERY = "sort the list"


def overlap(pairs):
    return [len({*q.split()} & {*t.split()}) + len(t) / 100 for q, t in pairs]


def failing(pairs):
    if any(query == "zip a folder" for query, _ in pairs):
        raise import_module("crossknn").ScorerError("no power")
    return overlap(pairs)


def embedding(text):
    """Counts of its words, as a vector (d,)."""
    names = sorted({word for item in TEXTS for word in item["text"].split()})
    return np.array([text.split().count(name) for name in names], np.float32)


class Document(NamedTuple):
    id: str
    text: str
    score: float
    metadata: Mapping[str, Any]


class LangChain:
    """`retrieve` and `rerank` answer with `Document`s; with `vectors` those of `TEXTS` have some."""

    module, takes_vectors = "langchain", False

    def __init__(self):
        self.adapter = pytest.importorskip(f"crossknn.adapters.{self.module}")

    def retrieve(self, searcher, k=None, budget=None, filter=None):
        options = {"k": k, "budget": budget, "filter": filter}
        retriever = self.adapter.CrossknnRetriever(searcher=searcher, **options)
        answers = retriever.invoke(QUERY, **options)
        return [self.read(answer) for answer in answers]

    def rerank(self, scorer=None, k=None, budget=None, texts=TEXTS, vectors=False):
        vector_of = (lambda text: embedding(text).tolist()) if vectors else lambda text: None
        given = [self.write(item, vector_of(item["text"])) for item in texts]
        answers = self.reranked(given, vector_of(QUERY), scorer, k, budget)
        for item, document in zip(texts, given, strict=True):  # as they were
            assert self.metadata(document) == self.own(item)
        return [self.read(answer) for answer in answers]

    def reranked(self, given, query_vector, scorer, k, budget):
        options = {"scorer": scorer, "top_n": k, "budget": budget}
        return self.adapter.CrossknnReranker(**options).compress_documents(given, QUERY)

    def own(self, item):
        """Metadata of a document."""
        return {"of": item["id"]} | item.get("own", {})

    def write(self, item, vector):
        return self.adapter.Document(item["text"], id=item["id"], metadata=self.own(item))

    def read(self, given):
        score = given.metadata["crossknn_score"]
        return Document(given.id, given.page_content, score, given.metadata)

    def metadata(self, document):
        return document.metadata


class LlamaIndex(LangChain):
    module, takes_vectors = "llama_index", True

    def retrieve(self, searcher, k=None, budget=None, filter=None):
        retriever = self.adapter.CrossknnRetriever(searcher, k, budget, filter)
        return [self.read(node) for node in retriever.retrieve(QUERY)]

    def reranked(self, given, query_vector, scorer, k, budget):
        bundle = self.adapter.QueryBundle(QUERY, embedding=query_vector)
        reranker = self.adapter.CrossknnRerank(scorer=scorer, top_n=k, budget=budget)
        return reranker.postprocess_nodes(given, bundle)

    def write(self, item, vector):
        own = self.own(item)
        metadata = {"metadata": own, "excluded_embed_metadata_keys": [*own]}
        fields = {"id_": item["id"], "text": item["text"], "embedding": vector}
        return self.adapter.NodeWithScore(node=self.adapter.TextNode(**fields, **metadata))

    def read(self, given):
        return Document(given.node_id, given.text, given.score, given.metadata)


class Haystack(LangChain):
    module, takes_vectors = "haystack", True

    def retrieve(self, searcher, k=None, budget=None, filter=None):
        fields = [{"field": name, "operator": "==", "value": filter[name]} for name in filter or {}]
        options = {"method": None, "top_k": k, "budget": budget, "filters": (*fields, None)[0]}
        retriever = self.adapter.CrossknnRetriever(searcher.index, searcher.scorer, **options)
        answers = retriever.run(QUERY, filters=None, top_k=None)["documents"]
        return [self.read(answer) for answer in answers]

    def reranked(self, given, query_vector, scorer, k, budget):
        ranker = self.adapter.CrossknnRanker(scorer, k, budget)
        return ranker.run(QUERY, given, None, query_vector)["documents"]

    def write(self, item, vector):
        fields = {"id": item["id"], "content": item["text"], "meta": self.own(item)}
        return self.adapter.Document(**fields, embedding=vector)

    def read(self, given):
        return Document(given.id, given.content, given.score, given.meta)

    def metadata(self, document):
        return document.meta


class PyTerrier(LangChain):
    module, takes_vectors = "pyterrier", True

    def retrieve(self, searcher, k=None, budget=None, filter=None):
        topics = self.adapter.pd.DataFrame({"qid": ["1"], "query": [QUERY]})
        answers = self.adapter.CrossknnRetriever(searcher, k, budget, filter)(topics)
        return [self.read(row) for row in answers.to_dict("records")]

    def reranked(self, given, query_vector, scorer, k, budget):
        frame = self.adapter.pd.DataFrame(given).assign(
            qid="1", query=QUERY, rank=range(len(given))
        )
        if query_vector:
            frame["query_vec"] = [np.array(query_vector)] * len(frame)
            frame["doc_vec"] = [*map(np.array, frame["doc_vec"])]
        ranked = self.adapter.CrossknnReranker(scorer, budget, None)(frame.iloc[::-1])
        return ranked[:k].to_dict("records")  # as `reranker % k` cuts

    def write(self, item, vector):
        row = {"docno": item["id"], "text": item["text"], "of": item["id"]}
        return row | ({"doc_vec": vector} if vector else {})

    def read(self, given):
        marks = {name: value for name, value in given.items() if value is not False}
        return Document(given["docno"], given["text"], given["score"], marks)

    def metadata(self, document):
        return {"of": document["of"]}  # documents are rows of a frame, which is copied


FRAMEWORKS = [LangChain, LlamaIndex, Haystack, PyTerrier]
