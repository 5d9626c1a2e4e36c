"""Ids are exact: what stands in one file is what stands in another."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tiny_models import save_beir

import crossknn as ck
from crossknn.cli.app import run
from crossknn.data.qrels import read_run

ID = " d1 "


def count(pairs):
    return [float(len(text)) for _, text in pairs]


def test_outer_blanks_of_a_beir_folder(tmp_path):
    """Corpus, queries and judgements agree about ids with outer blanks; none is missing."""
    qrels = {"q 1 ": {ID: 1}}
    save_beir(tmp_path, {ID: "a tree", "d1": "the sea"}, {"q 1 ": "tree"}, test=qrels)
    assert ck.read_queries(tmp_path, split="test").ids == ("q 1 ",)
    assert [*ck.read_items(tmp_path).ids] == [ID, "d1"]
    assert ck.read_qrels(tmp_path) == qrels


@pytest.mark.parametrize("ending", ["jsonl", "csv", "tsv"])
def test_every_format(tmp_path, ending):
    """ "d1" and "d1 " are two items in every format."""
    mark = {"csv": ",", "tsv": "\t"}.get(ending)
    rows = [("id", "text"), ("d1", "a tree"), ("d1 ", "the sea")]
    lines = [json.dumps(dict(zip(rows[0], row, strict=True))) for row in rows[1:]]
    path = tmp_path / f"docs.{ending}"
    path.write_text("\n".join(lines if mark is None else [mark.join(row) for row in rows]) + "\n")
    assert [*ck.read_items(path).ids] == ["d1", "d1 "]
    assert ck.read_queries(path).ids == ("d1", "d1 ")


def test_a_search_by_id(tmp_path):
    """Filters, deletions and runs name such an item by its exact id."""
    index = ck.ItemIndex.build({ID: "a tree", "d1": "the sea"}, lsa=0)
    searcher = ck.Searcher(index, count, "exact")
    [[hit]] = searcher.search("tree", filter=[ID])
    assert hit.id == ID
    with pytest.raises(ck.InputError, match="blanks in its id, which a TREC run cannot hold"):
        searcher.search("tree").to_run(tmp_path / "run.trec")
    index.delete([ID])
    assert [hit.id for hit in searcher.search("tree")[0]] == ["d1"]


def test_a_list_of_ids(tmp_path, capsys):
    """A file of ids for --filter and `index delete` holds exact ids, too."""
    ck.ItemIndex.build({ID: "a tree", "d1": "the sea"}, lsa=0).save(tmp_path / "i")
    (tmp_path / "ids.txt").write_text(f"{ID}\r\n\n")
    folder, ids = str(tmp_path / "i"), str(tmp_path / "ids.txt")
    how = ["--filter", ids, "--method", "retrieve(retriever=bm25)", "--json"]
    assert run(["search", folder, "tree", *how]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [hit["id"] for hit in found["results"][0]["hits"]] == [ID]
    assert run(["index", "delete", folder, "--ids", ids]) == 0
    assert len(ck.ItemIndex.load(folder)) == 1


def test_lists_of_candidates(tmp_path):
    """A run with tabs keeps ids exactly."""
    (tmp_path / "run.tsv").write_text(f"q 1 \tQ0\t{ID}\t1\t0.5\tx\n")
    assert read_run(tmp_path / "run.tsv") == {"q 1 ": [(ID, 0.5)]}


@pytest.mark.parametrize("value", [7, np.int64(7), np.uint8(7), "7", np.str_("7")], ids=repr)
def test_integers(value):
    """An integer is an id, NumPy's as well."""
    for given in ([{"id": value, "text": "a tree"}], {value: "a tree"}):
        items, queries = ck.read_items(given), ck.read_queries(given)
        assert ([*items.ids], queries.ids) == (["7"], ("7",))
        assert type(items.ids[0]) is str


@pytest.mark.parametrize(
    "value", [True, np.True_, 1.5, 1.0, "", " ", "a\tb", "a\nb", "a\n", ["a"], b"a"]
)
def test_what_is_no_id(value):
    """What is no id in a file of judgements is refused as an id of an item and of a query."""
    for read in (ck.read_items, ck.read_queries):
        with pytest.raises(ck.InputError, match=r"entry 0 has the id .*; an id is a non-empty str"):
            read([{"id": value, "text": "a tree"}])
