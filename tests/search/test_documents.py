"""Searches for groups of items, and for documents by their passages."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tiny_models import jsonl

import crossknn as ck
from crossknn.cli.app import run
from crossknn.errors import InputError
from crossknn.evaluation.compare import compare
from crossknn.service import engine
from crossknn.service.app import create_app

SHOPS = [
    {"id": f"{shop}{n}", "text": f"{thing} {'x' * n}", "shop": shop, "n": n}
    for shop, things in {
        "red": ("hammer and saw", "saw"),
        "blue": ("saw", "paint"),
        "green": ("glue", "rope", "saw blade and hammer and saw"),
    }.items()
    for n, thing in enumerate(things)
] + [{"id": "alone", "text": "a saw without a shop"}]
FILLER = "The tide rises and falls twice a day. "
DOCUMENTS = [
    {"id": "sea", "title": "Sea", "text": FILLER * 80, "kind": "nature"},
    {"id": "wood", "title": "Wood", "text": FILLER * 40 + "A saw cuts oak 🪵 well. " + FILLER * 40},
    {"id": "short", "text": "A saw is a tool."},
    {"id": "dots", "text": "...", "kind": "no words"},
]
QUERY = "a saw cuts oak"


def overlap(pairs):
    """Score by common words, and a little by length, so that few scores are equal."""
    return [len({*q.split()} & {*t.split()}) - len(t) / 1e5 for q, t in pairs]


@pytest.fixture(scope="module")
def shops():
    return ck.Searcher(ck.ItemIndex.build(SHOPS, lsa=4), overlap)


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    folder = tmp_path_factory.mktemp("index") / "docs.index"
    ck.ItemIndex.build(DOCUMENTS, lsa=4, passages=60, overlap=12, folder=folder)
    return ck.Searcher(ck.ItemIndex.load(folder), ck.CallableScorer(overlap, "overlap"))


def test_the_best_groups_by_their_best_item(shops):
    (hits,) = shops.search("hammer and saw", k=3, budget=8, group_by="shop", group_size=2)
    assert [(hit.group, hit.id) for hit in hits] == [
        ("red", "red0"),
        ("green", "green2"),
        ("blue", "blue0"),
    ]
    assert [[m.id for m in hit.members] for hit in hits][:2] == [
        ["red0", "red1"],
        ["green2", "green0"],
    ]
    assert [member.members for member in hits[0].members] == [(), ()]


def test_groups_in_every_kind_of_search(shops):
    ask = {"group_by": "shop", "k": 4}
    (all_of_them,) = shops.search("saw", budget=2, **ask)  # two scored, the others predicted
    assert sorted(str(hit.group) for hit in all_of_them) == ["alone", "blue", "green", "red"]
    assert [hit.predicted for hit in all_of_them] == [False, False, True, True]
    (first,) = shops.search("saw", budget=2, method="retrieve", **ask)
    assert len({hit.group for hit in first}) == len(first) == 4
    (some,) = shops.search("saw", budget=8, min_score=0.5, group_by="shop", group_size=3)
    assert {hit.group for hit in some} == {"alone", "blue", "green", "red"}
    assert all(member.score >= 0.5 for hit in some for member in hit.members)
    (single,) = shops.search("saw", budget=8, k=3, group_by="id")
    assert [hit.id for hit in single] == [hit.id for hit in shops.search("saw", k=3, budget=8)[0]]
    cheap = ck.CallableScorer(lambda pairs: [-len(t) for _, t in pairs], "cheap")
    two = ck.Searcher(shops.index, [cheap, ck.CallableScorer(overlap, "o")])
    (after,) = two.search("hammer and saw", budget=[6, 4], **ask)
    assert len({hit.group for hit in after}) == len(after) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group_by": "shopp"}, "group_by names 'shopp', but no item has this field"),
        ({"group_by": 3}, "group_by is 3: give the name of a field"),
        ({"group_by": "shop", "group_size": 0}, "group_size is 0"),
        ({"group_size": 2}, "group_size is 2, but there are no groups"),
        ({"group_by": "shop", "method": "kriging(target_recall=0.9)"}, "does not work for groups"),
        ({"group_by": "tags"}, "'tags', but an item has several values of it"),
        ({"group_by": "where"}, "'where', but there is an object among its values"),
    ],
)
def test_what_is_no_group(options, message):
    records = [{"id": "a", "text": "saw", "shop": 1, "tags": ["x", "y"], "where": {"x": 1}}]
    searcher = ck.Searcher(ck.ItemIndex.build([*records, {"id": "b", "text": "axe"}]), overlap)
    with pytest.raises(InputError, match=message):
        searcher.search("saw", budget=1, **options)


def test_values_of_several_kinds_and_items_added_later(tmp_path):
    records = [{"id": f"i{n}", "text": f"saw {n}", "of": of} for n, of in enumerate([1, 1.0, "1"])]
    index = ck.ItemIndex.build([*records, {"id": "i3", "text": "saw", "of": True}], lsa=2)
    assert index.groups("of")[:2].tolist() == [index.groups("of")[0]] * 2
    assert len(set(index.groups("of").tolist())) == 3
    index.save(tmp_path / "index")
    loaded = ck.ItemIndex.load(tmp_path / "index")
    loaded.add([{"id": "i4", "text": "saws", "of": "1"}, {"id": "i5", "text": "axe", "of": None}])
    of = loaded.groups("of")
    assert of[4] == of[2]
    assert len(set(of.tolist())) == 4


def test_a_group_of_many_is_found_once():
    records = [{"id": f"{n}", "text": f"saw {n}", "of": "all"} for n in range(3000)]
    rest = [{"id": f"r{n}", "text": f"saw and {n}", "of": f"r{n}"} for n in range(9)]
    searcher = ck.Searcher(ck.ItemIndex.build([*records, *rest], lsa=4), overlap)
    (hits,) = searcher.search("saw", k=10, budget=40, group_by="of")
    assert len({hit.group for hit in hits}) == 10


def test_k_groups_are_found_even_if_one_has_nearly_all_items():
    records = [{"id": f"b{n}", "text": f"saw {n}", "of": "big"} for n in range(400)]
    records += [{"id": f"r{n}", "text": f"axe {n}", "of": f"r{n}"} for n in range(30)]
    index = ck.ItemIndex.build(records, lsa=4)
    (hits,) = ck.Searcher(index, overlap).search(
        "saw", k=5, budget=20, group_by="of", method="rerank(retriever=bm25)"
    )
    assert hits[0].group == "big"
    assert len({hit.group for hit in hits}) == 5
    assert [hit.predicted for hit in hits] == [False] + 4 * [True]

    def down(pairs):
        raise OSError("down")

    (first,) = ck.Searcher(index, down).search("saw", 5, 12, group_by="of", fallback=True)
    assert len({hit.group for hit in first}) == 5


def test_queries_that_match_nothing_have_an_answer():
    index = ck.ItemIndex.build(SHOPS, lsa=0)
    found = ck.Searcher(index, overlap).search(["kiwi", "saw"], k=3, budget=4, group_by="shop")
    assert [len(hits) for hits in found] == [3, 3]


def test_lists_of_one_value_and_fields_named_id(tmp_path):
    records = [{"key": f"k{n}", "id": "same", "text": f"saw {n}", "of": [n % 2]} for n in range(6)]
    jsonl(tmp_path / "items.jsonl", [*records, {"key": "k6", "text": "saws", "of": []}])
    index = ck.ItemIndex.build(ck.read_items(tmp_path / "items.jsonl", id_field="key"), lsa=2)
    scorers = [ck.CallableScorer(overlap, "a"), ck.CallableScorer(overlap, "b")]
    search = ck.Searcher(index, scorers, "rerank(retriever=search)").search
    (hits,) = search("saw", k=5, budget=[5, 3], group_by="of", group_size=9)
    assert sorted(map(str, (hit.group for hit in hits))) == ["0", "1", "k6"]
    (single,) = search("saw", k=7, budget=[5, 3], group_by="id")
    assert len({hit.group for hit in single}) == 7


# Documents


def test_a_document_has_its_best_passage(documents):
    results = documents.search(QUERY, k=3, budget=60, group_size=2)
    best = results[0][0]
    assert (best.id, best.title, best.group) == ("wood", "Wood", "wood")
    assert best.text == f"Wood\n{DOCUMENTS[1]['text']}".strip()
    assert best.text[best.passage.start : best.passage.end] == best.passage.text
    assert "A saw cuts oak 🪵" in best.passage.text
    assert best.passage.id == best.members[0].id == documents.index.items.ids[best.position]
    assert [hit.id for hit in results[0]][1] == "short"
    assert results.to_run()["0"].keys() >= {"wood", "short"}
    entry = results.to_dict()["results"][0]["hits"][0]
    assert entry["passage"]["start"] == best.passage.start
    json.dumps(entry)
    (passages,) = documents.search(QUERY, k=2, budget=60, group_by="id")
    assert passages[0].id == best.passage.id
    assert passages[0].passage is None


def test_fields_of_documents_filter_and_answer(documents):
    (hits,) = documents.search("tide", k=3, budget=30, filter={"kind": "nature"})
    assert [(hit.id, dict(hit.extra)) for hit in hits] == [("sea", {"kind": "nature"})]
    (chosen,) = documents.search(QUERY, k=3, budget=30, filter=["sea", "wood#1"])
    assert {hit.id for hit in chosen} == {"sea", "wood"}
    assert documents.index.item("wood").text.startswith("Wood")
    assert documents.index.item("wood#2").text in documents.index.item("wood").text
    with pytest.raises(InputError, match="no item with the id 'rock'"):
        documents.index.item("rock")


def test_judgements_of_documents_are_compared(documents):
    index = documents.index
    exact = np.array([overlap([(QUERY, text) for text in index.items.texts])], np.float32)
    for method in ("rerank", "kriging", "retrieve"):
        whole, some = compare(
            *(index, {"q": QUERY}, exact, ck.parse_methods(method), [30], [2, 10]),
            qrels={"q": {"wood": 1, "rock": 1}},
            measures=["RR@10", "R@10"],
        )
        assert whole.task["RR@10"].tolist() == [1.0]
        assert some.task["R@10"].tolist() == [0.5]
        assert len({*index.documents[some.items[0][some.items[0] >= 0]]}) > 1
        assert whole.recall[2].tolist() == whole.recall[10].tolist() == [1.0]


def test_the_service_and_its_items(documents):
    from fastapi.testclient import TestClient

    served = engine.Engine({"docs": documents.index}, ck.CallableScorer(overlap, "overlap"))
    with TestClient(create_app(served, keys=())) as client:
        body = {"query": QUERY, "k": 2, "budget": 40, "explain": True}
        first = client.post("/search", json=body).json()["results"][0]["hits"][0]
        assert (first["id"], first["first_rank"] > 0) == ("wood", True)
        assert first["text"][first["passage"]["start"] :].startswith(first["passage"]["text"])
        assert client.get("/items/wood").json()["text"] == first["text"]
        assert client.get("/items/rock").status_code == 404
        grouped = client.post("/search", json=body | {"group_by": "kind", "k": 60})
        assert {hit["group"] for hit in grouped.json()["results"][0]["hits"]} >= {"nature"}
        assert client.post("/search", json=body | {"group_by": "no"}).status_code == 422


def test_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    jsonl(tmp_path / "shops.jsonl", SHOPS)
    build = ("index", "build", "shops.jsonl", "shops.index", "--encoder", "none")
    assert run([*build]) == 0
    ask = ("search", "shops.index", "hammer and saw", "--budget", "8", "-k", "2")
    assert run([*ask, "--group-by", "shop", "--group-size", "2"]) == 0
    printed = capsys.readouterr().out
    assert "red  red0" in printed
    assert printed.index("red0") < printed.index("red1") < printed.index("green2")
    assert run([*ask, "--group-by", "shopp"]) == 2
    assert "'shopp', but no item has this field (did you mean shop?)" in capsys.readouterr().err


def test_adapters_return_the_passage(documents):
    from crossknn.adapters import metadata_of, text_of

    (hit,) = documents.search(QUERY, k=1, budget=40)[0]
    assert hit.passage
    assert text_of(hit) == hit.passage.text
    wanted = {"title": "Wood", "document": "wood", "start": hit.passage.start}
    assert metadata_of(hit) == wanted | {"end": hit.passage.end}
