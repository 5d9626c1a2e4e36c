"""Databases that tests share, which have the same items."""

import pytest
from database_helpers import KINDS, collection, few_in, fill, played

import crossknn as ck


@pytest.fixture(scope="session")
def postgres(tmp_path_factory):
    """A connection to a real server, and its address; there is none for Python 3.13."""
    import psycopg

    running = pytest.importorskip("pgserver").get_server(tmp_path_factory.mktemp("pg"))
    with psycopg.connect(running.get_uri(), autocommit=True) as connection:
        connection.execute("create schema extensions; create extension vector schema extensions")
        connection.execute("set search_path = public, extensions")
        connection.execute('create schema "Sales"; create schema "my.schema"')
        fill(connection)
        yield connection, running.get_uri()
    running.cleanup()


@pytest.fixture(scope="module", params=KINDS)
def store(request):
    """All items, in each kind of database."""
    if request.param == "qdrant":
        return ck.QdrantStore(collection(), "docs")
    if request.param != "postgres":
        return ck.ElasticStore(played(request.param)[1], "docs")
    return ck.PgVectorStore(request.getfixturevalue("postgres")[1], "public.docs")


@pytest.fixture(params=KINDS)
def few(request):
    """Opens a store of few items with the given fields, in each kind of database."""
    server = request.getfixturevalue("postgres") if request.param == "postgres" else None
    return lambda fields: few_in(request.param, fields, server)
