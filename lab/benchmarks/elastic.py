"""A search over a real Elasticsearch or OpenSearch, beside one over the same vectors in memory.

    docker compose -f lab/benchmarks/elastic.yaml up -d
    python lab/benchmarks/elastic.py http://localhost:9200
    python lab/benchmarks/elastic.py http://localhost:9201 opensearchpy.OpenSearch

It makes the index `crossknn-sample` of the package's sample, with title, body and embedding, and
deletes it at the end. An exact search must score the same items as the search in memory.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import crossknn as ck

NAME, M = "crossknn-sample", 20


def fill(client: Any, index: ck.ItemIndex, d: int) -> None:
    """Put the items into a new index of the server."""
    embedding: dict[str, Any] = {
        "type": "dense_vector",
        "dims": d,
        "similarity": "max_inner_product",
    }
    settings = {}
    if "opensearch" in type(client).__module__:
        method = {"name": "hnsw", "engine": "faiss", "space_type": "innerproduct"}
        embedding, settings = (
            {"type": "knn_vector", "dimension": d, "method": method},
            {"index.knn": True},
        )
    fields = {"title": {"type": "text"}, "body": {"type": "text"}, "embedding": embedding}
    client.indices.create(
        index=NAME, body={"settings": settings, "mappings": {"properties": fields}}
    )
    items, vectors = index.items, index.vectors["dense"]
    for start in range(0, index.n, 500):
        lines = list[dict[str, Any]]()
        for i in range(start, min(start + 500, index.n)):
            source = {
                "title": items.titles[i],
                "body": items.texts[i],
                "embedding": vectors[i].tolist(),
            }
            lines += [{"index": {"_index": NAME, "_id": items.ids[i]}}, source]
        assert not client.bulk(body=lines, refresh=True)["errors"]


def main(url: str, kind: str = "elasticsearch.Elasticsearch") -> int:
    """Print one line: of how many queries the same items were scored."""
    package, _, name = kind.partition(".")
    client, sample = getattr(import_module(package), name)(url), ck.sample()
    indexes, queries = [sample.index], sample.queries.texts[:M]
    fill(client, sample.index, sample.index.vectors["dense"].shape[1])
    try:
        for exact in (True, False):
            store = ck.ElasticStore(client, NAME, exact=exact)
            store.whole = 0  # every round asks the server
            indexes.append(ck.ItemIndex.over(store, "body", encoder="bundled"))
            indexes[-1].add_retriever("words", store.words("title^2", "body"))
        methods = ["axn(rounds=5, retriever=dense)"] * 3 + ["rerank(retriever=words)"]
        found = [
            ck.Searcher(index, sample.scorer, method).search([*queries], budget=100, trace=True)
            for index, method in zip([*indexes, indexes[1]], methods, strict=True)
        ]
    finally:
        client.indices.delete(index=NAME)
    memory, exactly, graph, words = (
        [{hit.id for hit in row} for row in one.trace] for one in found
    )
    same = sum(one == two for one, two in zip(memory, exactly, strict=True))
    shared = sum(len(one & two) for one, two in zip(memory, graph, strict=True)) / M
    is_right = same == M and all(words)
    print(
        f"{'right' if is_right else 'WRONG'}: the exact search scored the same 100 items as the search "
        f"in memory for {same} of {M} queries; the graph's search shared {shared:.0f} of 100"
    )
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
