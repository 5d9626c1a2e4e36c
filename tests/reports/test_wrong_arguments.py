"""Arguments that cannot be meant are refused where they are given, and named."""

import json
import math
import shutil

import numpy as np
import pytest
from tiny_models import save_hf

import crossknn as ck
from crossknn.scores.collect import Limits

TEXTS = ["zip a file", "sort a list", "lock a thread"]
NAN = math.nan


def scorer(pairs):
    return [float(len(text)) for _, text in pairs]


def searcher(**options):
    return ck.Searcher(ck.ItemIndex.build(TEXTS, lsa=2), scorer, **options)


def least_score(min_score):
    return searcher().search("a list", min_score=min_score)


ABOVE_0 = [-1, 0, 0.0, True, "3", NAN, -math.inf, [], 1j]
WRONG = {
    "per_query": (ck.Budget, [-1, 0, True, "3", 2.0, 1.5, NAN, math.inf, [], np.float32(3)]),
    "deadline": (ck.Budget, [*ABOVE_0, "soon"]),
    "target_recall": (ck.Budget, [*ABOVE_0, 1.01, 90, math.inf]),
    "deadline of a collection": (Limits, [-1, 0, True, "3", NAN]),
    "min_score": (least_score, [True, NAN, "3", math.inf]),
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, (_, vs) in WRONG.items() for v in vs])
def test_a_number_that_is_none(name, value):
    option = name.split()[0]
    with pytest.raises(ck.InputError, match=r"(budget|deadline|target_recall|min_score) is "):
        WRONG[name][0](**{option: value})


@pytest.mark.parametrize(
    "given",
    [
        {"per_query": np.int64(3)},
        {"deadline": np.float32(0.5)},
        {"deadline": math.inf},
        {"target_recall": 1},
        {},
    ],
)
def test_numbers_of_any_kind_are_fine(given):
    budget = ck.Budget(**{"per_query": 2, **given, "target_recall": None})
    assert searcher().search("a list", k=1, budget=budget).n_calls >= 2
    ck.Budget(**given)


@pytest.mark.parametrize("documents", [[], (), iter([]), {}])
def test_no_documents_are_an_empty_answer(documents):
    for budget in (None, 5, ck.Budget(deadline=1)):
        answer = ck.rerank("q", documents, budget, scorer=scorer, top_k=3)
        assert answer == []
        assert (answer.results.n_calls, answer.results.query_ids) == (0, ("0",))
        assert answer.results.to_run() == {"0": {}}
        assert len(answer.results[0]) == 0


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: ck.rerank("q", TEXTS, scorer=scorer, k=1), "rerank.*'k'"),
        (lambda: searcher().search("q", top_k=1), "'top_k'"),
        (lambda: searcher(metod="exact"), "'metod'"),
        (lambda: ck.Budget(per_qury=3), "'per_qury'"),
        (lambda: ck.CrossEncoder("bundled", max_len=64), "'max_len': did you mean max_length"),
        (lambda: ck.CrossEncoder("http://localhost:1/rerank", tmeout=1), "did you mean timeout"),
        (lambda: ck.DualEncoder("bundled", device="cpu"), "'device'"),
        (lambda: searcher(method="kriging(roundz=3)"), "'roundz'.*rounds"),
    ],
)
def test_an_unknown_keyword_is_refused_by_name(call, named):
    with pytest.raises((TypeError, ck.InputError), match=named):
        call()


class Predicting:
    def predict(self, pairs):
        return [1.0] * len(pairs)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_hf(
        tmp_path_factory.mktemp("hf") / "model", "BertForSequenceClassification", num_labels=1
    )


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["model", "tokenizer", "pipeline"])
def test_an_object_of_hugging_face(folder, kind):
    import transformers

    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    made = {"model": model, "tokenizer": tokenizer}
    made["pipeline"] = transformers.pipeline(
        "text-classification", model=model, tokenizer=tokenizer
    )
    for use in ck.rerank, ck.Searcher:
        given = ("q", ["a"]) if use is ck.rerank else (ck.ItemIndex.build(["a"], lsa=0),)
        with pytest.raises(ck.InputError, match="scores no pairs of texts: give the"):
            use(*given, scorer=made[kind])
    with pytest.raises(ck.InputError, match="is not a dual encoder: give a model"):
        ck.ItemIndex.build(["a"], encoder=made[kind])

    class Own(Predicting, transformers.BertForSequenceClassification):
        """It adds `predict`, so that it is a scorer."""

    assert ck.rerank("q", ["a"], scorer=Own.from_pretrained(folder))[0]["score"] == 1.0


@pytest.mark.parametrize("given", [lambda pairs: [2.0] * len(pairs), Predicting()])
def test_collect_takes_what_a_search_takes(given):
    index = ck.ItemIndex.build(["a b", "b c"], lsa=0)
    assert ck.collect(index.scores, given, ["b"], index.items.texts).complete
    queries = ck.QuerySet(tuple("abcde"), tuple("abcde"))
    qrels = {query: {index.items.ids[0]: 1} for query in queries.ids}
    assert (
        ck.fit_calibration(index, given, queries, qrels, method="rerank", budget=2)["items"] == 10
    )


@pytest.mark.parametrize("given", [ck.HttpScorer, ck.CallableScorer, Predicting, str])
def test_a_class(given):
    with pytest.raises(ck.InputError, match=f"{given.__name__} is a class: give an instance"):
        ck.rerank("q", ["a"], scorer=given)


@pytest.mark.parametrize("graph", ["model.onnx", "onnx/model.onnx", "model_quantized.onnx"])
@pytest.mark.parametrize("open_model", [ck.CrossEncoder, ck.DualEncoder])
@pytest.mark.parametrize("architecture", [None, "BertForSequenceClassification", "BertModel"])
def test_an_onnx_folder_of_somebody_else(tmp_path, graph, open_model, architecture):
    (tmp_path / graph).parent.mkdir(exist_ok=True)
    (tmp_path / graph).write_bytes(b"onnx")
    if architecture:
        about = {"architectures": [architecture], "id2label": {"0": "LABEL_0"}}
        (tmp_path / "config.json").write_text(json.dumps(about))
    said = rf"has the ONNX graph {graph} but neither crossknn\.json nor .*crossknn-train export"
    with pytest.raises(ck.InputError, match=said):
        open_model(tmp_path)


@pytest.mark.torch
def test_a_graph_beside_the_weights(folder, tmp_path):
    copied = shutil.copytree(folder, tmp_path / "model")
    (copied / "model.onnx").write_bytes(b"onnx")
    assert len(ck.rerank("q", ["a"], scorer=str(copied))) == 1
