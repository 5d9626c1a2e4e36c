"""Tables of PostgreSQL as people have them: names with capitals, schemas, nulls, odd columns."""

import logging

import numpy as np
import psycopg
import pytest

import crossknn as ck

pytestmark = pytest.mark.slow  # the server starts in two seconds or more
pgserver = pytest.importorskip("pgserver")  # of which there is none for Python 3.13

ROWS = [(0, "zip a file", "en"), (1, "sort a list", "de"), (2, "lock a thread", "en")]
VECTORS = ["[1,0]", "[0,1]", "[1,1]"]
MAKE = "create table {} ({} bigint, {} text, {} text, {} vector(2))"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    running = pgserver.get_server(tmp_path_factory.mktemp("pg"))
    with psycopg.connect(running.get_uri(), autocommit=True) as connection:
        connection.execute("create schema extensions; create extension vector schema extensions")
        connection.execute("set search_path = public, extensions")
        connection.execute('create schema "Sales"; create schema "my.schema"')
        yield connection, running.get_uri()
    running.cleanup()


@pytest.fixture
def table(server):
    """Make a table of `ROWS`, and open a store over it."""
    connection, uri = server
    made = []

    def make(name, columns=("id", "body", "lang", "embedding"), rows=ROWS, opened=None, **options):
        connection.execute(MAKE.format(name, *columns))
        made.append(name)
        for row, vector in zip(rows, VECTORS, strict=True):
            into = name.replace("%", "%%")
            connection.execute(f"insert into {into} values (%s, %s, %s, %s)", (*row, vector))
        plain = [column.strip('"') for column in columns]
        options = {"id": plain[0], "vector": plain[3]} | options
        return ck.PgVectorStore(uri, opened or name, **options)

    yield make
    for name in made:
        connection.execute(f"drop table {name}")


@pytest.fixture
def docs(server):
    """Make a table `docs` of some columns, and rows of values in SQL."""
    connection, uri = server

    def make(columns, *rows):
        connection.execute(f"create table docs ({columns})")
        for row in rows:
            connection.execute(f"insert into docs values ({row})")
        return uri

    yield make
    connection.execute("drop table docs")


def search(store, texts="body", **options):
    index = ck.ItemIndex.over(store, texts, query_vectors=lambda asked: [[1, 0.5]] * len(asked))
    searcher = ck.Searcher(index, lambda pairs: [float(len(text)) for _, text in pairs], "axn")
    return [hit.id for hit in searcher.search("q", budget=5, **options)[0]]


@pytest.mark.parametrize(
    ("name", "opened"),
    [
        ('"Docs"', "Docs"),
        ('"Docs"', "public.Docs"),
        ('"Docs"', 'public."Docs"'),
        ('"Docs"', '"Docs"'),
        ("docs", "DOCS"),  # as SQL reads it
        ("docs", "public.docs"),
        ('"Sales"."Docs"', "Sales.Docs"),
        ('"Sales"."Docs"', '"Sales"."Docs"'),
        ('"Sales".docs', "Sales.docs"),
        ('"my.docs"', "my.docs"),
        ('"my.schema"."my.docs"', "my.schema.my.docs"),
        ('"a ""b"" {c} %s"', 'a "b" {c} %s'),
        ('"select"', "select"),
        ('"文書"', "文書"),
    ],
)
def test_a_table_by_its_name(table, name, opened):
    """A table that an ORM named with capitals, in a schema, or with odd characters."""
    assert search(table(name, opened=opened)) == ["2", "1", "0"]


def test_of_two_tables_the_one_as_it_is_written(table):
    """There is `docs` and `"Docs"`: each is found by its own name."""
    table("docs")
    other = table('"Docs"', rows=[(7, "a", "en"), (8, "bb", "en"), (9, "ccc", "en")], opened="Docs")
    assert search(other) == ["9", "8", "7"]


@pytest.mark.parametrize(
    "name", ["nothing", "No.thing", "a b", "", "x\0y", "\ud800", "a.b.c.d", '"']
)
def test_a_table_that_is_not_there(server, name):
    """A wrong name is said in a sentence, whatever it is."""
    with pytest.raises(ck.InputError, match="there is no such table"):
        ck.PgVectorStore(server[1], name)


def test_columns_with_capitals_and_dots(table):
    """Prisma's and TypeORM's columns have capitals; one has a dot, and others a word of SQL."""
    columns = '"docId"', '"Body"', '"meta.Lang"', '"Embedding"'
    store = table('"Docs"', columns, opened="Docs")
    assert search(store, "Body", filter={"meta.Lang": "en"}) == ["2", "0"]
    assert store.allowed({"meta.Lang": {"gte": "e"}}).tolist() == [True, False, True]
    store = table("other", ('"order"', "entry", "one", '"user"'))
    assert search(store, "entry", filter={"one": ["de"]}) == ["1"]
    with pytest.raises(ck.InputError, match=r"no column 'Id' .did you mean id\?"):
        table("third", id="Id")


def test_ids_that_come_twice_are_refused(table):
    """A join has doubled rows: an id must name one row."""
    with pytest.raises(ck.InputError, match="'docs' has the id 1 more than once"):
        table("docs", rows=[ROWS[0], ROWS[1], ROWS[1]])


def test_a_null_id_names_its_row(table):
    """The column of ids has no constraint, and a row has none."""
    rows = [ROWS[0], (None, "sort a list", "de"), ROWS[2]]
    said = r"whose id, 'id', is null: {\"body\": \"sort a list\", \"lang\": \"de\"}"
    with pytest.raises(ck.InputError, match=said):
        table("docs", rows=rows)


def test_a_null_text_is_left_out_with_a_warning(table, caplog):
    """Two of three rows have no text yet."""
    rows = [(0, None, "en"), (1, None, "de"), ROWS[2]]
    store = table("docs", rows=rows)
    assert search(store) == ["2"]
    said = "'docs': left out 2 items without a text in 'body', such as 0"
    assert [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING] == [
        f"the PostgreSQL table {said}"
    ]
    assert store.shape == (3, 2)  # the user's own is as it was
    nothing = table("empty", rows=[(i, None, "en") for i in range(3)])
    with pytest.raises(ck.InputError, match=r"every 'body' of .* is null"):
        search(nothing)


def test_a_text_that_becomes_null_later(table, server, caplog):
    """A row loses its text between the opening and a search, which goes on without it."""
    store = table("docs")
    index = ck.ItemIndex.over(store, "body", query_vectors=lambda asked: [[1, 0.5]] * len(asked))
    server[0].execute("update docs set body = null where id = 2")
    found = ck.Searcher(index, lambda pairs: [1.0] * len(pairs), "axn").search("q", budget=5)
    assert {hit.id for hit in found[0]} == {"0", "1"}
    assert (found.n_scored, found.error) == (2, None)
    assert "left out 1 item without a text, the first with the id '2'" in caplog.text


@pytest.mark.parametrize(
    ("type", "ids"),
    [
        ("bigint", [-5, 0, 2**62]),
        ("text", ["A", "b c", "{d,e}"]),
        ("char(8)", ["A", "abc", "b c"]),
        ("numeric", ["0.10", "1.5", "20"]),
        ("public.kind", ["small", "large", "other"]),
        ("date", ["2024-01-01", "2024-01-02", "2024-01-03"]),
        ("bytea", ["\\x00", "\\x0102", "\\xff"]),
    ],
)
def test_ids_of_any_type(server, type, ids):
    """Negative numbers, texts with braces, an enumeration, dates and bytes name rows."""
    connection, uri = server
    connection.execute("create type kind as enum ('small', 'large', 'other')")
    connection.execute(f"create table docs (id {type}, body text, embedding vector(2))")
    for key, vector in zip(ids, VECTORS, strict=True):
        connection.execute("insert into docs values (%s, %s, %s)", (key, f"text {key}", vector))
    store = ck.PgVectorStore(uri, "docs")
    try:
        assert sorted(search(store)) == sorted(map(str, ids))
        allowed = [str(ids[1])]
        assert search(store, filter=allowed) == allowed
    finally:
        connection.execute("drop table docs; drop type kind")


def test_numbers_that_json_lacks_are_null(docs):
    """A price is NaN, and another infinite."""
    prices = ("NaN", "Infinity", "2.5")
    rows = [f"{i}, 'x', '{price}', '[1,2]'" for i, price in enumerate(prices)]
    store = ck.PgVectorStore(
        docs("id int, body text, price float8, embedding vector(2)", *rows), "docs"
    )
    assert [record["price"] for record in store.records([0, 1, 2])] == [None, None, 2.5]
    assert store.allowed({"price": None}).tolist() == [True, True, False]


def test_vectors_of_several_lengths_are_refused(docs):
    """A column of type vector, without its dimensions, has vectors of two encoders."""
    uri = docs("id int, body text, embedding vector", "0, 'a', '[1,2]'", "1, 'b', '[1,2,3]'")
    with pytest.raises(ck.InputError, match="dimensions, and others"):
        ck.PgVectorStore(uri, "docs")


def test_nothing_but_ids_and_vectors(docs):
    """A table without other columns, whose texts a function has."""
    store = ck.PgVectorStore(
        docs("id int, embedding vector(2)", "0, '[1,2]'", "1, '[3,4]'"), "docs"
    )
    assert search(store, lambda ids: ["ab" * int(i) or "c" for i in ids]) == ["1", "0"]


@pytest.mark.parametrize("given", ["postgres//me:secret@h", "http://me:secret@h/db", "secret", 5])
def test_what_is_no_server(given):
    """The address has a typing error: the message does not show its password."""
    with pytest.raises(ck.InputError, match="is no connection string of PostgreSQL") as said:
        ck.PgVectorStore(given, "docs")
    assert "secret" not in str(said.value)


@pytest.mark.parametrize(
    "condition",
    [
        {"lang": "e\0n"},
        {"lang": ["en", "\ud800"]},
        {"embedding": "x"},
        {"lang": {"gte": float("inf")}},
        {"lang": float("-inf")},
        {"lang": 10**400},
        {"la\0ng": "x"},
        {"lang.\ud800": "x"},
        {"lang": {"lt": np.float32("inf")}},
    ],
)
def test_a_filter_that_cannot_be_is_the_callers_error(table, condition):
    """NUL, half a surrogate pair or infinity come from a request: no failure of the database."""
    with pytest.raises(ck.InputError):
        table("docs").allowed(condition)
