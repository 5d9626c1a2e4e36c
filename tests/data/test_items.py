"""Reading items: what is read is what was written, and every bad file gives one sentence."""

import gzip
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossknn.data.items import Items
from crossknn.data.reading import read_items
from crossknn.errors import InputError

LINES = [
    {"_id": "a", "title": "Cats", "text": "Cats purr.", "year": 2001},
    {"_id": 7, "title": "", "text": "Dogs bark.", "tags": ["x", "y"]},
]


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def jsonl(path, records):
    return write(path, "".join(json.dumps(record) + "\n" for record in records))


def test_json_lines_keep_ids_titles_and_other_fields(tmp_path):
    items = read_items(jsonl(tmp_path / "corpus.jsonl", LINES))
    assert list(items.ids) == ["a", "7"]
    assert list(items.texts) == ["Cats\nCats purr.", "Dogs bark."]
    assert list(items.titles) == ["Cats", ""]
    assert items.extra[0] == {"year": 2001}
    assert items[1].extra == {"tags": ["x", "y"]}
    assert items.position("7") == 1
    assert items.positions(["7", "a"]).tolist() == [1, 0]


def test_all_ways_to_give_the_same_items_agree(tmp_path):
    records = [{"id": str(i), "title": f"t{i}", "text": f"words, {i}"} for i in range(4)]
    rows = [[r["id"], r["title"], r["text"]] for r in records]
    tsv = "id\ttitle\ttext\n" + "".join("\t".join(row) + "\n" for row in rows)
    csv = "id,title,text\r\n" + "".join(",".join(f'"{f}"' for f in row) + "\r\n" for row in rows)
    (tmp_path / "beir").mkdir()
    lines = jsonl(tmp_path / "beir" / "corpus.jsonl", records)
    write(tmp_path / "c.jsonl.gz", gzip.compress(lines.read_bytes()))
    sources = [
        records,
        lines,
        str(tmp_path / "beir"),
        write(tmp_path / "c.tsv", tsv),
        write(tmp_path / "c.csv", "\ufeff" + csv),
        tmp_path / "c.jsonl.gz",
    ]
    for source in sources:
        items = read_items(source)
        assert (list(items.ids), list(items.texts), list(items.titles)) == (
            [r["id"] for r in records],
            [f"{r['title']}\n{r['text']}" for r in records],
            [r["title"] for r in records],
        )


def test_ids_that_are_absent_are_line_numbers_or_positions(tmp_path):
    path = write(tmp_path / "c.txt", "first\n\n third \n")
    assert list(read_items(path).ids) == ["1", "3"]
    assert list(read_items(path).texts) == ["first", "third"]
    assert list(read_items(["first", {"text": "second"}]).ids) == ["0", "1"]


def test_fields_template_and_limit(tmp_path):
    path = jsonl(tmp_path / "c.jsonl", [{"key": i, "head": "h", "body": f"b{i}"} for i in range(9)])
    items = read_items(
        path,
        id_field="key",
        title_field="head",
        text_field="body",
        template="{key}: {title} / {text}",
        limit=2,
    )
    assert list(items.texts) == ["0: h / b0", "1: h / b1"]
    assert items.template == "{key}: {title} / {text}"
    assert list(items.extra) == [{}, {}]


def test_quoted_csv_fields_may_hold_lines_and_long_texts(tmp_path):
    long = "word " * 60_000
    path = write(tmp_path / "c.csv", f'id,text\n1,"two\nlines"\n2,"{long}"\n')
    assert list(read_items(path).texts) == ["two\nlines", long.strip()]


texts = st.text(min_size=1).filter(lambda text: text.strip() and "\ufeff" not in text)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(texts, st.text(), st.dictionaries(st.text(), st.integers())), min_size=1))
def test_any_text_survives_json_lines(tmp_path_factory, entries):
    records = [
        {**extra, "id": str(i), "title": title, "text": text}
        for i, (text, title, extra) in enumerate(entries)
    ]
    path = jsonl(tmp_path_factory.mktemp("any") / "c.jsonl", records)
    for items in (read_items(path), read_items(records)):
        assert list(items.titles) == [title.strip() for _, title, _ in entries]
        rendered = [f"{title.strip()}\n{text.strip()}".strip() for text, title, _ in entries]
        assert list(items.texts) == rendered


def test_half_a_surrogate_pair_is_replaced(caplog):
    assert list(read_items(["a \ud800 b"]).texts) == ["a \ufffd b"]
    assert "half a surrogate pair" in caplog.text


BAD = {
    "empty.jsonl": ("\n\n", "holds no items"),
    "twice.jsonl": ('{"id": 1, "text": "x"}\n\n{"id": "1", "text": "y"}\n', "line 3 repeats .* 1;"),
    "blank.jsonl": ('{"id": 1, "text": "x"}\n{"id": 2, "text": " "}\n', "line 2 has an empty text"),
    "field.jsonl": ('{"id": 1, "txet": "x"}\n', "line 1 has no field 'text' .did you mean txet"),
    "broken.jsonl": ('{"id": 1, "text": "x"}\n{"id": \n', "line 2 is not valid JSON"),
    "list.jsonl": ("[1, 2]\n", "line 1 holds a JSON list"),
    "number.jsonl": ('{"id": 1, "text": ["x"]}\n', "line 1: field 'text' is a list"),
    "id.jsonl": ('{"id": "", "text": "x"}\n', "line 1 has the id ''"),
    "noid.jsonl": ('{"text": "x"}\n{"id": 3, "text": "x"}\n', "line 2 has an 'id', but the first"),
    "lost.jsonl": ('{"id": 3, "text": "x"}\n{"text": "x"}\n', "line 2 has no field 'id'"),
    "latin.jsonl": (b'{"id": 1, "text": "x"}\n{"t": "\xe9"}\n', "line 2 is not UTF-8 .byte 30 "),
    "short.csv": ("id,text\n1,x\n2\n", "line 3 has 1 fields, line 1 has 2"),
    "quote.csv": ('id,text\n1,"x\n', "not valid CSV"),
    "same.tsv": ("id\tid\n", "names a column twice"),
    "corpus.parquet": ("x", "unknown file type '.parquet'"),
    "zipped.txt.gz": ("not gzip", "cannot be read"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_named_in_one_sentence(tmp_path, name):
    content, sentence = BAD[name]
    path = write(tmp_path / name, content)
    with pytest.raises(InputError, match=sentence) as error:
        read_items(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_missing_files_folders_and_wrong_arguments(tmp_path):
    with pytest.raises(InputError, match="there is no file or folder"):
        read_items(tmp_path / "nothing.jsonl")
    with pytest.raises(InputError, match=r"without corpus\.jsonl"):
        read_items(tmp_path)
    with pytest.raises(InputError, match="the sequence holds no items"):
        read_items([])
    with pytest.raises(InputError, match="entry 1 is a int"):
        read_items(["x", 3])
    with pytest.raises(InputError, match="limit is 0"):
        read_items(["x"], limit=0)
    for template in ("{text.__class__}", "{text!r}", "{", "nothing", "{0}"):
        with pytest.raises(InputError, match="the template"):
            read_items(["x"], template=template)
    with pytest.raises(InputError, match="no field 'year'"):
        read_items(["x"], template="{year} {text}")


def test_unknown_ids_are_named():
    items = read_items(["x", "y"])
    assert isinstance(items, Items)
    with pytest.raises(InputError, match="no item with the id '5'"):
        items.position("5")
