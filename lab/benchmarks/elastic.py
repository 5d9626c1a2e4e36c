"""A search over a real Elasticsearch or OpenSearch, beside one over the same vectors in memory.

    docker compose -f lab/benchmarks/elastic.yaml up -d
    python lab/benchmarks/elastic.py http://localhost:9200
    python lab/benchmarks/elastic.py http://localhost:9201 opensearchpy.OpenSearch

It makes an index of the package's sample (title, body, embedding), and deletes it at the end.
"""

import sys
from importlib import import_module
from typing import Any

import crossknn as ck

NAME, M = "crossknn-sample", 20
DENSE = {"type": "dense_vector", "dims": 384, "similarity": "max_inner_product"}
METHOD = {"name": "hnsw", "engine": "faiss", "space_type": "innerproduct"}
OF_OPENSEARCH = {"type": "knn_vector", "dimension": 384, "method": METHOD}


def fill(client: Any, index: ck.ItemIndex, other: bool) -> None:
    """Put the items into a new index of the server."""
    fields = {name: {"type": "text"} for name in ("title", "body")}
    mapping = {"properties": fields | {"embedding": OF_OPENSEARCH if other else DENSE}}
    settings = {"index.knn": True} if other else {}
    client.indices.create(index=NAME, body={"settings": settings, "mappings": mapping})
    items, rows = index.items, zip(index.items.ids, index.vectors["dense"].tolist(), strict=True)
    lines = list[Any]()
    for i, (key, vector) in enumerate(rows):
        source = {"title": items.titles[i], "body": items.texts[i], "embedding": vector}
        lines += [{"index": {"_index": NAME, "_id": key}}, source]
    for start in range(0, len(lines), 1000):
        assert not client.bulk(body=lines[start : start + 1000], refresh=True)["errors"]


def main(url: str, kind: str = "elasticsearch.Elasticsearch") -> int:
    """Print one line: for how many queries the same items were scored."""
    package, _, name = kind.partition(".")
    client, sample, trace = getattr(import_module(package), name)(url), ck.sample(), []
    fill(client, sample.index, package == "opensearchpy")
    try:
        for exact in (None, True, False, "words"):
            index = sample.index
            if exact is not None:
                store = ck.ElasticStore(client, NAME, exact=bool(exact))
                store.whole = 0  # every round asks the server
                index = ck.ItemIndex.over(store, "body", encoder="bundled")
                index.add_retriever("words", store.words("title^2", "body"))
            method = "rerank(retriever=words)" if exact == "words" else "axn(retriever=dense)"
            search = ck.Searcher(index, sample.scorer, method).search
            found = search(sample.queries.texts[:M], budget=100, trace=True)
            trace.append([{hit.id for hit in hits} for hits in found.trace])
    finally:
        client.indices.delete(index=NAME)
    same = sum(one == two for one, two in zip(trace[0], trace[1], strict=True))
    graph = sum(len(one & two) for one, two in zip(trace[0], trace[2], strict=True)) / M
    right = same == M and all(trace[3])
    print(
        f"{'right' if right else 'WRONG'}: of {M} queries, {same} scored the same 100 items as in "
        f"memory by exact search; by the graph they shared {graph:.0f} of 100"
    )
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
