"""Labelled corpora: every layout says the same, and every bad file is named with its line."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import jsonl

from crossknn.data.marks import item_as_query, marked_item, marked_query, unmarked
from crossknn.data.reading import read_labelled
from crossknn.errors import InputError

WORDS = ["the", "tall", "oak", "stands", "by", "the", "lake"]
TREES = [
    {"document_id": "d0", "title": "Oak", "text": " ".join(WORDS)},
    {"document_id": "d1", "title": "Elm (tree)", "text": "an elm"},
    {"document_id": "d2", "title": "Lake", "text": "water"},
]
FISH = [
    {"document_id": "f0", "title": "Eel", "text": "a long eel swam"},
    {"document_id": "f1", "title": "Cod", "text": "a cod"},
]


def processed(number, left, mention, right, label):
    return {
        "mention_id": f"m{number}",
        "context_left": left,
        "mention": mention,
        "context_right": right,
        "label_id": label,
    }


def published(number, domain, context, start, end, text, label):
    return {
        "mention_id": f"m{number}",
        "context_document_id": context,
        "label_document_id": label,
        "start_index": start,
        "end_index": end,
        "text": text,
        "corpus": domain,
    }


PROCESSED = {
    "train_worlds/trees": [
        processed(0, "the tall", "oak", "stands by the lake", 0),
        processed(1, "the tall oak stands by", "the lake", "", 2),
    ],
    "valid_worlds/fish": [processed(2, "a", "long eel", "swam", 0)],
}
PUBLISHED = {
    "train": [
        published(0, "trees", "d0", 2, 2, "oak", "d0"),
        published(1, "trees", "d0", 5, 6, "the lake", "d2"),
    ],
    "valid": [published(2, "fish", "f0", 1, 2, "long eel", "f0")],
}


def documents(folder):
    jsonl(folder / "documents" / "trees.json", TREES)
    jsonl(folder / "documents" / "fish.json", FISH)


def write(folder, layout, content=None):
    documents(folder)
    if layout == "processed":
        for name, lines in (content or PROCESSED).items():
            jsonl(folder / "processed" / f"{name}_mentions.jsonl", lines)
    else:
        for name, lines in (content or PUBLISHED).items():
            jsonl(folder / "mentions" / f"{name}.json", lines)
    return folder


@pytest.fixture
def beir(tmp_path):
    jsonl(tmp_path / "corpus.jsonl", [{"_id": f"d{i}", "text": f"text {i}"} for i in range(4)])
    jsonl(tmp_path / "queries.jsonl", [{"_id": f"q{i}", "text": f"query {i}"} for i in range(4)])
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "train.tsv").write_text(
        "query-id\tcorpus-id\tscore\nq2\td3\t1\nq0\td1\t2\nq0\td0\t0\nq0\td2\t1\nq1\td1\t0\n"
    )
    return tmp_path


def same(left, right):
    assert (left.name, left.items.ids, left.items.texts) == (
        right.name,
        right.items.ids,
        right.items.texts,
    )
    assert left.queries == right.queries
    assert [p.tolist() for p in left.positives] == [p.tolist() for p in right.positives]


# What the layouts say


def test_both_layouts_of_zeshel_say_the_same(tmp_path):
    first = write(tmp_path / "a", "processed")
    second = write(tmp_path / "b", "published")
    for split, name in (("train", "trees"), ("valid", "fish")):
        (left,), (right,) = read_labelled(first, split), read_labelled(second, split)
        same(left, right)
        assert left.name == name


def test_zeshel_by_hand(tmp_path):
    (trees,) = read_labelled(write(tmp_path, "processed"))
    assert trees.queries.ids == ("m0", "m1")
    assert trees.queries.texts == (
        "the tall [Ms] oak [Me] stands by the lake",
        "the tall oak stands by [Ms] the lake [Me]",
    )
    assert list(trees.items.ids) == ["d0", "d1", "d2"]
    assert trees.items.texts[1] == "Elm (tree) [ENT] an elm"
    assert trees.items.titles[1] == "Elm (tree)"
    assert trees.gold.tolist() == [0, 2]
    assert len(trees) == 2


def test_every_span_of_a_document_can_be_a_mention(tmp_path):
    """start_index to end_index, inclusive: the marks enclose those words and no word is lost."""
    spans = [(s, e) for s in range(len(WORDS)) for e in range(s, len(WORDS))]
    lines = [
        published(n, "trees", "d0", s, e, " ".join(WORDS[s : e + 1]), "d1")
        for n, (s, e) in enumerate(spans)
    ]
    (trees,) = read_labelled(write(tmp_path, "published", {"train": lines}))
    for (start, end), text in zip(spans, trees.queries.texts, strict=True):
        words = text.split()
        assert words.index("[Ms]") == start
        assert words[start + 1 : words.index("[Me]")] == WORDS[start : end + 1]
        assert unmarked(text).split() == WORDS


@pytest.mark.parametrize("layout", ["processed", "published"])
def test_domains_are_found_in_any_split(tmp_path, layout):
    found = read_labelled(write(tmp_path, layout), "train", ["fish", "trees"])
    assert {part.name: len(part) for part in found} == {"fish": 1, "trees": 2}
    (only,) = read_labelled(tmp_path, "train", ["fish"])
    same(only, read_labelled(tmp_path, "valid")[0])


def test_a_domain_that_nobody_asked_for_is_not_read(tmp_path):
    write(tmp_path, "published")
    (tmp_path / "documents" / "fish.json").unlink()
    assert [part.name for part in read_labelled(tmp_path, "train", ["trees"])] == ["trees"]


def test_val_is_another_name_of_valid(tmp_path):
    write(tmp_path, "published")
    (tmp_path / "mentions" / "valid.json").rename(tmp_path / "mentions" / "val.json")
    assert [part.name for part in read_labelled(tmp_path, "valid")] == ["fish"]


def test_beir_keeps_the_judged_queries_with_a_relevant_item(beir):
    (part,) = read_labelled(beir)
    assert part.name == beir.name
    assert part.queries.ids == ("q0", "q2")
    assert [p.tolist() for p in part.positives] == [[1, 2], [3]]
    assert part.gold.tolist() == [1, 3]


def test_take_and_sample(beir):
    (part,) = read_labelled(beir)
    taken = part.take(np.array([1]))
    assert (taken.queries.ids, taken.gold.tolist()) == (("q2",), [3])
    assert taken.items is part.items
    assert part.sample(None, 0) is part
    assert part.sample(2, 0) is part


def test_a_sample_depends_on_its_seed_and_keeps_the_order(tmp_path):
    lines = [processed(n, "", f"oak {n}", "", n % 3) for n in range(40)]
    (part,) = read_labelled(write(tmp_path, "processed", {"train_worlds/trees": lines}))
    order = {query: row for row, query in enumerate(part.queries.ids)}
    drawn = [part.sample(7, seed) for seed in (0, 0, 1)]
    same(drawn[0], drawn[1])
    assert drawn[0].queries.ids != drawn[2].queries.ids
    for one in drawn:
        rows = [order[query] for query in one.queries.ids]
        assert rows == sorted(set(rows))
        assert len(rows) == 7
        assert one.gold.tolist() == [row % 3 for row in rows]


# What is refused


BAD_PROCESSED = [
    ({"label_id": None}, "has no label"),
    ({"label_id": ...}, "has no label"),
    ({"label_id": 3}, "has the label 3, which is outside the 3 items of trees"),
    ({"label_id": -1}, "has the label -1, which is outside the 3 items"),
    ({"label_id": True}, "has the label True, which is outside the 3 items"),
    ({"label_id": 1.0}, "has the label 1.0, which is outside the 3 items"),
    ({"label_id": "d9"}, "there is no item with the id 'd9'"),
    ({"mention_id": "m0"}, "repeats the mention_id 'm0' of {path}, line 1"),
    ({"mention_id": ...}, "has no field 'mention_id'"),
    ({"mention": ...}, "has no field 'mention'"),
    ({"mention": "  "}, "has an empty mention"),
    ({"mention": ["oak"]}, "field 'mention' is a list, not text"),
    ({"context_left": ...}, "has no field 'context_left'"),
]
BAD_PUBLISHED = [
    ({"label_document_id": ...}, "has no label"),
    ({"label_document_id": None}, "has no label"),
    ({"label_document_id": "f0"}, "there is no item with the id 'f0'"),
    ({"mention_id": "m0"}, "repeats the mention_id 'm0' of {path}, line 1"),
    (
        {"text": "oak"},
        "the mention 'oak' is not in its sentence: words 5 to 6 of d0 are 'the lake'",
    ),
    ({"start_index": 6}, "the mention 'the lake' is not in its sentence: words 6 to 6 of d0"),
    ({"end_index": 7}, "is not in its sentence: words 5 to 7 of d0, which has 7 words"),
    ({"start_index": -2, "end_index": -1}, "is not in its sentence: words -2 to -1"),
    ({"start_index": 6, "end_index": 5}, "is not in its sentence: words 6 to 5"),
    ({"start_index": "5"}, "start_index is '5', not a whole number"),
    ({"end_index": 6.0}, "end_index is 6.0, not a whole number"),
    ({"end_index": ...}, "has no field 'end_index'"),
    ({"context_document_id": "d9"}, "the context document 'd9' is not in trees"),
    ({"corpus": ...}, "has no field 'corpus'"),
]


def changed(record, change):
    return {k: v for k, v in (record | change).items() if v is not ...}


@pytest.mark.parametrize(("change", "sentence"), BAD_PROCESSED)
def test_bad_lines_of_the_processed_layout(tmp_path, change, sentence):
    first, second = PROCESSED["train_worlds/trees"]
    lines = [first, changed(second, change)]
    write(tmp_path, "processed", {"train_worlds/trees": lines})
    refused(tmp_path, tmp_path / "processed" / "train_worlds" / "trees_mentions.jsonl", sentence)


@pytest.mark.parametrize(("change", "sentence"), BAD_PUBLISHED)
def test_bad_lines_of_the_published_layout(tmp_path, change, sentence):
    first, second = PUBLISHED["train"]
    write(tmp_path, "published", {"train": [first, changed(second, change)]})
    refused(tmp_path, tmp_path / "mentions" / "train.json", sentence)


def refused(folder, path, sentence, line=2):
    with pytest.raises(InputError) as error:
        read_labelled(folder)
    message = str(error.value)
    assert sentence.format(path=path) in message
    assert message.startswith(f"{path}, line {line}")
    assert "\n" not in message


def test_a_repeated_mention_is_named_by_both_lines_of_its_file(tmp_path):
    """The lines of other domains between the two count."""
    train = PUBLISHED["train"]
    lines = [train[0], PUBLISHED["valid"][0], train[1], train[0]]
    write(tmp_path, "published", {"train": lines})
    path = tmp_path / "mentions" / "train.json"
    refused(tmp_path, path, "repeats the mention_id 'm0' of {path}, line 1", line=4)


def test_a_mention_repeated_in_another_file(tmp_path):
    lines = [processed(0, "", "oak", "", 0)]
    write(tmp_path, "processed", {"train_worlds/trees": lines, "test_worlds/trees": lines})
    with pytest.raises(InputError, match=r"test_worlds.*repeats .*train_worlds.*, line 1"):
        read_labelled(tmp_path, "train", ["trees"])


def test_an_empty_mention_of_the_published_layout(tmp_path):
    jsonl(tmp_path / "documents" / "trees.json", [TREES[0] | {"text": "two  blanks"}])
    jsonl(tmp_path / "mentions" / "train.json", [published(0, "trees", "d0", 1, 1, "", "d0")])
    refused(tmp_path, tmp_path / "mentions" / "train.json", "has an empty mention", line=1)


@pytest.mark.parametrize("field", ["document_id", "title", "text"])
@pytest.mark.parametrize("layout", ["processed", "published"])
def test_a_document_without_a_field(tmp_path, layout, field):
    write(tmp_path, layout)
    path = tmp_path / "documents" / "trees.json"
    jsonl(path, [TREES[0], {k: v for k, v in TREES[1].items() if k != field}, TREES[2]])
    refused(tmp_path, path, f"has no field '{field}'")


@pytest.mark.parametrize("layout", ["processed", "published"])
def test_documents_that_repeat_an_id_or_are_none(tmp_path, layout):
    write(tmp_path, layout)
    path = tmp_path / "documents" / "trees.json"
    jsonl(path, [TREES[0], TREES[0]])
    refused(tmp_path, path, "repeats the id 'd0' of line 1")
    path.write_text("")
    with pytest.raises(InputError, match=r"holds no items|is not in trees"):
        read_labelled(tmp_path)


@pytest.mark.parametrize("layout", ["processed", "published"])
def test_unknown_splits_and_domains_are_named(tmp_path, layout):
    write(tmp_path, layout)
    with pytest.raises(InputError, match=r"no split 'dev' .known: test, train, valid"):
        read_labelled(tmp_path, "dev")
    with pytest.raises(InputError, match="no mentions in the split test"):
        read_labelled(tmp_path, "test")
    with pytest.raises(InputError, match=r"no mentions of 'tree' .did you mean trees"):
        read_labelled(tmp_path, "train", ["trees", "tree"])


def test_there_is_no_folder(tmp_path):
    with pytest.raises(InputError, match="there is no file or folder"):
        read_labelled(tmp_path / "absent")


@pytest.mark.parametrize("layout", ["processed", "published"])
def test_mentions_without_documents(tmp_path, layout):
    write(tmp_path, layout)
    (tmp_path / "documents" / "trees.json").unlink()
    with pytest.raises(InputError, match=r"mentions of trees but no documents/trees\.json"):
        read_labelled(tmp_path)


HEADER = "query-id\tcorpus-id\tscore\n"


@pytest.mark.parametrize(
    ("judged", "place", "sentence"),
    [
        ("q0\td1\t1\nq1\td9\t1\n", "line 3", "there is no item with the id 'd9'"),
        ("q0\td1\t1\nq9\td1\t1\n", "line 3", "the query 'q9' is not among the queries"),
        ("q9\td1\t1\n", "", "judges none of the queries in"),
        ("q0\td1\t1\nq0\td1\t2\n", "line 3", "a second time, with another grade"),
        ("q0\td1\n", "line 2", "is not a judgement"),
        ("q0\td1\t0\n", "", "no query has a relevant item"),
        ("", "", "holds no judgements"),
    ],
)
def test_bad_judgements(beir, judged, place, sentence):
    path = beir / "qrels" / "train.tsv"
    path.write_text(HEADER + judged)
    with pytest.raises(InputError) as error:
        read_labelled(beir)
    assert sentence in str(error.value)
    assert str(error.value).startswith(f"{path}, {place}" if place else str(path))


def test_a_beir_folder_has_splits_and_no_domains(beir):
    with pytest.raises(InputError, match=r"no judgements qrels/tran\.tsv .did you mean train"):
        read_labelled(beir, "tran")
    with pytest.raises(InputError, match="a BEIR folder, which has no domains"):
        read_labelled(beir, domains=["trees"])


# Marks

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
    assert unmarked(marked_item(mention, right)).split() == f"{mention} {right}".split()


@given(NAMES, PLAIN)
def test_an_item_as_a_query_marks_its_title(title, description):
    item = marked_item(title, description)
    assert item_as_query(item) == marked_query("", title, description)
    assert unmarked(item_as_query(item)) == unmarked(item)


def test_marks_by_hand():
    assert marked_query("", "oak", "") == "[Ms] oak [Me]"
    assert item_as_query("Oak [ENT] a tree") == "[Ms] Oak [Me] a tree"
    assert item_as_query("Oak [ENT]") == "[Ms] Oak [Me]"
    assert item_as_query("plain text") == "plain text"
    assert unmarked("a [Ms]oak[Me] b") == "a oak b"
    with pytest.raises(InputError, match="the mention is empty"):
        marked_query("left", " ", "right")


def test_what_is_no_json_is_named(tmp_path):
    write(tmp_path, "processed")
    path = tmp_path / "processed" / "train_worlds" / "trees_mentions.jsonl"
    path.write_text(json.dumps(PROCESSED["train_worlds/trees"][0]) + "\n{\n")
    refused(tmp_path, path, "is not valid JSON")


@pytest.mark.parametrize("layout", ["processed", "published"])
def test_a_misspelled_domain_alone_is_told_which_there_are(tmp_path, layout):
    write(tmp_path, layout)
    with pytest.raises(InputError, match=r"no mentions of 'tree' .did you mean trees"):
        read_labelled(tmp_path, "train", ["tree"])
