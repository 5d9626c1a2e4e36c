"""Stores of the same items in three databases."""

import pytest
from database_helpers import collection, fill, shard

import crossknn as ck


@pytest.fixture(scope="session")
def embedded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qdrant") / "docs.shard"
    return ck.QdrantStore(shard(folder), folder, exact=True)


@pytest.fixture(scope="session")
def postgres(tmp_path_factory):
    """A real server, and its address; none for Python 3.13."""
    import psycopg

    running = pytest.importorskip("pgserver").get_server(tmp_path_factory.mktemp("pg"))
    with psycopg.connect(running.get_uri(), autocommit=True) as connection:
        connection.execute("create extension vector")
        fill(connection)
        yield connection, running.get_uri()
    running.cleanup()


SLOW = pytest.param("postgres", marks=pytest.mark.slow)  # starts in two seconds or more


@pytest.fixture(scope="module", params=["embedded", "client", SLOW])
def store(request):
    if request.param == "client":
        return ck.QdrantStore(collection(), "docs")
    found = request.getfixturevalue(request.param)
    return found if request.param == "embedded" else ck.PgVectorStore(found[1], "public.docs")
