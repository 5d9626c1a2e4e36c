"""Files of anybody: tables with any header, JSON as other tools write it, any line end, UTF-16; and
whatever fields hold, answers are JSON."""

import gzip
import io
import json
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePosixPath
from uuid import UUID

import numpy as np
import pytest

import crossknn as ck
from crossknn.cli.app import run
from crossknn.data.items import Items


def written(tmp_path, ending, rows):
    path = tmp_path / f"table.{ending}"
    mark = "," if ending == "csv" else "\t"
    path.write_text("".join(mark.join(row) + "\n" for row in rows))
    return path


ENDINGS = pytest.mark.parametrize("ending", ["tsv", "csv"])


@ENDINGS
@pytest.mark.parametrize(
    "names", [("ID", "Text"), ("_Id", "TEXT"), ("DocNo", "text"), ("QID", "Query"), ("query_id", "query")]
)  # fmt: skip
def test_usual_names_in_any_case(tmp_path, ending, names):
    path = written(tmp_path, ending, [names, ("d1", "a tree")])
    assert ck.read_queries(path).texts == ("a tree",)
    if names[1].casefold() == "text":
        items = ck.read_items(path)
        assert [(item.id, item.text, item.extra) for item in items] == [("d1", "a tree", {})]


@ENDINGS
@pytest.mark.parametrize(
    "names",
    [
        *[("pid", "passage"), ("ID", "Body"), ("ID", "URL", "Title", "Body"), ("PMID", "Abstract")],
        *[("passage_id", "passage_text"), ("document id", "contents"), ("Document", "Topic")],
        *[("doc-no", "story"), ("ItemId", "ItemText"), ("key", "value")],
        *[("topic_id", "question"), ("Topic", "Title"), ("questionId", "text of it")],
    ],
)
def test_other_names(tmp_path, ending, names):
    path = written(tmp_path, ending, [names, [f"value {n}" for n in range(len(names))]])
    with pytest.raises(ck.InputError, match="line 2 has no field 'text'"):
        ck.read_queries(path)
    with pytest.raises(ck.InputError, match="line 2 has no field 'text'") as error:
        ck.read_items(path)
    assert "--text-field" in error.value.__notes__[0]
    items = ck.read_items(path, id_field=names[0], text_field=names[-1])
    assert [*items.ids] == ["value 0"]
    assert items.texts[0].endswith(f"value {len(names) - 1}")


def test_quoted_headers_and_titles(tmp_path):
    path = written(tmp_path, "tsv", [('"id"', '"text"'), ('"d1"', '"a tree"')])
    with pytest.raises(ck.InputError, match="line 2 has no field 'text'"):
        ck.read_items(path)
    path = written(
        tmp_path, "csv", [("ID", "URL", "Title", "Text"), ("d1", "web", "Oak", "a tree")]
    )
    items = ck.read_items(path)
    assert (items.texts[0], items.extra[0]) == ("Oak\na tree", {"URL": "web"})
    assert ck.read_items([{"Text": "other", "text": "a tree"}]).extra[0] == {"Text": "other"}


@ENDINGS
def test_an_id_of_another_name(tmp_path, ending, caplog):
    assert [*ck.read_items(written(tmp_path, ending, [("uuid", "text"), ("x7", "a")])).ids] == ["2"]
    assert "if 'uuid' is their id, name it with --id-field" in caplog.text


@pytest.mark.parametrize(
    "row", [("7", "a title"), ("acid", "a substance"), ("d1", "my id"), ("said", "spoken"),
            ("Q42", "Douglas Adams"), ("covid", "a disease"), ("0", "passage")]
)  # fmt: skip
def test_a_first_row_without_a_header(tmp_path, row):
    path = written(tmp_path, "tsv", [row, ("8", "the sea")])
    assert [*ck.read_items(path).ids] == [row[0], "8"]
    assert ck.read_queries(path).texts == (row[1], "the sea")


RECORDS = [
    {"id": "d1", "title": "Oak", "text": "a tree"},
    {"id": "d2", "title": "", "text": "the\nsea"},
]
KEYED = {record["id"]: record for record in RECORDS}
WAYS = {
    "lines": "\n".join(map(json.dumps, RECORDS)),
    "an array on one line": json.dumps(RECORDS),
    "an array, a record a line": "[\n" + ",\n".join(map(json.dumps, RECORDS)) + "\n]\n",
    "an array after blanks": "\ufeff\n\n  " + json.dumps(RECORDS, indent="\t") + "\n\n",
    "objects, pretty": "\n".join(json.dumps(record, indent=4) for record in RECORDS),
    "objects in one line": "".join(map(json.dumps, RECORDS)),
    "a mapping": json.dumps(KEYED),
    "a mapping, pretty": json.dumps(KEYED, indent=2),
    "Windows": json.dumps(RECORDS, indent=2).replace("\n", "\r\n"),
}


@pytest.mark.parametrize("ending", ["json", "jsonl", "ndjson", "json.gz"])
@pytest.mark.parametrize("way", WAYS)
def test_json_as_other_tools_write_it(tmp_path, way, ending):
    path, content = tmp_path / f"docs.{ending}", WAYS[way].encode()
    path.write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
    items = ck.read_items(path)
    assert [*items.ids] == ["d1", "d2"]
    assert [*items.texts] == ["Oak\na tree", "the\nsea"]
    assert ck.read_queries(path).texts == ("a tree", "the\nsea")


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ('["a tree",\n "the sea"]', ["1", "2"]),
        ('{"text": "a tree"}{"text": "the sea"}\n{"text":\n"a stone"}', ["1", "2", "3"]),
        (json.dumps(RECORDS[0]), ["d1"]),
        (json.dumps(RECORDS[0], indent=2), ["d1"]),
    ],
)
def test_json_without_ids_and_single_records(tmp_path, text, ids):
    (tmp_path / "docs.json").write_text(text)
    assert [*ck.read_items(tmp_path / "docs.json").ids] == ids


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "holds no items"),
        ("{}", "entry 1 has no field 'text'"),
        ('[{"text": "a"}, 7]', "entry 2 is a int; each must be a string or a mapping"),
        ('[{"text": "a"}, {"body": "b"}]', "entry 2 has no field 'text'"),
        ('[\n{"text": "a"},\n{"text" "b"}\n]', "line 3 is not valid JSON: Expecting ':'"),
        ('{\n"text": "a"\n', "line 3 is not valid JSON: Expecting ',' delimiter"),
        ('{"text": "a"}\n{"text": "b"', "line 2 is not valid JSON: Expecting ',' delimiter"),
        ('["a"]\n["b"]', "entry 1 is a list; each must be a string or a mapping"),
        ('{"text": "a"}\n["b"]', "line 2 is a list; each must be a string or a mapping"),
        ("nonsense", "line 1 is not valid JSON: Expecting value"),
        ('{"d1": {"title": "x"}}', "entry 'd1' has no field 'text'"),
    ],
)
def test_what_cannot_be_read(tmp_path, text, said):
    (tmp_path / "docs.json").write_text(text)
    with pytest.raises(ck.InputError) as error:
        ck.read_items(tmp_path / "docs.json")
    assert said in str(error.value)


def test_standard_input(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(RECORDS, indent=2)))
    assert run(["index", "build", "-", "d.index", "--encoder", "none"]) == 0
    search = ["search", "d.index", "-", "--method", "retrieve(retriever=bm25)", "--json"]
    for given, texts in (('["tree", "sea"]', ["tree", "sea"]), ("[tree]\n", ["[tree]"])):
        monkeypatch.setattr("sys.stdin", io.StringIO(given))
        capsys.readouterr()
        assert run(search) == 0
        found = json.loads(capsys.readouterr().out)
        assert [row["query"] for row in found["results"]] == texts
        assert found["results"][0]["hits"][0]["id"] == "d1"


LINES = {
    "jsonl": '{"id": "d1", "text": "a tree"}\n{"id": "d2", "text": "the sea"}\n',
    "csv": 'id,text\nd1,a tree\n"d2",the sea\n',
    "tsv": "id\ttext\nd1\ta tree\nd2\tthe sea\n",
    "txt": "a tree\nthe sea\n",
}


@pytest.mark.parametrize("ending", LINES)
def test_files_of_other_systems(tmp_path, ending):
    """Whatever ends the lines, with a byte order mark or without, the texts are the same two; UTF-16
    of PowerShell and Excel is refused by its name, and what gzip packed is read under any name."""
    path = tmp_path / f"docs.{ending}"
    for end in ("\n", "\r\n", "\r"):
        for mark in ("", "\ufeff"):
            path.write_bytes((mark + LINES[ending].replace("\n", end)).encode())
            assert [*ck.read_items(path).texts] == ["a tree", "the sea"]
            assert ck.read_queries(path).texts == ("a tree", "the sea")
    path.write_bytes(gzip.compress(LINES[ending].encode()))
    assert [*ck.read_items(path).texts] == ["a tree", "the sea"]
    for encoding in ("utf-16", "utf-16-le", "utf-16-be"):
        path.write_bytes(LINES[ending].encode(encoding))
        for read in (ck.read_items, ck.read_queries):
            with pytest.raises(ck.InputError, match="line 1 is UTF-16, not UTF-8"):
                read(path)


class Colour(Enum):
    RED = "red"


def shown(value):
    if isinstance(value, set):  # the order of a set's representation changes with each process
        return "set"
    return "too long" if isinstance(value, int) and value > 2**64 else repr(value)[:30]


VALUES = [
    *[(float("nan"), None), (float("-inf"), None), (np.float32("inf"), None)],
    *[(np.float32(0.5), 0.5), (np.longdouble(0.5), 0.5), (np.int64(2**40), 2**40)],
    *[(np.True_, True), (np.array([1.0, np.nan]), [1.0, None]), (np.array(3), 3)],
    *[(np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]), (np.datetime64("2020-05-01"), "2020-05-01")],
    (np.array(["2020-05-01", "NaT"], "M8[ns]"), ["2020-05-01T00:00:00.000000000", None]),
    *[(Decimal("12.50"), 12.5), (Decimal("9007199254740993"), 9007199254740993)],
    *[(Decimal("Infinity"), None), (Decimal("NaN"), None), (date(2020, 5, 1), "2020-05-01")],
    (datetime(2020, 5, 1, 10, tzinfo=UTC), "2020-05-01T10:00:00+00:00"),
    *[(time(10, 30), "10:30:00"), (timedelta(hours=1), "1:00:00")],
    *[(np.timedelta64(3, "s"), "3 seconds"), (np.timedelta64("NaT"), None)],
    *[(10**400, 10**400), (10**5000, None), (UUID(int=1), str(UUID(int=1)))],
    *[(PurePosixPath("a/b"), "a/b"), (Colour.RED, "red"), (b"caf\xc3\xa9", "café")],
    *[({"b", "a"}, ["a", "b"]), ((1, [2.5, float("nan")]), [1, [2.5, None]])],
    ({1: {"x": float("inf")}, None: 2}, {"1": {"x": None}, "None": 2}),
    ("half \ud800", "half \ufffd"),
]


@pytest.mark.parametrize(("value", "expected"), VALUES, ids=shown)
def test_answers_are_json(tmp_path, value, expected):
    record = {"id": "d1", "text": "a tree", "field": value}
    bare = Items(ids=["d1"], texts=["a tree"], titles=[""], extra=[{"field": value}])
    for items in ([record], bare):
        index = ck.ItemIndex.build(items, lsa=0)
        results = ck.Searcher(index, lambda pairs: [1.0], "exact").search("tree")
        said = json.loads(json.dumps(results.to_dict(), allow_nan=False))
        assert said["results"][0]["hits"][0]["extra"] == {"field": expected}
    ck.ItemIndex.build([record], lsa=0).save(tmp_path / "i")
    assert dict(ck.ItemIndex.load(tmp_path / "i").items.extra[0]) == {"field": expected}


def test_filters_on_such_fields():
    index = ck.ItemIndex.build(
        [
            {"id": "a", "text": "x", "day": date(2020, 5, 1), "price": Decimal("1.5")},
            {"id": "b", "text": "y", "day": date(2021, 5, 1), "price": float("nan")},
        ],
        lsa=0,
    )
    assert index.allowed({"day": {"gte": "2021-01-01"}}).tolist() == [False, True]
    assert index.allowed({"price": {"lt": 2}}).tolist() == [True, False]
    assert index.allowed({"price": None}).tolist() == [False, True]


def test_a_field_that_never_ends():
    endless = {"id": "d1", "text": "a tree"}
    endless["again"] = endless
    with pytest.raises(ck.InputError, match="entry 0 has a field that is nested too deeply"):
        ck.read_items([endless])
