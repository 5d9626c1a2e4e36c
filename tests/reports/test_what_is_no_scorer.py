"""What is given as a cross-encoder and is none: one sentence that says what to give."""

import json
import shutil

import pytest
from tiny_models import save_hf

import crossknn as ck


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
