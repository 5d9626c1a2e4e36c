"""Reading: properties of every reader (what each makes of its format: tests/golden)."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import Table, parquet
from test_data_values import SAMPLES, write

import crossknn as ck
from crossknn.data.items import read_items
from crossknn.errors import InputError
from crossknn_lab.collecting import item_as_query
from crossknn_train.reading import ITEM_TEMPLATE, marked_query, read_labelled, unmarked

BEIR, TREC = (SAMPLES[name] for name in ("beir", "trec"))


def lines(*records: object) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


texts = st.text(min_size=1).filter(lambda text: text.strip() and "\ufeff" not in text)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(texts, st.text(), st.dictionaries(st.text(), st.integers())), min_size=1))
def test_any_text_survives_json_lines(tmp_path_factory, entries):
    records = [
        {**extra, "id": str(i), "title": title, "text": text}
        for i, (text, title, extra) in enumerate(entries)
    ]
    folder = write(tmp_path_factory.mktemp("any"), {"c.jsonl": lines(*records)})
    for items in (read_items(folder / "c.jsonl"), read_items(records)):
        assert list(items.titles) == [title.strip() for _, title, _ in entries]
        rendered = [f"{title.strip()}\n{text.strip()}".strip() for text, title, _ in entries]
        assert list(items.texts) == rendered


def test_csv_fields_may_be_long_and_items_are_found_by_id(tmp_path):
    long = "word " * 60_000
    write(tmp_path, {"c.csv": f'id,text\n1,"two\nlines"\n2,"{long}"\n'})
    items = read_items(tmp_path / "c.csv")
    assert list(items.texts) == ["two\nlines", long.strip()]
    assert (items.position("2"), items.positions(["2", "1"]).tolist()) == (1, [1, 0])
    assert [item.id for item in items] == ["1", "2"]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.jsonl", b'{"id": 1, "text": "x"}\n{"t": "\xe9"}\n', "line 2 is not UTF-8 .byte 30 "),
        ("zipped.txt.gz", b"not gzip", "cannot be read"),
        ("corpus.parquet", b"x", "cannot be read as Parquet"),
        ("corpus.xlsx", b"x", "unknown file type '.xlsx'"),
    ],
)
def test_bytes_that_cannot_be_read(tmp_path, name, content, sentence):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=sentence):
        read_items(tmp_path / name)


NO_RUN = {name: text for name, text in TREC.items() if "run" not in name}


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        (BEIR | {"topics.train.tsv": "1\tone\n"}, r"looks like BEIR and TREC"),
        (
            NO_RUN | {"qrels.robust.tsv": "1 0 d1 1\n"},
            "are both the qrels of the split 'robust': keep one",
        ),
        (NO_RUN | {"qrels.robust.txt": "1 0 d1 0\n"}, "split robust: no query has a relevant item"),
        (NO_RUN, "split robust: no lists of candidates"),
        ({"topics.robust.tsv": "1\tx\n"}, "has 0 files of items .* there must be one"),
    ],
)
def test_folders_that_lack_something_or_have_too_much(tmp_path, files, sentence):
    with pytest.raises(InputError, match=sentence):
        read_labelled(write(tmp_path, files), split="robust", lists=True)


def test_which_part_of_a_folder_must_be_clear(tmp_path):
    write(tmp_path, NO_RUN | {"topics.dev.tsv": "9\tx\n", "topics.train.tsv": "8\ty\n"})
    with pytest.raises(InputError, match=r"no judgements \(qrels\) for the split 'train'"):
        ck.read_qrels(tmp_path, split="train")


RECORDS = [{"id": "d1", "title": "Oak", "text": "a tree"}, {"id": "d2", "text": "the sea"}]
JUDGED = [{"qid": 1, "docno": "d1", "label": 1.0}, {"qid": 1, "docno": "d2", "label": 0.0}]


def test_parquet_and_judgements_in_named_columns(tmp_path):
    for name, records in (("items", RECORDS), ("qrels", JUDGED)):
        parquet.write_table(Table.from_pylist(records), tmp_path / f"{name}.parquet")
    assert [*ck.read_items(tmp_path / "items.parquet").texts] == ["Oak\na tree", "the sea"]
    assert ck.read_queries(tmp_path / "items.parquet").ids == ("d1", "d2")
    write(tmp_path, {"q.jsonl": lines(*JUDGED), "q.csv": "QID,docno,label\n1,d1,1\n1,d2,0\n"})
    for name in ("qrels.parquet", "q.jsonl", "q.csv"):
        assert ck.read_qrels(tmp_path / name) == {"1": {"d1": 1, "d2": 0}}
    write(tmp_path, {"q.csv": "qid,docno,label\n1,d1,good\n"})
    with pytest.raises(InputError, match="line 2 is not a judgement"):
        ck.read_qrels(tmp_path / "q.csv")


PLAIN = st.text("abc XY.,", max_size=12)
NAMES = PLAIN.filter(str.strip)


@given(PLAIN, NAMES, PLAIN)
def test_marks_come_off_again(left, mention, right):
    text = marked_query(left, mention, right)
    assert unmarked(text).split() == f"{left} {mention} {right}".split()
    parts = re.fullmatch(r"(.*)\[Ms\](.*)\[Me\](.*)", text).groups()
    assert [part.strip() for part in parts] == [part.strip() for part in (left, mention, right)]
    item = ITEM_TEMPLATE.format(title=mention, text=right)
    assert unmarked(item).split() == f"{mention} {right}".split()
    assert item_as_query(item) == marked_query("", mention, right)
    assert item_as_query(right) == right
