"""Reading: properties of every reader (what each makes of its format: tests/golden)."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_data_values import SAMPLES, write

from crossknn.data.dataset import read_dataset
from crossknn.data.items import read_items
from crossknn.data.queries import ITEM_TEMPLATE, item_as_query, marked_query, unmarked
from crossknn.errors import InputError
from crossknn_train.reading import read_labelled

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
    write(tmp_path, NO_RUN | {"topics.dev.tsv": "9\tx\n", "topics.train.tsv": "8\ty\n"})
    with pytest.raises(InputError, match="no judgements qrels for the split 'train'"):
        read_dataset(tmp_path, split="train")


def test_what_does_not_fit_together_is_logged_and_kept(tmp_path, caplog):
    found = read_dataset(write(tmp_path, BEIR), split="train")
    assert len(found.findings) == 4
    for finding in found.findings:
        assert f"{tmp_path.name}: {finding}" in caplog.text


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
