"""Published formats: small samples with their field names, and damaged ones."""

import json

import pytest

from crossknn.data.queries import QuerySet, read_run
from crossknn.data.reading import read_dataset, read_items, read_labelled, read_qrels, read_queries
from crossknn.errors import InputError

XML = """<?xml version="1.0" encoding="UTF-8"?>
<topics task="COVIDSearch 2020">
<topic number="1">
<query>origin of
  oaks</query>
<question>where do oaks &amp; elms come from</question>
</topic>
<topic number="2"><query>tall trees</query></topic>
</topics>
"""
OLD = """
<top>
<num> Number: 1
<title> origin of
oaks

<desc> Description:
Where do oaks & elms come from?
</top>

<top>
<num> Number: 2
<title> tall trees </title>
</top>
"""
QUERIES = QuerySet(("1", "2"), ("origin of oaks", "tall trees"))
RUN = {"1": [("d1", 2.0), ("d2", 1.0)], "2": [("d2", 3.0)]}


def write(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = content if isinstance(content, str) else json.dumps(content)
        path.write_text(text, encoding="utf-8")
    return folder


def refused(read, *parts):
    with pytest.raises(InputError) as error:
        read()
    message = str(error.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


# TREC

TREC = {
    "collection.tsv": "d1\tan oak\nd2\tan elm\n",
    "topics.robust.xml": XML,
    "qrels.robust.txt": "1 0 d1 1\n2 0 d2 2\n",
    "run.robust.txt": "1 Q0 d1 1 2.0 bm25\n1 Q0 d2 2 1.0 bm25\n2 Q0 d2 1 3.0 bm25\n",
}


@pytest.mark.parametrize(
    ("name", "topics"),
    [("xml", XML), ("txt", OLD), ("tsv", "1\torigin of oaks\n2\ttall trees\n")],
)
def test_trec(tmp_path, name, topics):
    files = {k: v for k, v in TREC.items() if not k.startswith("topics")}
    write(tmp_path, files | {f"topics.robust.{name}": topics})
    found = read_dataset(tmp_path)
    assert found.queries == QUERIES
    assert list(found.items.ids) == ["d1", "d2"]
    assert found.qrels == {"1": {"d1": 1}, "2": {"d2": 2}}
    assert found.candidates == RUN
    assert found.findings == ()
    assert read_queries(tmp_path / f"topics.robust.{name}") == QUERIES
    assert read_queries(tmp_path) == QUERIES
    assert read_qrels(tmp_path) == found.qrels
    assert list(read_items(tmp_path).texts) == ["an oak", "an elm"]


def test_topics_whose_text_stands_alone_and_other_endings(tmp_path):
    write(tmp_path, {"topics.1-2": '<topics><topic number="7">a tall oak</topic></topics>'})
    assert read_queries(tmp_path / "topics.1-2") == QuerySet(("7",), ("a tall oak",))


def test_files_of_other_names_belong_together_if_they_are_alone(tmp_path):
    files = {name.replace("robust", name[:1]): text for name, text in TREC.items()}
    found = read_dataset(write(tmp_path, files))
    assert (found.queries, found.candidates) == (QUERIES, RUN)


def test_trec_splits_are_matched_by_name(tmp_path):
    other = {"topics.dev.tsv": "9\tbirds\n", "qrels.dev.txt": "9 0 d1 1\n"}
    write(tmp_path, TREC | other)
    assert read_dataset(tmp_path, split="dev").qrels == {"9": {"d1": 1}}
    assert read_dataset(tmp_path, split="dev").candidates is None
    assert read_dataset(tmp_path, split="robust").candidates == RUN
    refused(lambda: read_dataset(tmp_path), "has the splits dev, robust: name one")
    refused(lambda: read_dataset(tmp_path, split="robus"), "no split 'robus' (did you mean robust?")


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"topics.robust.xml": XML.replace("</query>", "", 1)}, ["robust.xml, line", "not well-f"]),
        ({"topics.robust.xml": XML.replace(' number="2"', "")}, [".xml, topic 2 has no number"]),
        ({"topics.robust.xml": XML.replace("query>", "sum>")}, ["topic 1 has neither a query nor"]),
        ({"topics.robust.xml": OLD.replace("Number: 2", "")}, ["topic 2 has no number"]),
        ({"topics.robust.xml": OLD.rpartition("</top>")[0]}, ["topic 2 has no end </top>"]),
        ({"topics.robust.xml": OLD + "more"}, ["line 15 stands outside the fields of a topic"]),
        (
            {"topics.robust.xml": XML.replace('"2"', '"1"')},
            ["topic 2 repeats the id '1' of topic 1"],
        ),
        ({"topics.robust.xml": "<topics/>"}, ["holds no queries"]),
        ({"collection.tsv": "d1\tan oak\nd2\n"}, ["collection.tsv, line 2 has 1 fields"]),
        ({"collection.tsv": "d1\ta\tb\n"}, ["line 1 has 3 fields and names none of id"]),
        ({"run.robust.txt": TREC["run.robust.txt"] * 2}, ["run.robust.txt, line 4 lists item"]),
        ({"qrels.robust.txt": "1 0 d1 high\n1 0 d2 1\n2 0 d1 good\n"}, ["line 3 is not a judge"]),
        ({"collection.jsonl": {"id": "d1", "text": "x"}}, ["hold the same: keep one"]),
    ],
)
def test_damaged_trec_folders(tmp_path, change, parts):
    write(tmp_path, TREC | change)
    refused(lambda: read_dataset(tmp_path), *parts)


def test_trec_folders_that_lack_a_file(tmp_path):
    write(tmp_path, {name: text for name, text in TREC.items() if name.startswith("topics")})
    refused(lambda: read_qrels(tmp_path), "has no judgements qrels for the split 'robust'")
    refused(lambda: read_items(tmp_path), "has 0 files of items (collection.tsv or .jsonl)")


# MS MARCO

MARCO = {
    "collection.tsv": "0\tan oak\n7\tan elm\n8\ta lake\n",
    "queries.train.tsv": "30\tferns\n",
    "queries.dev.tsv": "10\ttall trees\n11\twater\n12\tbirds\n",
    "queries.dev.small.tsv": "10\ttall trees\n11\twater\n",
    "qrels.train.tsv": "30\t0\t0\t1\n",
    "qrels.dev.tsv": "10\t0\t7\t1\n11\t0\t8\t1\n",
    "qrels.dev.small.tsv": "10\t0\t7\t1\n11\t0\t8\t1\n",
    "top1000.dev": "10\t8\ttall trees\ta lake\n10\t7\ttall trees\tan elm\n11\t8\twater\ta lake\n",
}


def test_msmarco(tmp_path):
    found = read_dataset(write(tmp_path, MARCO), split="dev.small")
    assert found.queries == QuerySet(("10", "11"), ("tall trees", "water"))
    assert list(found.items.ids) == ["0", "7", "8"]
    assert list(found.items.texts) == ["an oak", "an elm", "a lake"]
    assert found.qrels == {"10": {"7": 1}, "11": {"8": 1}}
    assert found.candidates == {"10": [("8", -1.0), ("7", -2.0)], "11": [("8", -1.0)]}
    assert found.findings == ()


def test_msmarco_says_what_is_not_judged_and_has_no_lists_for_train(tmp_path):
    write(tmp_path, MARCO)
    (finding,) = read_dataset(tmp_path, split="dev").findings
    assert str(finding) == "1 query has no judgement: '12'"
    assert read_dataset(tmp_path, split="train").candidates is None
    refused(lambda: read_dataset(tmp_path), "has the splits dev, dev.small, train: name one")


def test_msmarco_documents_and_runs_as_files(tmp_path):
    write(tmp_path, {"docs.tsv": "D1\tweb.site\tOak\tA tree.\n", "run.tsv": "10\t7\t2\n10\t8\t1\n"})
    items = read_items(tmp_path / "docs.tsv")
    assert (items.texts, items.extra) == (["Oak\nA tree."], [{"url": "web.site"}])
    assert read_run(tmp_path / "run.tsv") == {"10": [("8", -1.0), ("7", -2.0)]}


# DSTC7


def utterance(name, text):
    return {"candidate-id": name, "utterance": text}


def dialog(number, options, correct, split="dev"):
    return {
        "data-split": split,
        "example-id": number,
        "messages-so-far": [
            {"speaker": "participant_1", "utterance": "which tree is tall?"},
            {"speaker": "participant_2", "utterance": f"where, number {number}?"},
        ],
        "options-for-next": [utterance(*option) for option in options],
        "scenario": 1,
    } | ({} if correct is None else {"options-for-correct-answers": correct})


OAK, ELM, LAKE = ("A1", "an oak"), ("B2", "an elm"), ("C3", "a lake")
DEV = [dialog(1, [LAKE, OAK], [utterance(*OAK)]), dialog(2, [ELM, OAK], [])]
TEST = [dialog(5, [OAK, ELM], None, "test")]
DSTC7 = {
    "ubuntu_dev_subtask_1.json": DEV,
    "ubuntu_test_subtask_1.json": TEST,
    "ubuntu_responses_subtask_1.tsv": "5\tB2\tan elm\n",
}


def test_dstc7(tmp_path):
    found = read_dataset(write(tmp_path, DSTC7), split="dev")
    assert found.name == "ubuntu_subtask_1"
    assert found.queries.ids == ("1", "2")
    assert found.queries.texts[0] == (
        "participant 1: which tree is tall?\nparticipant 2: where, number 1?"
    )
    assert dict(zip(found.items.ids, found.items.texts, strict=True)) == dict([LAKE, OAK, ELM])
    assert found.candidates == {
        "1": [("C3", -1.0), ("A1", -2.0)],
        "2": [("B2", -1.0), ("A1", -2.0)],
    }
    assert found.qrels == {"1": {"A1": 1}}
    assert [str(finding) for finding in found.findings] == ["1 query has no judgement: '2'"]


def test_the_answers_of_the_test_split_of_dstc7_are_in_a_file_of_their_own(tmp_path):
    write(tmp_path, DSTC7)
    found = read_dataset(tmp_path)
    assert (found.qrels, list(found.items.ids)) == ({"5": {"B2": 1}}, ["A1", "B2"])
    assert len(read_items(tmp_path)) == 3


def test_a_correct_answer_that_is_not_to_be_chosen_is_an_item(tmp_path):
    answer = "a fir,\tblank  and all"
    files = DSTC7 | {"ubuntu_responses_subtask_1.tsv": f"5\tD4\t{answer}\n"}
    found = read_dataset(write(tmp_path, files))
    assert dict(zip(found.items.ids, found.items.texts, strict=True)) == dict(
        [OAK, ELM, ("D4", answer)]
    )
    assert (found.qrels, found.findings) == ({"5": {"D4": 1}}, ())


def test_the_data_sets_of_dstc7_are_domains(tmp_path):
    write(tmp_path, DSTC7 | {"advising_dev_subtask_1.json": DEV[:1]})
    refused(lambda: read_dataset(tmp_path, split="dev"), "advising_subtask_1, ubuntu_subtask_1: na")
    found = read_dataset(tmp_path, split="dev", domain="advising_subtask_1")
    assert (found.name, len(found)) == ("advising_subtask_1", 1)
    refused(
        lambda: read_dataset(tmp_path, split="dev", domain="advising"),
        "no domain 'advising' (did you mean advising_subtask_1?",
    )


def without(record, name):
    return {k: v for k, v in record.items() if k != name}


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("[{]", ["line 1 is not valid JSON"]),
        ({}, ["holds a JSON dict, not a list of dialogs"]),
        ([DEV[0], "x"], ["dialog 2 is a JSON str, not an object"]),
        ([DEV[0], DEV[0]], ["dialog 2 repeats the id '1' of dialog 1"]),
        ([without(DEV[0], "example-id")], ["dialog 1 has no field 'example-id'"]),
        ([without(DEV[0], "options-for-next")], ["dialog 1 has no field 'options-for-next'"]),
        ([DEV[0] | {"messages-so-far": "hello"}], ["dialog 1 holds a JSON str where a list"]),
        ([DEV[0] | {"messages-so-far": ["hello"]}], ["a JSON str where speaker is expected"]),
        ([DEV[0] | {"messages-so-far": []}], ["dialog 1 has an empty query"]),
        ([DEV[0] | {"options-for-next": [{"utterance": "x"}]}], ["no field 'candidate-id'"]),
        ([dialog(1, [OAK, ("A1", "an ash")], None)], ["dialog 1 gives the answer 'A1' another"]),
        ([], ["holds no"]),
    ],
)
def test_damaged_dialogs(tmp_path, content, parts):
    write(tmp_path, {"ubuntu_dev_subtask_1.json": content})
    refused(lambda: read_dataset(tmp_path), *parts)


def test_damaged_responses(tmp_path):
    write(tmp_path, DSTC7 | {"ubuntu_responses_subtask_1.tsv": "5\tB2\n"})
    refused(lambda: read_dataset(tmp_path), "responses_subtask_1.tsv, line 1 has 2 fields, not 3")


# AIDA

WIKI = "http://en.wikipedia.org/wiki"
AIDA = (
    "-DOCSTART- (1 TREES)\n"
    "The\n"
    f"Holm\tB\tHolm oak\tHolm_oak\t{WIKI}/Holm_oak\t11\t/m/01\n"
    f"oak\tI\tHolm oak\tHolm_oak\t{WIKI}/Holm_oak\t11\t/m/01\n"
    f"Como\tB\tComo\tLake_Como\t{WIKI}/Lake_Como\t12\n"
    ".\n"
    "\n"
    "Nobody\tB\tNobody\t--NME--\n"
    "came\n"
    "\n"
    "-DOCSTART- (947testa LAKES)\n"
    f"Como\tB\tComo\tLake_Como\t{WIKI}/Lake_Como\t12\n"
    "\n"
    "-DOCSTART- (1163testb LAKES)\n"
    f"Garda\tB\tGarda\tLake_Garda\t{WIKI}/Lake_Garda\t13\t/m/02\n"
)
ENTITIES = "".join(
    json.dumps({"text": f" a {title}", "idx": f"https://en.wikipedia.org/wiki?curid={n}"} | more)
    + "\n"
    for n, title in ((11, "Holm oak"), (12, "Lake Como"))
    for more in [{"title": title, "entity": title}]
)


def aida(folder, data=AIDA, **files):
    return write(folder, {"AIDA-YAGO2-dataset.tsv": data, "entity.jsonl": ENTITIES} | files)


def test_aida(tmp_path):
    found = read_dataset(aida(tmp_path), split="train")
    assert found.queries.ids == ("1:1", "1:3", "1:5")
    assert found.queries.texts == (
        "The [Ms] Holm oak [Me] Como . Nobody came",
        "The Holm oak [Ms] Como [Me] . Nobody came",
        "The Holm oak Como . [Ms] Nobody [Me] came",
    )
    assert found.qrels == {"1:1": {"11": 1}, "1:3": {"12": 1}}
    assert list(found.items.ids) == ["11", "12"]
    assert found.items.texts[1] == "Lake Como [ENT] a Lake Como"
    assert [str(finding) for finding in found.findings] == ["1 query has no judgement: '1:5'"]


def test_the_test_sets_of_aida_have_other_names_too(tmp_path):
    aida(tmp_path)
    for split in ("testa", "valid", "dev"):
        assert read_dataset(tmp_path, split=split).queries.ids == ("947testa:0",)
    for split in (None, "testb", "test"):
        found = read_dataset(tmp_path, split=split)
        assert found.queries.ids == ("1163testb:0",)
    assert [str(finding) for finding in found.findings] == [
        "1 judgement names an item that is not there: '13'"
    ]
    refused(lambda: read_dataset(tmp_path, split="tests"), "no split 'tests' (did you mean test")


def test_entities_of_aida_in_other_formats(tmp_path):
    aida(tmp_path)
    (tmp_path / "entity.jsonl").unlink()
    refused(lambda: read_dataset(tmp_path), "has 0 lists of entities")
    write(tmp_path, {"entities.tsv": "id\ttitle\ttext\n13\tLake Garda\ta lake\n"})
    assert read_dataset(tmp_path).items.texts == ["Lake Garda [ENT] a lake"]


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("(1 TREES)", "TREES", ["line 1 is not  -DOCSTART- (<number> <name>)"]),
        ("-DOCSTART- (1 TREES)\n", "", ["line 1 stands before the first -DOCSTART-"]),
        ("oak\tI\t", "oak\tX\t", ["line 4 has 'X' where B, I or O is expected"]),
        ("Holm\tB\t", "Holm\tO\t", ["line 4 continues a mention that has not begun"]),
        ("\t12\n", "\n", ["line 5 has neither --NME-- nor a Wikipedia id in column 6"]),
        ("\t11\t", "\televen\t", ["line 3 has neither --NME-- nor a Wikipedia id"]),
    ],
)
def test_damaged_aida(tmp_path, old, new, parts):
    aida(tmp_path, AIDA.replace(old, new))
    refused(lambda: read_dataset(tmp_path, split="train"), "AIDA-YAGO2-dataset.tsv, ", *parts)


def test_a_split_of_aida_without_mentions(tmp_path):
    aida(tmp_path, "-DOCSTART- (1 TREES)\nThe\n")
    refused(lambda: read_dataset(tmp_path), "has no mentions in the split testb")


# ZESHEL (more in test_labelled.py)


def zeshel(folder):
    mention = {
        "mention_id": "m0",
        "context_document_id": "d0",
        "label_document_id": "d1",
        "start_index": 1,
        "end_index": 1,
        "text": "oak",
        "corpus": "trees",
        "category": "LOW_OVERLAP",
    }
    documents = [
        {"document_id": "d0", "title": "Lake", "text": "an oak here"},
        {"document_id": "d1", "title": "Oak", "text": "a tree"},
    ]
    fish = {"mention_id": "m1", "label_id": 0, "mention": "eel", "context_left": "an"}
    raw, processed = folder / "raw", folder / "processed"
    for place in (raw, processed):
        lines = "".join(json.dumps(d) + "\n" for d in documents)
        write(place, {"documents/trees.json": lines, "documents/fish.json": lines})
    write(raw, {"mentions/test.json": mention})
    tree = fish | {"mention_id": "m0", "label_id": 1, "mention": "oak", "context_right": "here"}
    write(
        processed,
        {
            "processed/test_worlds/trees_mentions.jsonl": tree,
            "processed/test_worlds/fish_mentions.jsonl": fish | {"context_right": ""},
        },
    )
    return raw, processed


def test_zeshel_raw_and_processed_say_the_same(tmp_path):
    raw, processed = zeshel(tmp_path)
    for found in (
        read_dataset(raw, split="test"),
        read_dataset(raw, split="test", domain="trees"),
        read_dataset(processed, split="test", domain="trees"),
    ):
        assert found.name == "trees"
        assert found.queries == QuerySet(("m0",), ("an [Ms] oak [Me] here",))
        assert list(found.items.texts) == ["Lake [ENT] an oak here", "Oak [ENT] a tree"]
        assert found.qrels == {"m0": {"d1": 1}}
    assert read_queries(raw) == found.queries
    assert read_qrels(raw) == found.qrels
    assert [part.name for part in read_labelled(processed, "test")] == ["fish", "trees"]


def test_a_domain_of_zeshel_must_be_named(tmp_path):
    raw, processed = zeshel(tmp_path)
    refused(lambda: read_dataset(processed), "has the domains fish, trees: name one (domain=...)")
    refused(lambda: read_queries(processed), "has the domains fish, trees: name one")
    refused(lambda: read_items(raw), "for items alone, a file of documents/")
    refused(lambda: read_queries(raw / "mentions" / "test.json"), "a mention without its context")
    assert read_items(raw / "documents" / "trees.json").titles == ["Lake", "Oak"]


# ir_datasets


@pytest.fixture
def registered(tmp_path, monkeypatch):
    monkeypatch.setenv("IR_DATASETS_HOME", str(tmp_path / "home"))
    ir_datasets = pytest.importorskip("ir_datasets")
    files = {
        name: str(write(tmp_path, {name: text}) / name)
        for name, text in {
            "docs.tsv": "d1\tan oak\nd2\tan elm\n",
            "queries.tsv": "1\torigin of oaks\n2\ttall trees\n",
            "qrels.txt": "1 0 d1 1\n2 0 d9 1\n",
        }.items()
    }
    data = ir_datasets.create_dataset(files["docs.tsv"], files["queries.tsv"], files["qrels.txt"])
    ir_datasets.registry.register("crossknn-trees/test", data)
    yield "irds:crossknn-trees"
    del ir_datasets.registry._registered["crossknn-trees/test"]


def test_a_data_set_of_ir_datasets(registered):
    whole = f"{registered}/test"
    for found in (read_dataset(whole), read_dataset(whole, split="test")):
        assert found.name == "crossknn-trees/test"
        assert found.queries == QUERIES
        assert list(found.items.texts) == ["an oak", "an elm"]
        assert found.qrels == {"1": {"d1": 1}, "2": {"d9": 1}}
        assert found.candidates is None
        assert [finding.count for finding in found.findings] == [1]
    assert read_dataset(registered, split="test").queries == QUERIES
    assert read_queries(whole) == QUERIES
    assert read_qrels(whole) == found.qrels
    assert len(read_items(whole)) == 2
    refused(lambda: read_dataset("irds:no/such"), "ir_datasets knows no data set 'no/such'")


def test_without_ir_datasets_the_extra_is_named():
    try:
        import ir_datasets  # noqa: F401
    except ImportError:
        with pytest.raises(ImportError, match=r"reading irds:x/test .* 'crossknn\[irds\]'"):
            read_dataset("irds:x/test")
    else:
        pytest.skip("ir_datasets is installed")
