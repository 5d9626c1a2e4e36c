"""A table of a real PostgreSQL with pgvector behind a search, beside the vectors in memory."""

from __future__ import annotations

import json
import uuid

import numpy as np
import psycopg
import pytest
from hypothesis import given, settings
from test_filters import RECORDS, filters, meets

import crossknn as ck
from crossknn.errors import InputError, StoreError
from crossknn.types import NO_ITEM

N, D = 1_200, 16
pytestmark = pytest.mark.slow  # the server starts in two seconds or more
pgserver = pytest.importorskip("pgserver")  # of which there is none for Python 3.13
VECTORS = np.random.default_rng(0).normal(size=(N, D)).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pg")


@pytest.fixture(scope="module")
def server(folder):
    running = pgserver.get_server(folder)
    with psycopg.connect(running.get_uri(), autocommit=True) as connection:
        connection.execute("create extension vector")
        fill(connection)
        yield connection
    running.cleanup()


def fill(connection):
    connection.execute(
        "create table docs (id bigint primary key, body text, part int, day date, embedding "
        f"vector({D}))"
    )
    with connection.cursor().copy("copy docs from stdin") as copy:
        for i, vector in enumerate(VECTORS.tolist()):
            copy.write_row((3 * i, f"text {i}", i % 7, f"2024-01-{1 + i % 28:02}", str(vector)))
    connection.execute("insert into docs (id, body) values (1, 'no vector')")
    connection.execute("create table named (name uuid, e vector(2), extra jsonb)")
    for i, record in enumerate(RECORDS):
        said = json.dumps({key: value for key, value in record.items() if value == value})
        row = (uuid.UUID(int=i), str([i, 1]), said)
        connection.execute("insert into named values (%s, %s::vector, %s)", row)


@pytest.fixture(scope="module")
def store(server, folder):
    return ck.PgVectorStore(pgserver.get_server(folder).get_uri(), "public.docs")


def best(query, count, free):
    products = np.where(free, VECTORS @ query, -np.inf)
    return np.argsort(-products, kind="stable")[:count]


@pytest.mark.parametrize("allowed", [1.0, 0.9, 0.1, 0.0])
def test_top_is_that_of_all_inner_products(store, allowed):
    rng = np.random.default_rng(1)
    queries, mask = rng.normal(size=(3, D)).astype(np.float32), rng.random(N) < allowed
    exclude = np.array([np.append(best(query, 40, mask)[::3], NO_ITEM) for query in queries])
    found = store.top(queries, 50, exclude, None if allowed == 1 else mask)
    for q, query in enumerate(queries):
        free = mask & ~np.isin(np.arange(N), exclude[q])
        items = found.items[q][found.items[q] != NO_ITEM]
        assert items.tolist() == best(query, min(50, free.sum()), free).tolist()
        kept = found.scores[q][: len(items)]
        np.testing.assert_allclose(kept, VECTORS[items] @ query, rtol=1e-4, atol=1e-4)


def test_an_index_finds_as_many_as_are_asked_for(server, store):
    server.execute("create index near on docs using hnsw (embedding vector_ip_ops)")
    plan = server.execute(
        f"explain select id from docs order by embedding <#> '{VECTORS[0].tolist()}' limit 5"
    ).fetchall()
    assert "near" in str(plan)
    everything = np.ones(N, bool)
    expected = best(VECTORS[0], 200, everything)
    assert np.isin(store.top(VECTORS[:1], 200).items[0], expected).sum() > 180
    assert (store.top(VECTORS[:1], 1_100).items != NO_ITEM).sum() == 1_100
    exact = ck.PgVectorStore(store._server, "docs", exact=True)
    assert exact.top(VECTORS[:1], 200).items[0].tolist() == expected.tolist()
    server.execute("drop index near")


@pytest.mark.parametrize(("spec", "whole"), [("axn(rounds=4)", 0), ("auto", N), ("rerank", 0)])
def test_a_search_picks_the_same_items_as_one_in_memory(store, spec, whole, monkeypatch):
    monkeypatch.setattr(store, "whole", whole)
    target = np.random.default_rng(3).normal(size=D).astype(np.float32)
    texts, encode = [f"text {i}" for i in range(N)], lambda texts: np.tile(target, (len(texts), 1))
    exact = np.tanh(VECTORS @ (target + 0.5)) + VECTORS[:, 0]

    def score(pairs):
        return [float(exact[int(text.split()[1])]) for _, text in pairs]

    memory = ck.ItemIndex.build(texts, vectors=VECTORS, query_vectors=encode, bm25=False)
    over = ck.ItemIndex.over(store, "body", query_vectors=encode)
    found = [
        ck.Searcher(index, score, spec).search("?", k=20, budget=60, trace=True, filter=allowed)
        for index, allowed in (
            (memory, (np.arange(N) % 7 < 5) & (np.arange(N) % 28 > 2)),
            (over, {"part": {"lt": 5}, "day": {"gte": "2024-01-04"}}),
        )
    ]
    picked = [{hit.position for hit in one.trace[0]} for one in found]
    assert picked[0] == picked[1]
    hit = found[1][0][0]
    day = f"2024-01-{1 + hit.position % 28:02}"
    assert (hit.id, hit.extra) == (
        str(3 * hit.position),
        {"part": hit.position % 7, "day": day},
    )


@given(condition=filters())
@settings(deadline=None)
def test_a_filter_means_the_same_in_a_column_of_json(named, condition):
    def inside(condition):
        if isinstance(condition, list):
            return [inside(part) for part in condition]
        return {
            key if key in ("any", "not") else f"extra.{key}": inside(value)
            if key in ("any", "not")
            else value
            for key, value in condition.items()
        }

    expected = [meets(record, condition) for record in RECORDS]
    assert named.allowed(inside(condition)).tolist() == expected


@pytest.fixture(scope="module")
def named(server, store):
    return ck.PgVectorStore(store._server, "named", vector="e", id="name")


def test_ids_may_be_uuids(named):
    assert [named.id(i) for i in (0, 4)] == [str(uuid.UUID(int=0)), str(uuid.UUID(int=4))]
    assert named.top(np.array([[1, 0]], np.float32), 2).items.tolist() == [[4, 3]]
    assert named.vectors(np.array([3])).tolist() == [[3, 1]]
    assert named.records([0])[0]["extra"]["tags"] == ["a", "b"]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda s: ck.PgVectorStore(s, "dogs"), "no column 'id' .there is no such table"),
        (lambda s: ck.PgVectorStore(s, "docs", vector="emb"), "'emb' .did you mean embedding"),
        (lambda s: ck.PgVectorStore(s, "docs", vector="part"), "'part' of .* is of type int4"),
        (lambda s: ck.PgVectorStore(s, "docs").allowed({"pat": 3}), "no column of .* mean part"),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence(store, make, said):
    with pytest.raises(InputError, match=said):
        make(store._server)


def test_a_server_that_goes_away_leaves_the_best_so_far(server, store, monkeypatch):
    monkeypatch.setattr(store, "whole", 0)
    index = ck.ItemIndex.over(store, "body", query_vectors=lambda texts: VECTORS[: len(texts)])
    asked = []

    def score(pairs):
        asked.extend(pairs)
        if len(asked) == 20:
            monkeypatch.setattr(store, "_server", "postgresql://127.0.0.1:9/none")
            store._connection.close()
        return [-float(text.split()[1]) for _, text in pairs]

    found = ck.Searcher(index, score, "axn(rounds=5)").search("one", k=5, budget=50)
    assert (found.stopped_by, found.n_scored, len(found[0])) == ("store", 20, 5)
    with pytest.raises(StoreError, match=r"'public\.docs' failed: OperationalError: "):
        ck.Searcher(index, score, "axn").search("another", budget=50)
