"""Links to Wikipedia pages beside AIDA: WNED's XML with raw texts, BLINK's JSON lines, and what of
them is not in the list of pages."""

from __future__ import annotations

import json
import logging

import pytest

from crossknn.data.reading import open_folder, read_dataset, read_labelled
from crossknn.errors import InputError

PAGES = [(11, "Holm oak"), (12, "Lake Como"), (14, "A&B Trees")]
ENTITIES = "".join(
    json.dumps({"text": f" a {title}", "idx": f"x?curid={n}", "title": title, "entity": title})
    + "\n"
    for n, title in PAGES
)
TEXT = "The holm\noak stands  by Como,\nnot Garda & A&amp;B.\n"
READ = "The holm oak stands by Como, not Garda & A&B."
"""What a reader sees of the text."""


def annotation(mention, page, offset, length=None):
    length = len(mention) if length is None else length
    return (
        f"<annotation>\n<mention>{mention}</mention>\n<wikiName>{page}</wikiName>\n"
        f"<offset>{offset}</offset>\n<length>{length}</length>\n</annotation>\n"
    )


ANNOTATIONS = [
    annotation("holm oak", "Holm oak", 4),
    annotation("Como", "Lake_Como", 24),
    annotation("Garda", "NIL", 34),
    annotation("A&amp;B", "A&amp;B Trees", 42),
]


def documents(*annotations, name="lakes.txt"):
    return f'<document docName="{name}">\n{"".join(annotations)}</document>\n'


def xml(*found):
    start = '<?xml version="1.0" encoding="UTF-8" standalone="no"?>\n'
    return f"{start}<msnbc.entityAnnotation>\n{''.join(found)}</msnbc.entityAnnotation>\n"


def write(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def wned(folder, annotations=None, text=TEXT):
    given = xml(documents(*ANNOTATIONS)) if annotations is None else annotations
    return write(folder, {"msnbc.xml": given, "RawText/lakes.txt": text, "entity.jsonl": ENTITIES})


def refused(read, *parts):
    with pytest.raises(InputError) as error:
        read()
    assert "\n" not in str(error.value)
    for part in parts:
        assert part in str(error.value)


def marked(mention):
    """What is read of the text, with a mention marked."""
    left, right = (part.strip() for part in READ.split(mention))
    return f"{left} [Ms] {mention} [Me] {right}"


def test_wned(tmp_path):
    assert open_folder(wned(tmp_path)).format == "wned"
    found = read_dataset(tmp_path)
    assert found.queries.ids == (
        "lakes.txt:4-12",
        "lakes.txt:24-28",
        "lakes.txt:34-39",
        "lakes.txt:42-45",
    )
    assert found.queries.texts == tuple(
        marked(mention) for mention in ("holm oak", "Como", "Garda", "A&B")
    )
    assert found.qrels == {
        "lakes.txt:4-12": {"11": 1},
        "lakes.txt:24-28": {"12": 1},
        "lakes.txt:42-45": {"14": 1},
    }
    assert list(found.items.ids) == ["11", "12", "14"]
    assert found.items.texts[1] == "Lake Como [ENT] a Lake Como"
    assert [str(f) for f in found.findings] == ["1 query has no judgement: 'lakes.txt:34-39'"]


def test_a_split_is_a_data_set(tmp_path):
    part = xml(documents(annotation("Como", "Lake Garda", 24)))
    write(tmp_path, {"entity.jsonl": ENTITIES})
    for name in ("msnbc", "clueweb"):
        write(tmp_path / name, {f"{name}.xml": part, "RawText/lakes.txt": TEXT})
    found = read_dataset(tmp_path, split="clueweb")
    assert found.qrels == {"lakes.txt:24-28": {"Lake Garda": 1}}
    assert "1 judgement names an item that is not there: 'Lake Garda'" in map(str, found.findings)
    refused(lambda: read_dataset(tmp_path), "has the splits clueweb, msnbc: name one")
    refused(lambda: read_dataset(tmp_path, split="clubweb"), "did you mean clueweb?")


@pytest.mark.parametrize("shift", [-90, -3, 1, 40, 100])
def test_a_mention_is_looked_for_around_its_offset(tmp_path, shift):
    text = "x" * 200 + " Como " + "x" * 200
    wned(tmp_path, xml(documents(annotation("Como", "Lake Como", 201 + shift))), text)
    assert read_dataset(tmp_path).queries.ids == ("lakes.txt:201-205",)


def test_the_nearest_mention_is_meant(tmp_path):
    text = "Como, Como, Como"
    wned(tmp_path, xml(documents(annotation("Como", "Lake Como", 7))), text)
    assert read_dataset(tmp_path).queries.ids == ("lakes.txt:6-10",)
    wned(tmp_path, xml(documents(annotation("Como", "Lake Como", 12))), text)
    assert read_dataset(tmp_path).queries.ids == ("lakes.txt:12-16",)


def test_an_annotation_may_come_twice_but_not_with_another_page(tmp_path):
    wned(tmp_path, xml(documents(ANNOTATIONS[1], ANNOTATIONS[1])))
    assert len(read_dataset(tmp_path).queries) == 1
    wned(tmp_path, xml(documents(ANNOTATIONS[1], annotation("Como", "Como", 24))))
    refused(
        lambda: read_dataset(tmp_path),
        "msnbc.xml, document lakes.txt, annotation 2 links lakes.txt:24-28 a second time",
    )


ONE = ANNOTATIONS[1]
BOMB = '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]>\n'


@pytest.mark.parametrize(
    ("annotations", "parts"),
    [
        (xml(documents(annotation("Como", "Lake Como", 900))), ["document lakes.txt, annotation 1: the mention 'Como' is not in its text: RawText/lakes.txt has 47 characters, and 900 to 904 are ''"]),
        (xml(documents(annotation("Iseo", "Lake Iseo", 24))), ["the mention 'Iseo' is not in its text: ", ", and 24 to 28 are 'Como'"]),
        (xml(documents(ONE, name="rivers.txt")), ["msnbc.xml, document 1: there is no", "rivers.txt"]),
        (xml(documents(ONE, name="../msnbc.xml")), ["document 1 has the docName '../msnbc.xml', where a file in RawText is expected"]),
        (xml(documents(ONE, name="..")), ["has the docName '..'"]),
        (xml(documents(ONE, name="x" * 300)), ["document 1: there is no"]),
        (xml(documents(ONE)).replace("docName", "name"), ["document 1 has the docName ''"]),
        (xml(documents(ONE.replace("offset", "start"))), ["annotation 1 has no offset"]),
        (xml(documents(ONE.replace("wikiName", "page"))), ["annotation 1 has no wikiName"]),
        (xml(documents(annotation("", "Lake Como", 1))), ["annotation 1 has no mention"]),
        (xml(documents(annotation("Como", "Lake Como", -3))), ["offset is '-3', not a whole number"]),
        (xml(documents(annotation("Como", "Lake Como", "9" * 5000))), ["not a whole number of 0 or more"]),
        (xml(documents(annotation("Como", "Lake Como", 24, "4.0"))), ["length is '4.0', not a whole number"]),
        (xml(documents(ONE))[:-30], ["msnbc.xml, line 10 is not well-formed XML: "]),
        (xml(), ["msnbc.xml has no annotated mentions"]),
        (xml(documents()), ["msnbc.xml has no annotated mentions"]),
        (BOMB + xml(documents(ONE)).replace("Lake_Como", "&b;").partition("\n")[2], ["msnbc.xml, line 1 declares a document type: remove it"]),
        (xml(documents(ONE)).replace("Lake_Como", "&b;"), ["line 6 is not well-formed XML: undefined entity"]),
        (xml(documents(ONE)).encode("utf-16"), ["msnbc.xml, line 1 is not UTF-8"]),
        (xml(documents(ONE)).replace("Lake", "L\xe4ke").encode("latin-1"), ["msnbc.xml, line 6 is not UTF-8"]),
    ],
)  # fmt: skip
def test_damaged_annotations(tmp_path, annotations, parts):
    refused(lambda: read_dataset(wned(tmp_path, annotations)), *parts)


def test_a_raw_text_of_another_encoding(tmp_path):
    wned(tmp_path, text="Am \xe4ltesten See".encode("latin-1"))
    refused(lambda: read_dataset(tmp_path), "lakes.txt, line 1 is not UTF-8 (byte 3 of the file)")


def test_a_folder_without_raw_texts_or_pages(tmp_path):
    write(tmp_path, {"msnbc.xml": xml(documents(ONE))})
    refused(lambda: read_dataset(tmp_path), "without corpus.jsonl")
    refused(lambda: read_dataset(tmp_path, format="wned"), "has no XML beside a folder RawText")
    write(tmp_path, {"RawText/lakes.txt": TEXT})
    refused(lambda: read_dataset(tmp_path), "has 0 lists of entities (entity.jsonl)")


# BLINK


def line(query, mention, page=None, **more):
    record = {"context_left": "by", "mention": mention, "context_right": ", not", "query_id": query}
    if page is not None:
        record |= {"label_id": page, "Wikipedia_ID": page, "Wikipedia_title": "Lake Como"}
    return json.dumps(record | more) + "\n"


def blink(folder, *lines):
    return write(folder, {"entity.jsonl": ENTITIES, "msnbc_questions.jsonl": "".join(lines)})


def test_blink(tmp_path):
    blink(
        tmp_path,
        line("a:0", "oak", "11"),
        line("a:1", "Como", 12),
        line("a:2", "Como", -1),
        line("a:3", "Garda", None, label_id=None),
        line("a:4", "trees", label_title="A&B_Trees"),
        line("a:5", "Garda", "13"),
    )
    assert open_folder(tmp_path).format == "blink"
    found = read_dataset(tmp_path)
    assert found.queries.ids == tuple(f"a:{n}" for n in range(6))
    assert found.queries.texts[1] == "by [Ms] Como [Me] , not"
    assert found.qrels == {
        "a:0": {"11": 1},
        "a:1": {"12": 1},
        "a:2": {"12": 1},  # by its title
        "a:4": {"14": 1},
        "a:5": {"13": 1},
    }
    assert [str(finding) for finding in found.findings] == [
        "1 query has no judgement: 'a:3'",
        "1 judgement names an item that is not there: '13'",
    ]


def test_the_splits_of_blink_are_its_files(tmp_path):
    blink(tmp_path, line("a:0", "Como", "12"))
    write(tmp_path, {"AIDA-YAGO2_train.jsonl": line("b:0", "oak", "11")})
    assert read_dataset(tmp_path, split="AIDA-YAGO2_train").queries.ids == ("b:0",)
    refused(lambda: read_dataset(tmp_path), "has the splits AIDA-YAGO2_train, msnbc_questions")


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (line("a:0", "Como"), ["line 1 has no field 'label_id'"]),
        (line("a:0", "Como", "Lake Como"), ["line 1: Wikipedia_ID is 'Lake Como', not a Wikipedia id"]),
        (line("a:0", "Como", [12]), ["line 1: field 'Wikipedia_ID' is a list, not text"]),
        (line("a:0", " ", "12"), ["line 1 has an empty mention"]),
        (line("a:0", "Como", "12") * 2, ["line 2 repeats the id 'a:0' of line 1"]),
        ("{", ["line 1 is not valid JSON"]),
        ("", ["msnbc_questions.jsonl holds no queries"]),
    ],
)  # fmt: skip
def test_damaged_mentions(tmp_path, content, parts):
    refused(lambda: read_dataset(blink(tmp_path, content)), "msnbc_questions.jsonl", *parts)


# Training


def test_links_to_pages_that_are_not_there_are_left_out_of_training(tmp_path, caplog):
    blink(tmp_path, line("a:0", "oak", "11"), line("a:1", "Garda", "13"))
    with caplog.at_level(logging.WARNING):
        [found] = read_labelled(tmp_path, "msnbc_questions")
    assert found.queries.ids == ("a:0",)
    assert [p.tolist() for p in found.positives] == [[0]]
    assert "1 relevant items are not there and are left out" in caplog.text
    blink(tmp_path, line("a:1", "Garda", "13"))
    refused(lambda: read_labelled(tmp_path, "msnbc_questions"), "no query has a relevant item")
