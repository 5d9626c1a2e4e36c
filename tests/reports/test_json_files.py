"""JSON as other tools write it: one object a line, an array, or spread over lines."""

from __future__ import annotations

import gzip
import io
import json

import pytest

import crossknn as ck
from crossknn.cli.app import run

RECORDS = [
    {"id": "d1", "title": "Oak", "text": "a tree"},
    {"id": "d2", "title": "", "text": "the\nsea"},
]
KEYED = {record["id"]: record for record in RECORDS}
WAYS = {
    "lines": "\n".join(map(json.dumps, RECORDS)),
    "an array on one line": json.dumps(RECORDS),
    "an array, pretty": json.dumps(RECORDS, indent=2),
    "an array, a record a line": "[\n" + ",\n".join(map(json.dumps, RECORDS)) + "\n]\n",
    "an array after a mark and blank lines": "\ufeff\n\n  "
    + json.dumps(RECORDS, indent="\t")
    + "\n\n",
    "objects, pretty": "\n".join(json.dumps(record, indent=4) for record in RECORDS),
    "objects in one line": "".join(map(json.dumps, RECORDS)),
    "a mapping": json.dumps(KEYED),
    "a mapping, pretty": json.dumps(KEYED, indent=2),
    "Windows": json.dumps(RECORDS, indent=2).replace("\n", "\r\n"),
}


@pytest.mark.parametrize("ending", ["json", "jsonl", "ndjson", "json.gz"])
@pytest.mark.parametrize("way", WAYS)
def test_items_and_queries(tmp_path, way, ending):
    """All of these files hold the same two records."""
    path, content = tmp_path / f"docs.{ending}", WAYS[way].encode()
    path.write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
    items = ck.read_items(path)
    assert [*items.ids] == ["d1", "d2"]
    assert [*items.texts] == ["Oak\na tree", "the\nsea"]
    assert ck.read_queries(path).texts == ("a tree", "the\nsea")


def test_an_array_of_texts(tmp_path):
    """An array may hold texts; they are numbered from 1, as lines are."""
    path = tmp_path / "docs.json"
    path.write_text('["a tree",\n "the sea"]')
    assert [(item.id, item.text) for item in ck.read_items(path)] == [
        ("1", "a tree"),
        ("2", "the sea"),
    ]


def test_objects_without_ids(tmp_path):
    """Objects without ids are numbered, also where they share a line."""
    path = tmp_path / "docs.json"
    path.write_text('{"text": "a tree"}{"text": "the sea"}\n{"text":\n"a stone"}')
    assert [*ck.read_items(path).ids] == ["1", "2", "3"]


def test_one_record(tmp_path):
    """A file of one object, pretty or not, is one record."""
    for indent in (None, 2):
        path = tmp_path / "docs.json"
        path.write_text(json.dumps(RECORDS[0], indent=indent))
        assert [*ck.read_items(path).ids] == ["d1"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "holds no items"),
        ("{}", "entry 1 has no field 'text'"),
        ('[{"text": "a"}, 7]', "entry 2 is a int; each must be a string or a mapping"),
        ('[{"text": "a"}, {"body": "b"}]', "entry 2 has no field 'text'"),
        ('[\n{"text": "a"},\n{"text" "b"}\n]', "line 3 is not valid JSON: Expecting ':' delimiter"),
        ('[{"text": "a"}', "line 1 is not valid JSON: Expecting ',' delimiter"),
        ('{\n"text": "a"\n', "line 3 is not valid JSON: Expecting ',' delimiter"),
        ('{"text": "a"\n{"text": "b"}', "line 2 is not valid JSON: Expecting ',' delimiter"),
        ('{"text": "a"}\n{"text": "b"', "line 2 is not valid JSON: Expecting ',' delimiter"),
        ('["a"]\n["b"]', "entry 1 is a list; each must be a string or a mapping"),
        ('{"text": "a"}\n["b"]', "line 2 is a list; each must be a string or a mapping"),
        ("7", "entry 1 is a int; each must be a string or a mapping"),
        ("nonsense", "line 1 is not valid JSON: Expecting value"),
        ('{"text": "a tree", "lang": {"x": 1', "line 1 is not valid JSON"),
        ('{"d1": {"title": "x"}}', "entry 'd1' has no field 'text'"),
    ],
)
def test_what_cannot_be_read(tmp_path, text, said):
    """The sentence says where the file is wrong."""
    (tmp_path / "docs.json").write_text(text)
    with pytest.raises(ck.InputError) as error:
        ck.read_items(tmp_path / "docs.json")
    assert said in str(error.value)


def test_standard_input(tmp_path, monkeypatch, capsys):
    """`-` takes an array, too; a text may begin with a bracket."""
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
