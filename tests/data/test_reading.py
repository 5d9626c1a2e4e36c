"""Reading: properties of every reader (what each makes of its format: tests/golden)."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_data_values import AIDA, BEIR, BLINK, PROCESSED, WNED, annotation, lines, published
from test_data_values import link as mention
from test_data_values import write as write_sample

from crossknn.data.marks import item_as_query, marked_item, marked_query, unmarked
from crossknn.data.queries import QuerySet
from crossknn.data.reading import (
    FORMATS,
    open_folder,
    read_dataset,
    read_items,
    read_labelled,
    read_qrels,
    read_queries,
)
from crossknn.errors import InputError


def write(folder, files):
    return write_sample(folder, files)


# Files of items

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


def test_all_ways_to_give_the_same_items_agree(tmp_path):
    records = [{"id": str(i), "title": f"t{i}", "text": f"words, {i}"} for i in range(4)]
    rows = [[r["id"], r["title"], r["text"]] for r in records]
    quoted = "".join(",".join(f'"{field}"' for field in row) + "\r\n" for row in rows)
    files = {
        "beir/corpus.jsonl": lines(*records),
        "c.jsonl": lines(*records),
        "c.jsonl.gz": lines(*records),
        "c.tsv": "id\ttitle\ttext\n" + "".join("\t".join(row) + "\n" for row in rows),
        "c.csv": "\ufeffid,title,text\r\n" + quoted,
    }
    write(tmp_path, files)
    for source in (records, str(tmp_path / "beir"), *(tmp_path / name for name in files)):
        items = read_items(source)
        assert list(items.ids) == [r["id"] for r in records]
        assert list(items.texts) == [f"{r['title']}\n{r['text']}" for r in records]


def test_csv_fields_may_be_long_and_items_are_found_by_id(tmp_path):
    long = "word " * 60_000
    items = read_items(
        write(tmp_path, {"c.csv": f'id,text\n1,"two\nlines"\n2,"{long}"\n'}) / "c.csv"
    )
    assert list(items.texts) == ["two\nlines", long.strip()]
    assert (items.position("2"), items.positions(["2", "1"]).tolist()) == (1, [1, 0])
    assert [item.id for item in items] == ["1", "2"]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        (
            "latin.jsonl",
            b'{"id": 1, "text": "x"}\n{"t": "\xe9"}\n',
            "line 2 is not UTF-8 .byte 30 ",
        ),
        ("zipped.txt.gz", b"not gzip", "cannot be read"),
        ("corpus.parquet", b"x", "unknown file type '.parquet'"),
        ("utf16.jsonl", "{}".encode("utf-16"), "line 1 is not UTF-8"),
    ],
)
def test_bytes_that_cannot_be_read(tmp_path, name, content, sentence):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=sentence):
        read_items(tmp_path / name)


def test_half_a_surrogate_pair_is_replaced_with_a_warning(caplog):
    assert list(read_items(["a \ud800 b"]).texts) == ["a \ufffd b"]
    assert "half a surrogate pair" in caplog.text


# Folders


def test_the_format_is_seen_or_said(tmp_path):
    assert list(FORMATS) == [
        "beir",
        "zeshel",
        "trec",
        "msmarco",
        "dstc7",
        "aida",
        "wned",
        "blink",
        "irds",
    ]
    assert open_folder(write(tmp_path / "beir", BEIR)).format == "beir"
    write(tmp_path / "beir", {"topics.tsv": "1\tone\n"})
    with pytest.raises(InputError, match=r"looks like beir and trec: say which .format="):
        read_dataset(tmp_path / "beir")
    assert open_folder(tmp_path / "beir", format="trec").format == "trec"
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="another sign of a known format"):
        read_dataset(tmp_path / "empty")


def test_what_does_not_fit_together_is_logged_and_kept(tmp_path, caplog):
    found = read_dataset(write(tmp_path, BEIR), split="train")
    assert len(found.findings) == 4
    for finding in found.findings:
        assert f"{tmp_path.name}: {finding}" in caplog.text


@pytest.mark.parametrize("files", [AIDA, {k: v for k, v in WNED.items() if "Raw" not in k}])
def test_mentions_without_their_texts_or_pages(tmp_path, files):
    write(tmp_path, {k: v for k, v in files.items() if "entity" not in k})
    format = "aida" if files is AIDA else "wned"
    with pytest.raises(InputError, match=r"has 0 lists of entities|no XML beside a folder RawText"):
        read_dataset(tmp_path, format=format)


def test_the_query_and_judgement_readers_take_a_folder(tmp_path):
    write(tmp_path, PROCESSED)
    with pytest.raises(InputError, match="has the domains fish, trees: name one"):
        read_items(tmp_path)
    assert read_queries(tmp_path, split="valid").ids == ("m2",)
    assert read_qrels(tmp_path, split="valid") == {"m2": {"f0": 1}}
    assert read_queries(["one"]).batch().texts == ("one",)


WORDS = ["the", "tall", "oak", "stands", "by", "the", "lake"]


def test_every_span_of_a_document_can_be_a_mention(tmp_path):
    """start_index to end_index, inclusive: the marks enclose those words and no word is lost."""
    spans = [(s, e) for s in range(len(WORDS)) for e in range(s, len(WORDS))]
    mentions = [
        published(n, "trees", "d0", (s, e), " ".join(WORDS[s : e + 1]), "d0")
        for n, (s, e) in enumerate(spans)
    ]
    document = {"document_id": "d0", "title": "Oak", "text": " ".join(WORDS)}
    write(
        tmp_path, {"documents/trees.json": lines(document), "mentions/train.json": lines(*mentions)}
    )
    (trees,) = read_labelled(tmp_path)
    for (start, end), text in zip(spans, trees.queries.texts, strict=True):
        words = text.split()
        assert words.index("[Ms]") == start
        assert words[start + 1 : words.index("[Me]")] == WORDS[start : end + 1]
        assert unmarked(text).split() == WORDS


def wned(folder, text, *annotations):
    xml = f'<a>\n<document docName="lakes.txt">\n{"".join(annotations)}</document>\n</a>\n'
    return write(folder, WNED | {"msnbc.xml": xml, "RawText/lakes.txt": text})


@pytest.mark.parametrize("shift", [-90, -3, 1, 40, 100])
def test_a_mention_is_looked_for_around_its_offset(tmp_path, shift):
    text = "x" * 200 + " Como " + "x" * 200
    wned(tmp_path, text, annotation("Como", "Lake Como", 201 + shift))
    assert read_dataset(tmp_path).queries.ids == ("lakes.txt:201-205",)


@pytest.mark.parametrize(("offset", "start"), [(7, 6), (12, 12), (0, 0)])
def test_the_nearest_mention_is_meant(tmp_path, offset, start):
    wned(tmp_path, "Como, Como, Como", annotation("Como", "Lake Como", offset))
    assert read_dataset(tmp_path).queries.ids == (f"lakes.txt:{start}-{start + 4}",)


@pytest.mark.parametrize("file", ["msnbc.xml", "RawText/lakes.txt"])
def test_annotations_and_texts_of_another_encoding(tmp_path, file):
    write(tmp_path, WNED)
    (tmp_path / file).write_bytes("Am \xe4ltesten See".encode("latin-1"))
    with pytest.raises(InputError, match=r"line 1 is not UTF-8 \(byte 3 of the file\)"):
        read_dataset(tmp_path)


def test_links_to_pages_that_are_not_there_are_left_out_of_training(tmp_path, caplog):
    known, gone = mention("a:0", "oak", "11"), mention("a:1", "Garda", "13")
    write(tmp_path, BLINK | {"msnbc_questions.jsonl": lines(known, gone)})
    with caplog.at_level(logging.WARNING):
        [found] = read_labelled(tmp_path, "msnbc_questions")
    assert (found.queries.ids, [p.tolist() for p in found.positives]) == (("a:0",), [[0]])
    assert "1 relevant items are not there and are left out" in caplog.text
    write(tmp_path, {"msnbc_questions.jsonl": lines(gone)})
    with pytest.raises(InputError, match="no query has a relevant item"):
        read_labelled(tmp_path, "msnbc_questions")


# ir_datasets


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
    for source, split in (
        (f"{registered}/test", None),
        (f"{registered}/test", "test"),
        (registered, "test"),
    ):
        found = read_dataset(source, split=split)
        assert found.queries == read_queries(source, split=split) == queries
        assert list(found.items.texts) == ["an oak", "an elm"]
        assert found.qrels == read_qrels(source, split=split) == {"1": {"d1": 1}, "2": {"d9": 1}}
        assert found.candidates is None
        assert [finding.count for finding in found.findings] == [1]
    assert len(read_items(f"{registered}/test")) == 2
    with pytest.raises(InputError, match="ir_datasets knows no data set 'no/such'"):
        read_dataset("irds:no/such")


def test_without_ir_datasets_the_extra_is_named():
    try:
        import ir_datasets  # noqa: F401
    except ImportError:
        with pytest.raises(ImportError, match=r"reading irds:x/test .* 'crossknn\[irds\]'"):
            read_dataset("irds:x/test")
    else:
        pytest.skip("ir_datasets is installed")


# Labelled data and marks


def test_a_sample_depends_on_its_seed_and_keeps_the_order(tmp_path):
    mentions = [
        json.dumps({"mention_id": f"m{n}", "context_left": "", "mention": f"oak {n}", "context_right": "", "label_id": n % 3})
        for n in range(40)
    ]  # fmt: skip
    name = "processed/train_worlds/trees_mentions.jsonl"
    (part,) = read_labelled(write(tmp_path, PROCESSED | {name: "\n".join(mentions)}))
    drawn = [part.sample(7, seed) for seed in (0, 0, 1)]
    assert drawn[0].queries == drawn[1].queries != drawn[2].queries
    for one in drawn:
        rows = [part.queries.ids.index(query) for query in one.queries.ids]
        assert len(rows) == 7
        assert rows == sorted(set(rows))
        assert one.gold.tolist() == [row % 3 for row in rows]
    assert part.sample(None, 0) is part.sample(40, 0) is part
    assert part.take(np.array([1])).without(["m1"]).queries.ids == ()


PLAIN = st.text("abc XY.,", max_size=12)
NAMES = PLAIN.filter(str.strip)


@given(PLAIN, NAMES, PLAIN)
def test_marks_come_off_again(left, mention, right):
    text = marked_query(left, mention, right)
    assert unmarked(text).split() == f"{left} {mention} {right}".split()
    before, _, rest = text.partition("[Ms]")
    inside, _, after = rest.partition("[Me]")
    assert [part.strip() for part in (before, inside, after)] == [
        part.strip() for part in (left, mention, right)
    ]
    item = marked_item(mention, right)
    assert unmarked(item).split() == f"{mention} {right}".split()
    assert item_as_query(item) == marked_query("", mention, right)


def test_marks_by_hand():
    assert marked_query("", "oak", "") == "[Ms] oak [Me]"
    assert item_as_query("Oak [ENT]") == "[Ms] Oak [Me]"
    assert item_as_query("plain text") == "plain text"
    assert unmarked("a [Ms]oak[Me] b") == "a oak b"
    with pytest.raises(InputError, match="the mention is empty"):
        marked_query("left", " ", "right")
