"""Tables of PostgreSQL as people have them: names with capitals, schemas, nulls, odd columns."""

import json
import uuid

import numpy as np
import pytest
from database_helpers import VECTORS, search
from hypothesis import given
from test_filters import RECORDS, filters, meets

import crossknn as ck
from crossknn.errors import InputError
from crossknn.types import NO_ITEM

pytestmark = pytest.mark.slow  # the server starts in two seconds or more

ROWS = [(0, "zip a file", "en"), (1, "sort a list", "de"), (2, "lock a thread", "en")]
PLANE = ["[1,0]", "[0,1]", "[1,1]"]
MAKE = "create table {} ({} bigint, {} text, {} text, {} vector(2))"


@pytest.fixture
def table(postgres):
    """Make a table of `ROWS`, and open a store over it."""
    connection, address = postgres
    made = []

    def make(name, columns=("id", "body", "lang", "embedding"), rows=ROWS, opened=None, **options):
        connection.execute(MAKE.format(name, *columns))
        made.append(name)
        for row, vector in zip(rows, PLANE, strict=True):
            into = name.replace("%", "%%")
            connection.execute(f"insert into {into} values (%s, %s, %s, %s)", (*row, vector))
        plain = [column.strip('"') for column in columns]
        options = {"id": plain[0], "vector": plain[3]} | options
        return ck.PgVectorStore(address, opened or name, **options)

    yield make
    for name in made:
        connection.execute(f"drop table {name}")


@pytest.fixture
def odd(postgres):
    """Open a store over a table `odd` of some columns, and rows of values."""
    connection, address = postgres

    def make(columns, *rows):
        connection.execute(f"create table odd ({columns})")
        for row in rows:
            places = ", ".join(["%s"] * len(row))
            connection.execute(f"insert into odd values ({places})", row, prepare=False)
        return ck.PgVectorStore(address, "odd")

    yield make
    connection.execute("drop table odd")


def found(store, *texts, **options):
    return [hit.id for hit in search(store, *texts, **options)[0]]


def test_an_index_finds_as_many_as_are_asked_for(postgres):
    server, address = postgres
    server.execute("create index near on docs using hnsw (embedding vector_ip_ops)")
    plan = server.execute(
        f"explain select id from docs order by embedding <#> '{VECTORS[0].tolist()}' limit 5"
    ).fetchall()
    assert "near" in str(plan)
    store, exact = (ck.PgVectorStore(address, "docs", exact=exact) for exact in (False, True))
    expected = np.argsort(-(VECTORS @ VECTORS[0]), kind="stable")[:200]
    assert np.isin(store.top(VECTORS[:1], 200).items[0], expected).sum() > 180
    assert (store.top(VECTORS[:1], 1_100).items != NO_ITEM).sum() == 1_100
    assert exact.top(VECTORS[:1], 200).items[0].tolist() == expected.tolist()
    server.execute("drop index near")


@pytest.fixture(scope="module")
def named(postgres):
    """`RECORDS` in one column of JSON, under UUIDs."""
    connection, address = postgres
    connection.execute("create table named (name uuid, e vector(2), extra jsonb)")
    for i, record in enumerate(RECORDS):
        fields = json.dumps({key: value for key, value in record.items() if value == value})
        row = (uuid.UUID(int=i), str([i, 1]), fields)
        connection.execute("insert into named values (%s, %s::vector, %s)", row)
    return ck.PgVectorStore(address, "named", vector="e", id="name")


@given(condition=filters())
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


@pytest.mark.parametrize(
    ("name", "opened"),
    [
        ('"Docs"', "Docs"),
        ('"Docs"', "public.Docs"),
        ('"Docs"', 'public."Docs"'),
        ('"Docs"', '"Docs"'),
        ("lower", "LOWER"),  # as SQL reads it
        ("lower", "public.lower"),
        ('"Sales"."Docs"', "Sales.Docs"),
        ('"Sales"."Docs"', '"Sales"."Docs"'),
        ('"Sales".docs', "Sales.docs"),
        ('"my.docs"', "my.docs"),
        ('"a ""b"" {c} %s"', 'a "b" {c} %s'),
        ('"select"', "select"),
        ('"文書"', "文書"),
    ],
)
def test_a_table_by_its_name(table, name, opened):
    assert found(table(name, opened=opened)) == ["2", "1", "0"]


def test_of_two_tables_the_one_as_it_is_written(table):
    table("lower")
    rows = [(7, "a", "en"), (8, "bb", "en"), (9, "ccc", "en")]
    assert found(table('"Lower"', rows=rows, opened="Lower")) == ["9", "8", "7"]


@pytest.mark.parametrize(
    "name", ["nothing", "No.thing", "a b", "", "x\0y", "\ud800", "a.b.c.d", '"']
)
def test_a_table_that_is_not_there(postgres, name):
    with pytest.raises(InputError, match=r"no column 'id' .there is no such table"):
        ck.PgVectorStore(postgres[1], name)


def test_columns_with_capitals_and_dots(table):
    columns = '"docId"', '"Body"', '"meta.Lang"', '"Embedding"'
    store = table('"Docs"', columns, opened="Docs")
    assert found(store, "Body", filter={"meta.Lang": "en"}) == ["2", "0"]
    assert store.allowed({"meta.Lang": {"gte": "e"}}).tolist() == [True, False, True]
    store = table("other", ('"order"', "entry", "one", '"user"'))
    assert found(store, "entry", filter={"one": ["de"]}) == ["1"]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([ROWS[0], ROWS[1], ROWS[1]], "'twice' has the id 1 more than once"),
        ([ROWS[0], (None, "sort a list", "de"), ROWS[2]], "whose id column 'id' is null"),
    ],
)
def test_an_id_names_one_row(table, rows, said):
    with pytest.raises(InputError, match=said):
        table("twice", rows=rows)


def test_a_text_that_becomes_null_later(table, postgres, caplog):
    store = table("changing")
    index = ck.ItemIndex.over(store, "body", query_vectors=lambda asked: [[1, 0.5]] * len(asked))
    postgres[0].execute("update changing set body = null where id = 2")
    results = ck.Searcher(index, lambda pairs: [1.0] * len(pairs), "axn").search("q", budget=5)
    assert {hit.id for hit in results[0]} == {"0", "1"}
    assert (results.n_scored, results.error) == (2, None)
    assert "left out 1 item without a text, the first with the id '2'" in caplog.text


@pytest.mark.parametrize(
    ("type", "ids"),
    [
        ("bigint", [-5, 0, 2**62]),
        ("text", ["A", "b c", "{d,e}"]),
        ("char(8)", ["A", "abc", "b c"]),
        ("numeric", ["0.10", "1.5", "20"]),
        ("kind", ["small", "large", "other"]),
        ("uuid", [str(uuid.UUID(int=i)) for i in (0, 4, 7)]),
        ("date", ["2024-01-01", "2024-01-02", "2024-01-03"]),
        ("bytea", ["\\x00", "\\x0102", "\\xff"]),
    ],
)
def test_ids_of_any_type(odd, postgres, type, ids):
    postgres[0].execute("drop type if exists kind")
    postgres[0].execute("create type kind as enum ('small', 'large', 'other')")
    rows = [(key, f"text {key}", vector) for key, vector in zip(ids, PLANE, strict=True)]
    store = odd(f"id {type}, body text, embedding vector(2)", *rows)
    assert sorted(found(store)) == sorted(map(str, ids))
    assert found(store, filter=[str(ids[1])]) == [str(ids[1])]


def test_vectors_of_several_lengths_are_refused(odd):
    with pytest.raises(InputError, match="dimensions, and others"):
        odd("id int, body text, embedding vector", (0, "a", "[1,2]"), (1, "b", "[1,2,3]"))


def test_nothing_but_ids_and_vectors(odd):
    store = odd("id int, embedding vector(2)", (0, "[1,2]"), (1, "[3,4]"))
    assert found(store, lambda ids: ["ab" * int(i) or "c" for i in ids]) == ["1", "0"]


@pytest.mark.parametrize("given", ["postgres//me:secret@h", "http://me:secret@h/db", "secret", 5])
def test_what_is_no_server(given):
    with pytest.raises(InputError, match="is no connection string of PostgreSQL") as said:
        ck.PgVectorStore(given, "docs")
    assert "secret" not in str(said.value)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda s: ck.PgVectorStore(s, "docs", vector="emb"), "'emb' .did you mean embedding"),
        (lambda s: ck.PgVectorStore(s, "docs", id="Id"), r"no column 'Id' .did you mean id\?"),
        (lambda s: ck.PgVectorStore(s, "docs", vector="part"), "'part' of .* is of type int4"),
        (lambda s: ck.PgVectorStore(s, "docs").allowed({"pat": 3}), "'pat'.* mean part"),
        (
            lambda s: ck.PgVectorStore(s, "docs").allowed({"embedding": "x"}),
            "'embedding'.* has this field .known: body",
        ),
        (lambda s: ck.PgVectorStore(s, "docs").allowed({"pa.\ud800": "x"}), "names 'pa"),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence(postgres, make, said):
    with pytest.raises(InputError, match=said):
        make(postgres[1])
