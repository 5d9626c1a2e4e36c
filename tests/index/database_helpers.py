"""The same items in every database: 3,000 texts, vectors of 16 dimensions, and a few fields."""

import json
import uuid

import numpy as np
from qdrant_client import QdrantClient, models
from qdrant_edge import (
    Distance,
    EdgeConfig,
    EdgeShard,
    EdgeVectorParams,
    Point,
    UpdateOperation,
)
from test_filters import RECORDS

N, D = 3_000, 16
VECTORS = np.random.default_rng(0).normal(size=(N, D)).astype(np.float32)
IDS = [3 * i for i in range(N - 1)] + [str(uuid.UUID(int=5))]  # in the order of Qdrant
PAYLOADS = [{"body": f"text {i}", "part": i % 7, "tags": [f"t{i % 3}"]} for i in range(N)]


def shard(folder, vectors=VECTORS, ids=IDS, payloads=PAYLOADS, distance=Distance.Dot):
    folder.mkdir()
    parameters = EdgeVectorParams(size=vectors.shape[1], distance=distance)
    made = EdgeShard.create(str(folder), EdgeConfig(vectors=parameters))
    rows = zip(ids, vectors.tolist(), payloads, strict=True)
    made.update(UpdateOperation.upsert_points([Point(*row) for row in rows]))
    return made


def collection(vectors=VECTORS, distance=models.Distance.DOT, name="docs"):
    client = QdrantClient(":memory:")
    parameters = models.VectorParams(size=vectors.shape[1], distance=distance)
    client.create_collection(name, vectors_config=parameters)
    rows = zip(IDS, vectors.tolist(), PAYLOADS, strict=True)
    client.upsert(name, [models.PointStruct(id=i, vector=v, payload=p) for i, v, p in rows])
    return client


def fill(connection):
    """Tables `docs`, of these items, and `named`, of the records of the tests of filters."""
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
    connection.execute("create table named (name uuid, e vector(2), extra jsonb)")
    for i, record in enumerate(RECORDS):
        said = json.dumps({key: value for key, value in record.items() if value == value})
        row = (uuid.UUID(int=i), str([i, 1]), said)
        connection.execute("insert into named values (%s, %s::vector, %s)", row)
