"""Reading: properties of every reader (what each makes of its format: tests/golden)."""

from __future__ import annotations

import json
import re
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_data_values import SAMPLES, write

from crossknn.data.queries import ITEM_TEMPLATE, QuerySet, item_as_query, marked_query, unmarked
from crossknn.data.reading import read_dataset, read_items, read_labelled, read_qrels, read_queries
from crossknn.errors import InputError

BEIR, PROCESSED, TREC = (SAMPLES[name] for name in ("beir", "processed", "trec"))


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
        ("corpus.parquet", b"x", "unknown file type '.parquet'"),
    ],
)
def test_bytes_that_cannot_be_read(tmp_path, name, content, sentence):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=sentence):
        read_items(tmp_path / name)


def test_the_format_is_seen_or_said(tmp_path):
    folder = write(tmp_path, BEIR | {"topics.train.tsv": "1\tone\n"})
    with pytest.raises(InputError, match=r"looks like beir and trec: say which .format="):
        read_dataset(folder)
    assert len(read_dataset(folder, format="beir", split="train").queries) > 1


NO_RUN = {name: text for name, text in TREC.items() if "run" not in name}


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        (NO_RUN | {"qrels.robust.tsv": "1 0 d1 1\n"}, "qrels.robust.* hold the same: keep one"),
        (NO_RUN | {"qrels.robust.txt": "1 0 d1 0\n"}, "split robust: no query has a relevant item"),
        (NO_RUN, "split robust: no lists of candidates"),
        ({"topics.robust.tsv": "1\tx\n"}, "has 0 files of items .* there must be one"),
    ],
)
def test_folders_that_lack_something_or_have_too_much(tmp_path, files, sentence):
    with pytest.raises(InputError, match=sentence):
        read_labelled(write(tmp_path, files), split="robust", lists=True)


def test_which_part_of_a_folder_must_be_clear(tmp_path):
    fish = PROCESSED["processed/valid_worlds/fish_mentions.jsonl"]
    write(tmp_path / "a", PROCESSED | {"processed/train_worlds/fish_mentions.jsonl": fish})
    with pytest.raises(InputError, match="has the domains fish, trees: name one"):
        read_dataset(tmp_path / "a", split="train")
    write(tmp_path / "b", NO_RUN | {"topics.dev.tsv": "9\tx\n", "topics.train.tsv": "8\ty\n"})
    with pytest.raises(InputError, match="no judgements qrels for the split 'train'"):
        read_dataset(tmp_path / "b", split="train")


def test_what_does_not_fit_together_is_logged_and_kept(tmp_path, caplog):
    found = read_dataset(write(tmp_path, BEIR), split="train")
    assert len(found.findings) == 4
    for finding in found.findings:
        assert f"{tmp_path.name}: {finding}" in caplog.text


def test_the_readers_of_items_queries_and_judgements_take_a_folder(tmp_path):
    write(tmp_path, {name: text for name, text in PROCESSED.items() if "trees" not in name})
    assert list(read_items(tmp_path).ids) == ["f0", "f1"]
    assert read_queries(tmp_path, split="valid").ids == ("m2",)
    assert read_qrels(tmp_path, split="valid") == {"m2": {"f0": 1}}


@pytest.fixture
def registered(tmp_path, monkeypatch):
    monkeypatch.setenv("IR_DATASETS_HOME", str(tmp_path / "home"))
    ir_datasets = pytest.importorskip("ir_datasets")
    files = {"docs.tsv": "d1\tan oak\nd2\tan elm\n", "q.tsv": "1\toaks\n2\ttrees\n"}
    write(tmp_path, files | {"qrels.txt": "1 0 d1 1\n2 0 d9 1\n"})
    paths = [str(tmp_path / name) for name in ("docs.tsv", "q.tsv", "qrels.txt")]
    ir_datasets.registry.register("crossknn-trees/test", ir_datasets.create_dataset(*paths))
    yield "irds:crossknn-trees"
    del ir_datasets.registry._registered["crossknn-trees/test"]


def test_a_data_set_of_ir_datasets(registered):
    queries = QuerySet(("1", "2"), ("oaks", "trees"))
    for source, split in ((f"{registered}/test", None), (registered, "test")):
        found = read_dataset(source, split=split)
        assert found.queries == read_queries(source, split=split) == queries
        assert list(found.items.texts) == ["an oak", "an elm"]
        assert found.qrels == read_qrels(source, split=split) == {"1": {"d1": 1}, "2": {"d9": 1}}
        assert found.candidates is None
        assert found.findings == ("judged items that are missing: 1, the first 'd9'",)
    assert len(read_items(f"{registered}/test")) == 2
    with pytest.raises(InputError, match="ir_datasets has no data set 'no/such'"):
        read_dataset("irds:no/such")


def test_without_ir_datasets_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ir_datasets", None)
    with pytest.raises(ImportError, match=r"reading irds:x/test .* 'crossknn\[irds\]'"):
        read_dataset("irds:x/test")


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


def test_marks_by_hand():
    assert item_as_query("Oak [ENT]") == "[Ms] Oak [Me]"
    assert item_as_query("plain text") == "plain text"
    with pytest.raises(InputError, match="the mention is empty"):
        marked_query("left", " ", "right")
