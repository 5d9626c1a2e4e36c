"""What is PostgreSQL's own: its index, columns of JSON, UUIDs, and failures."""

from __future__ import annotations

import uuid

import numpy as np
import pytest
from database_helpers import VECTORS, N
from hypothesis import given, settings
from test_filters import RECORDS, filters, meets

import crossknn as ck
from crossknn.errors import InputError, StoreError
from crossknn.types import NO_ITEM

pytestmark = pytest.mark.slow  # the server starts in two seconds or more


@pytest.fixture(scope="module")
def store(postgres):
    return ck.PgVectorStore(postgres[1], "public.docs")


def best(query, count, free):
    products = np.where(free, VECTORS @ query, -np.inf)
    return np.argsort(-products, kind="stable")[:count]


def test_an_index_finds_as_many_as_are_asked_for(postgres, store):
    server = postgres[0]
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
def named(store):
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


def test_a_server_that_goes_away_leaves_the_best_so_far(store, monkeypatch):
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
