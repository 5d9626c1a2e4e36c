"""Published kinds of models, tiny and with random weights, used as their authors meant them."""

from __future__ import annotations

import json
import shutil
from functools import partial

import numpy as np
import pytest
from tiny_models import CAUSAL, CHAT, ending, save_bi_encoder, save_hf, scores_of, tokenizer

torch = pytest.importorskip("torch")
library = pytest.importorskip("sentence_transformers")

from sentence_transformers.base.modules import Transformer  # noqa: E402
from sentence_transformers.cross_encoder.modules import LogitScore  # noqa: E402

from crossknn import CrossEncoder, DualEncoder  # noqa: E402
from crossknn.errors import InputError  # noqa: E402
from crossknn.scorers.base import Encoder  # noqa: E402
from crossknn.scorers.library import PredictScorer  # noqa: E402
from crossknn_train.export import export_model  # noqa: E402
from crossknn_train.models.cross_encoder import CrossEncoderConfig, CrossEncoderModel  # noqa: E402

pytestmark = pytest.mark.torch

QUERIES = ["the red oak", "gull"]
ITEMS = ["seals swam in a lake near the old hill", "elm", "", "snow " * 80]
PAIRS = [(query, item) for query in QUERIES for item in ITEMS]

# ---- dual encoders: prompts ----


def test_an_items_prompt_may_have_an_older_name(tmp_path):
    """The library puts an empty "document" before a model's "passage", and uses that."""
    prompts = {"query": "red ", "passage": "old "}
    folder = save_bi_encoder(tmp_path, "BertModel", "mean", prompts=prompts)
    model = library.SentenceTransformer(str(folder), device="cpu")
    assert model.prompts["document"] == ""
    encoder = DualEncoder(folder, device="cpu")
    assert isinstance(encoder, Encoder)
    assert encoder.dimensions == encoder.encode_items(ITEMS).shape[1]
    for found, expected in (
        (encoder.encode_items(ITEMS), model.encode([f"old {item}" for item in ITEMS])),
        (encoder.encode_queries(QUERIES), model.encode([f"red {query}" for query in QUERIES])),
    ):
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_fingerprint_names_what_vectors_depend_on(tmp_path):
    folder = save_bi_encoder(tmp_path, "BertModel", "mean", prompts={"query": "red "})
    encoders = [
        DualEncoder(folder),
        DualEncoder(folder, item_prefix="old "),
        DualEncoder(folder, query_prefix=""),
        DualEncoder(folder, truncate_dim=8),
    ]
    about = json.loads((folder / "1_Pooling" / "config.json").read_text())
    for changed in ({"pooling_mode": "cls"}, {"include_prompt": False}):
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(about | changed))
        encoders.append(DualEncoder(folder))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(about))
    found = [encoder.fingerprint for encoder in encoders]
    assert len(set(found)) == len(found)
    assert DualEncoder(folder).fingerprint == found[0]
    assert DualEncoder(folder, query_prefix="red ").fingerprint == found[0]
    encoders[0].encode_queries(QUERIES)
    assert encoders[0].fingerprint == found[0]


# ---- rerankers ----


def causal(folder, *, made=None, template=CHAT):
    made = made or ending()
    return save_hf(folder, "Qwen3ForCausalLM", made=made, chat_template=template, **CAUSAL)


@pytest.fixture(scope="module")
def reranker(tmp_path_factory):
    return causal(tmp_path_factory.mktemp("reranker"))


def by_hand(folder, instruction="", yes="yes", no="no"):
    """The logits of two words after each pair's text, one pair at a time."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    words = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder).float().eval()
    first, second = words.convert_tokens_to_ids([yes, no])
    scores = []
    for query, item in PAIRS:
        ids = words(
            f"{instruction}red {query} oak {item} of the",
            add_special_tokens=False,
            truncation=False,
        )["input_ids"]
        if len(ids) > 64:  # the end of the template stays
            ids = ids[:62] + ids[-2:]
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([ids])).logits[0, -1]
        scores.append(float(logits[first] - logits[second]))
    return np.array(scores)


def test_a_causal_reranker_scores_by_the_logits_of_two_words(reranker):
    expected = by_hand(reranker)
    assert expected.std() > 0.1
    for batch in (1, 3, 32):
        scorer = CrossEncoder(reranker, device="cpu", batch=batch)
        np.testing.assert_allclose(scores_of(scorer, QUERIES, ITEMS), expected, atol=1e-4)


def test_a_saved_reranker_keeps_its_instruction_and_its_words(tmp_path, reranker):
    transformer = Transformer(str(reranker), transformer_task="text-generation")
    words = transformer.tokenizer.convert_tokens_to_ids(["wind", "rain"])
    modules = [transformer, LogitScore(*words)]
    model = library.CrossEncoder(
        modules=modules, device="cpu", prompts={"web": "hill"}, default_prompt_name="web"
    )
    model.save_pretrained(str(tmp_path / "saved"))
    scorer = CrossEncoder(tmp_path / "saved", device="cpu")
    expected = by_hand(reranker, "the hill ", "wind", "rain")
    np.testing.assert_allclose(scores_of(scorer, QUERIES, ITEMS), expected, atol=1e-4)
    # The fingerprint names the words, the instruction and the template.
    shutil.copytree(reranker, tmp_path / "other")
    template = tmp_path / "other" / "chat_template.jinja"
    template.write_text(template.read_text().replace("oak", "elm"))
    found = [CrossEncoder(name).fingerprint for name in (reranker, tmp_path / "other")]
    for changes in ({}, {"false_token_id": 7}):
        vars(model[1]).update(changes)
        found.append(PredictScorer(model).fingerprint)
    assert len(set(found)) == 4
    assert found[2] == scorer.fingerprint


@pytest.mark.parametrize(
    ("words", "template", "why"),
    [
        (True, "{{ messages[0]['content'] }}", "without a chat template for"),
        (False, CHAT, "has neither of the tokens"),
    ],
)
def test_a_causal_model_that_does_not_say_how_it_scores_is_refused(tmp_path, words, template, why):
    made = None if words else tokenizer()
    with pytest.raises(InputError, match=why):
        CrossEncoder(causal(tmp_path, made=made, template=template))


# ---- code in a model folder ----

CODE = """
from pathlib import Path
Path({marker!r}).write_text("ran")
from transformers import BertConfig, BertForSequenceClassification, BertModel
class Config(BertConfig):
    model_type = "custom"
class Model(BertModel):
    config_class = Config
class Scorer(BertForSequenceClassification):
    config_class = Config
class Module:
    pass
"""


def change(path, **content):
    path.write_text(json.dumps(json.loads(path.read_text()) | content))


def refused(act, *arguments, why="needs Python code from its own folder, which crossknn never"):
    with pytest.raises(InputError, match=why) as caught:
        act(*arguments)
    assert "\n" not in str(caught.value)


@pytest.fixture
def marker(tmp_path, monkeypatch):
    """The file that the code of a model folder writes when it is run."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a question on the terminal"))
    cache = str(tmp_path / "cache")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", cache)
    return tmp_path / "ran"


def test_a_module_of_the_folders_own_is_not_run(tmp_path, marker, monkeypatch):
    folder = save_bi_encoder(tmp_path, "BertModel", "mean")
    (folder / "custom.py").write_text(CODE.format(marker=str(marker)))
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["type"] = "custom.Module"
    (folder / "modules.json").write_text(json.dumps(modules))
    monkeypatch.chdir(folder)
    refused(DualEncoder, folder)
    refused(export_model, folder, tmp_path / "onnx", "dual-encoder")
    for options in ({"trust_remote_code": True}, {"model_kwargs": {"trust_remote_code": True}}):
        refused(partial(DualEncoder, folder, **options), why="pass the loaded model")
    assert not marker.exists()
    with pytest.raises(Exception):  # noqa: B017
        library.SentenceTransformer(str(folder), device="cpu", trust_remote_code=True)
    assert marker.exists()  # so it would run if it were trusted


@pytest.mark.parametrize("kind", ["BertModel", "BertForSequenceClassification"])
def test_an_architecture_of_the_folders_own_is_not_run(tmp_path, marker, kind):
    folder = save_hf(tmp_path / "hf", kind, num_labels=1)
    (folder / "custom.py").write_text(CODE.format(marker=str(marker)))
    own = {
        "AutoConfig": "custom.Config",
        "AutoModel": "custom.Model",
        "AutoModelForSequenceClassification": "custom.Scorer",
    }
    change(folder / "config.json", auto_map=own, model_type="custom")
    refused(DualEncoder if kind == "BertModel" else CrossEncoder, folder)
    refused(CrossEncoderModel.new, folder, CrossEncoderConfig())
    assert not marker.exists()
