"""MTEB's own evaluation of a search, on a task whose texts are made here."""

from __future__ import annotations

import pytest
from adapter_helpers import TEXTS, failing, overlap

import crossknn as ck

pytest.importorskip("mteb")

import mteb
from datasets import Dataset
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.models import SearchProtocol

from crossknn.adapters.mteb import CrossknnSearch

pytestmark = pytest.mark.torch
ASKED = {"q1": "sort a list", "q2": "zip a folder", "q3": "lock a thread"}
RELEVANT = {"q1": {"sort-list": 1}, "q2": {"zip-folder": 1}, "q3": {"lock-thread": 1}}


def task_of(kind, top_ranked=None):
    class Task(AbsTaskRetrieval):
        metadata = TaskMetadata(
            name=f"Few{kind}", description="A few texts", reference=None,
            dataset={"path": "none/none", "revision": "1"}, type=kind, category="t2t",
            modalities=["text"], eval_splits=["test"], eval_langs=["eng-Latn"],
            main_score="ndcg_at_10", date=None, domains=None, task_subtypes=None, license=None,
            annotations_creators=None, dialect=None, sample_creation=None, bibtex_citation=None,
        )  # fmt: skip

        def load_data(self, **options):
            corpus = [{f: item[f] for f in ("id", "title", "text")} for item in TEXTS]
            asked = [{"id": q, "text": text} for q, text in ASKED.items()]
            test = {"corpus": Dataset.from_list(corpus), "queries": Dataset.from_list(asked)}
            test |= {"relevant_docs": RELEVANT, "top_ranked": top_ranked}
            self.dataset = {"default": {"test": test}}
            self.data_loaded = True

    return Task()


def test_it_is_a_search_model_of_mteb():
    model = CrossknnSearch(overlap, name="acme/overlap-12", budget=12)
    assert isinstance(model, SearchProtocol)
    assert model.mteb_model_meta.name == "acme/overlap-12"
    known = {"method": "auto", "budget": "12", "scorer": "function", "encoder": "bundled"}
    assert model.mteb_model_meta.experiment_kwargs == known
    assert model.mteb_model_meta.revision == ck.__version__
    named = CrossknnSearch(ck.CallableScorer(overlap, "overlap"))
    assert named.mteb_model_meta.experiment_kwargs["scorer"] == "callable:overlap"


@pytest.mark.parametrize("kind", ["Retrieval", "Reranking"])
def test_mteb_evaluates_it(kind):
    top_ranked = {q: [item["id"] for item in TEXTS] for q in ASKED}
    task = task_of(kind, top_ranked if kind == "Reranking" else None)
    found = mteb.evaluate(CrossknnSearch(overlap, budget=12), task, cache=None)
    [scores] = found.task_results[0].scores["test"]
    assert scores["ndcg_at_10"] > 0.8
    assert scores["recall_at_10"] == 1.0


def test_empty_documents_are_indexed():
    model = CrossknnSearch(overlap, method=None, budget=None)
    null = [{"id": "a", "text": None, "title": float("nan")}, {"id": "b", "title": None}]
    model.index([*TEXTS[:3], {"id": "none", "title": "", "text": ""}, *null])
    found = model.search([{"id": "q", "text": "zip file", "instruction": None}], top_k=9)["q"]
    assert len(found) == 6
    assert next(iter(found)) == "zip-file"


@pytest.mark.parametrize("ranked", [None, {"q1": [TEXTS[0]["id"]], "q2": [TEXTS[1]["id"]]}])
def test_a_scorer_that_fails_is_no_result(ranked):
    model, asked = CrossknnSearch(failing, budget=12), [*ASKED.items()][:2]
    model.index(TEXTS)
    with pytest.raises(ck.ScorerError, match="no power"):
        model.search([{"id": q, "text": t} for q, t in asked], top_k=5, top_ranked=ranked)


def test_a_search_answers_with_scores_of_all_documents_asked_for():
    model = CrossknnSearch(overlap, budget=12)
    with pytest.raises(ck.InputError, match="call index before search"):
        model.search([{"id": "q1", "text": "sort a list"}], top_k=5)
    model.index(TEXTS)
    asked = [{"id": "q1", "text": "sort", "instruction": "a list"}]
    found = model.search(asked, top_k=1000)["q1"]
    assert len(found) == len(TEXTS)
    assert [*found.values()] == sorted(found.values(), reverse=True)
    assert next(iter(found)).startswith("sort")
    with pytest.raises(ck.InputError, match="give a text"):
        model.search([{"id": "q1", "text": [{"role": "user"}]}], top_k=5)
