"""The same items in every database: 3,000 texts with vectors of 16 dimensions, or few with 2."""

import json
import uuid
from importlib import import_module

import numpy as np
import pytest
from elastic_player import Index, Player

import crossknn as ck

SLOW = pytest.param("postgres", marks=pytest.mark.slow)  # starts in two seconds or more
KINDS = ["qdrant", "elasticsearch", "opensearch", SLOW]

N, D = 3_000, 16
VECTORS = np.random.default_rng(0).normal(size=(N, D)).astype(np.float32)
IDS = [3 * i for i in range(N - 1)] + [str(uuid.UUID(int=5))]  # in the order of Qdrant
PAYLOADS = [{"body": f"text {i}", "part": i % 7, "tags": [f"t{i % 3}"]} for i in range(N)]

FEW = np.array([[1, 0], [0, 1], [1, 1], [0.5, 0.2], [0.3, 1]], np.float32)
"""Vectors of up to five items, whose ids are 0, 1, ..."""


def qdrant():
    """Qdrant's client library, which takes a second to import: only where it is used."""
    return import_module("qdrant_client")


def collection(vectors=VECTORS, payloads=PAYLOADS, ids=IDS, distance="Dot"):
    """Items in a collection `docs` of Qdrant's client."""
    client, models = qdrant().QdrantClient(":memory:"), qdrant().models
    parameters = models.VectorParams(size=vectors.shape[1], distance=distance)
    client.create_collection("docs", vectors_config=parameters)
    rows = zip(ids, vectors.tolist(), payloads, strict=False)
    client.upsert("docs", [models.PointStruct(id=i, vector=v, payload=p) for i, v, p in rows])
    return client


def vectors_mapped(product, d=D, how=None, engine="faiss"):
    """The mapping of a field of vectors."""
    if product == "elasticsearch":
        return {"type": "dense_vector", "dims": d, "similarity": how or "max_inner_product"}
    method = {"name": "hnsw", "engine": engine, "space_type": how or "innerproduct"}
    return {"type": "knn_vector", "dimension": d, "method": method}


def played(product, vectors=VECTORS, payloads=PAYLOADS, ids=IDS, how=None, **fields):
    """A player with the items in an index `docs`, and a client of it."""
    properties = {"embedding": vectors_mapped(product, vectors.shape[1], how)} | fields
    rows = zip(ids, vectors.tolist(), payloads, strict=False)
    documents = [(key, {**payload, "embedding": vector}) for key, vector, payload in rows]
    index = Index(product == "elasticsearch", properties, documents)
    player = Player(product, {"docs": index})
    return player, client_of(player)


def client_of(player, **options):
    """The official client of a player."""
    name = "elasticsearch" if player.elastic else "opensearchpy"
    package = import_module(name)
    client = package.Elasticsearch if player.elastic else package.OpenSearch
    return client(player.url, **options)


def fill(connection):
    """All items in a table `docs` of PostgreSQL."""
    connection.execute(
        "create table docs (id bigint primary key, body text, part int, tags jsonb, embedding "
        f"vector({D}))"
    )
    with connection.cursor().copy("copy docs from stdin") as copy:
        for i, vector in enumerate(VECTORS.tolist()):
            payload = PAYLOADS[i]
            tags = json.dumps(payload["tags"])
            copy.write_row((3 * i, payload["body"], payload["part"], tags, str(vector)))
    connection.execute("insert into docs (id, body) values (1, 'no vector')")


def search(store, texts="body", **options):
    """What a search over a store of `few_in` finds, whose scorer prefers long texts."""
    index = ck.ItemIndex.over(store, texts, query_vectors=lambda asked: [[1, 0.5]] * len(asked))
    searcher = ck.Searcher(index, lambda pairs: [float(len(text)) for _, text in pairs], "axn")
    return searcher.search("q", budget=5, **options)


def column_type(values):
    """The type of PostgreSQL for the values of one field."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {str}:
        return "text"
    return "bigint" if kinds == {int} else "jsonb"


def few_in(kind, fields, postgres):
    """A store of few items with these fields, in one kind of database."""
    if kind == "qdrant":
        return ck.QdrantStore(collection(FEW, fields, range(5)), "docs", exact=True)
    if kind in ("elasticsearch", "opensearch"):
        kinds = {
            name: {type(entry.get(name)) for entry in fields} for entry in fields for name in entry
        }
        doubles = {name: {"type": "double"} for name, held in kinds.items() if float in held}
        return ck.ElasticStore(played(kind, FEW, fields, range(5), **doubles)[1], "docs")
    connection, address = postgres
    names = sorted({name for record in fields for name in record} | {"body"})
    types = {name: column_type([record.get(name) for record in fields]) for name in names}
    columns = ", ".join(f"{name} {type}" for name, type in types.items())
    connection.execute("drop table if exists few")
    connection.execute(f"create table few (id int, embedding vector(2), {columns})")
    for i, record in enumerate(fields):
        values = [
            json.dumps(record[name]) if type == "jsonb" and name in record else record.get(name)
            for name, type in types.items()
        ]
        places = ", ".join(["%s"] * (2 + len(names)))
        row = i, str(FEW[i].tolist()), *values
        connection.execute(f"insert into few values ({places})", row, prepare=False)
    return ck.PgVectorStore(address, "few")
