"""`crossknn-lab public`: search beside reranking on a public data set, in one command."""

import json
import sys
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
from tiny_models import save_beir

import crossknn as ck
from crossknn_lab.cli import run
from crossknn_lab.public import METHODS, read_set

THINGS = ("oak", "tin", "snow", "bread", "wool", "glass", "sand", "salt")
TEXTS = {f"d{i}": f"{THINGS[i % 8]} of kind {i // 8} is kept in house {i}" for i in range(64)}
QUERIES = {f"q{i}": f"where is {THINGS[i]} of kind {i}" for i in range(8)}
RIGHT = {f"q{i}": {f"d{9 * i}": 1} for i in range(8)}


class Doc(NamedTuple):
    doc_id: str
    text: str


class Query(NamedTuple):
    query_id: str
    text: str

    def default_text(self):
        return self.text


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_beir(tmp_path / "tiny", TEXTS, QUERIES, test=RIGHT)
    return tmp_path


def public(*options, scorer="bundled", retriever="bundled", out="out"):
    models = ["--scorer", scorer, "--retriever", retriever]
    return run(["public", "--set", "tiny", *models, "--out", out, "--budgets", "5,10", *options])


def test_one_command_makes_a_table_and_a_picture_and_scores_nothing_twice(folder, capsys):
    assert public("--queries", "3") == 0
    shown = capsys.readouterr().out
    made = json.loads((folder / "out/results.json").read_text())
    assert made["about"]["queries"] == 3
    assert [(r["method"], r["calls"]) for r in made["rows"] if r["calls"]] == [
        (m, b) for m in METHODS.split(", ")[1:] for b in (5, 10)
    ]
    assert "gain over reranking" in shown
    page = (folder / "out/page.md").read_text()
    assert "cross-encoder: bundled" in page
    assert [*(folder / "out/images").glob("*.svg")]
    before = len(ck.ItemIndex.load("out/index").scores)
    assert public("--queries", "3") == 0
    again = json.loads((folder / "out/results.json").read_text())
    drop = lambda rows: [{k: v for k, v in row.items() if k != "seconds"} for row in rows]  # noqa: E731
    assert drop(again["rows"]) == drop(made["rows"])
    assert len(ck.ItemIndex.load("out/index").scores) == before > 0


def test_a_name_of_ir_datasets_takes_the_split_with_judgements(monkeypatch):
    whole = SimpleNamespace(has_qrels=lambda: False)
    test = SimpleNamespace(
        has_qrels=lambda: True,
        docs_iter=lambda: iter([Doc("d1", "oak"), Doc("d2", "tin")]),
        queries_iter=lambda: iter([Query("q1", "a tree")]),
        qrels_dict=lambda: {"q1": {"d1": 2}},
    )
    sets = {"beir/tiny": whole, "beir/tiny/test": test}
    monkeypatch.setitem(sys.modules, "ir_datasets", SimpleNamespace(load=sets.__getitem__))
    data = read_set("beir/tiny")
    assert data.items.ids == ["d1", "d2"]
    assert data.queries.texts == ("a tree",)
    assert data.qrels == {"q1": {"d1": 2}}
    with pytest.raises(Exception, match="neither a folder nor a data set with judgements"):
        read_set("beir/none")


def test_wrong_input_gets_one_sentence(folder, capsys):
    assert public(out="tiny/corpus.jsonl") == 2
    (folder / "tiny/qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\nother\td1\t1\n")
    assert public() == 2
    assert "tiny has no query with judgements" in " ".join(capsys.readouterr().err.split())


@pytest.mark.torch
def test_models_from_folders_and_a_missing_gpu(folder, capsys):
    from tiny_models import save_bi_encoder, save_hf

    save_hf(folder / "ce", "BertForSequenceClassification", num_labels=1)
    encoder = str(save_bi_encoder(folder / "bi", "BertModel", "mean"))
    torch = pytest.importorskip("torch")
    assert public(scorer="ce", retriever=encoder) == 0
    made = json.loads((folder / "out/results.json").read_text())
    values = [row["measures"]["nDCG@10"] for row in made["rows"]]
    assert np.isfinite(values).all()
    if not torch.cuda.is_available():
        assert public("--gpu", scorer="ce", retriever=encoder) == 2
        assert "torch finds no GPU here" in capsys.readouterr().err
