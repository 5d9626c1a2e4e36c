"""What users call a model, and what opening one costs."""

import json
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import save_file
from tiny_models import save_hf, scores_of

from crossknn import CallableScorer, CrossEncoder, DualEncoder, HttpScorer
from crossknn.errors import InputError
from crossknn.scorers.library import PredictScorer, SentenceTransformerEncoder
from crossknn.scorers.opening import as_scorer, bundled_folder
from crossknn.scorers.plain import MatrixScorer
from crossknn.scorers.token_models import OnnxModel


class Model:
    """Any object that predicts."""

    def predict(self, pairs):
        return [len(q) - len(i) / 10 for q, i in pairs]


def test_everything_a_user_may_have_becomes_a_scorer():
    scorer = CallableScorer(lambda pairs: [0.0] * len(pairs))
    assert as_scorer(scorer) is scorer
    assert isinstance(as_scorer().runtime, OnnxModel)
    assert isinstance(as_scorer("bundled").runtime, OnnxModel)
    assert isinstance(as_scorer("http://localhost:1/rerank"), HttpScorer)
    assert isinstance(as_scorer(np.zeros((2, 3))), MatrixScorer)
    assert isinstance(as_scorer(len), CallableScorer)
    with pytest.raises(InputError, match="cannot score with int"):
        as_scorer(3)
    predicting = as_scorer(Model(), batch=4)
    assert isinstance(predicting, PredictScorer)
    expected = [len(q) - len(i) / 10 for q in QUERIES for i in ITEMS]
    np.testing.assert_allclose(scores_of(predicting, QUERIES, ITEMS), expected, rtol=1e-6)
    assert predicting.fingerprint is None
    assert PredictScorer(Model(), name="mine").fingerprint == "predict:mine"


@pytest.mark.parametrize("open_model", [CrossEncoder, DualEncoder])
def test_what_is_no_folder_is_refused_without_the_network(tmp_path, open_model):
    for name in ("./absent", "/absent", "a/b/c", "", "two words"):
        with pytest.raises(InputError, match="no model folder"):
            open_model(name)
    (tmp_path / "best.ckpt").write_bytes(b"")
    with pytest.raises(
        InputError, match=r"is a file.*: convert a checkpoint with .*crossknn-lab convert"
    ):
        open_model(tmp_path / "best.ckpt")


@pytest.fixture
def published(tmp_path):
    """Folders of both kinds: plain Hugging Face's, and as sentence-transformers writes them."""
    library = pytest.importorskip("sentence_transformers")
    source = save_hf(tmp_path / "plain", "BertForSequenceClassification", num_labels=1)
    library.CrossEncoder(str(source), device="cpu").save_pretrained(str(tmp_path / "cross-encoder"))
    save_hf(tmp_path / "encoder", "BertModel")
    model = library.SentenceTransformer(str(tmp_path / "encoder"), device="cpu")
    model.save(str(tmp_path / "bi-encoder"))
    return tmp_path


QUERIES, ITEMS = ["the red oak", "elm"], ["seal", "old crab in the sand", "tern"]


@pytest.mark.torch
def test_hub_names_of_both_kinds(published, monkeypatch):
    def download(name, **options):
        assert "*.safetensors" in options["allow_patterns"]
        return str(published / name.removeprefix("someone/"))

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    there, here = (
        scores_of(CrossEncoder(name, device="cpu"), QUERIES, ITEMS)
        for name in ("someone/cross-encoder", published / "plain")
    )
    np.testing.assert_array_equal(there, here)
    there, here = (
        DualEncoder(name, device="cpu").encode_items(ITEMS)
        for name in ("someone/bi-encoder", published / "encoder")
    )
    np.testing.assert_array_equal(there, here)


@pytest.mark.torch
@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_head_that_is_missing_and_damaged_weights_are_seen(published, name):
    import torch
    from safetensors.torch import load_file, save_file

    folder = published / "plain"
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    save = torch.save if name.endswith("bin") else save_file
    save({k: v for k, v in weights.items() if "classifier" not in k}, folder / name)
    with pytest.raises(InputError, match=r"be random"):
        CrossEncoder(folder)
    (folder / name).write_bytes(b"x")
    with pytest.raises(InputError, match=r"the weights in .*plain cannot be read"):
        CrossEncoder(folder)


@pytest.mark.torch
def test_what_cannot_score_is_refused_with_the_reason(published, monkeypatch):
    folder = published
    settings = json.loads((folder / "plain" / "config.json").read_text())
    for name, labels in (("plain", {"0": "no", "1": "yes"}), ("unsaid", None)):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "config.json").write_text(json.dumps(settings | {"id2label": labels}))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for open_model, name, message in (
        (CrossEncoder, folder / "bi-encoder", "is a bi-encoder: .*open it with DualEncoder"),
        (CrossEncoder, folder / "encoder", r"no classification head \(BertModel\)"),
        (CrossEncoder, folder / "plain", "has 2 outputs per pair"),
        (CrossEncoder, folder / "unsaid", "has 2 outputs per pair"),
        (DualEncoder, folder / "cross-encoder", "is a cross-encoder: .*open it with CrossEncoder"),
        (DualEncoder, "nobody/nothing", "no folder 'nobody/nothing', and the Hugging"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            open_model(name)
        assert "\n" not in str(caught.value)
    for model in (SentenceTransformerEncoder, PredictScorer):
        with pytest.raises(InputError, match=r"object (is not a bi-enc|has no predict)"):
            model(object())


@pytest.mark.torch
def test_the_fingerprint_follows_weights_and_length(published):
    import torch
    from sentence_transformers import CrossEncoder as TorchCrossEncoder

    folder = published / "plain"
    model = TorchCrossEncoder(str(folder), device="cpu")
    before = PredictScorer(model).fingerprint
    model.predict([("a", "b")])
    assert PredictScorer(model).fingerprint == before
    assert CrossEncoder(folder, device="cpu").fingerprint == before
    assert CrossEncoder(folder, device="cpu", max_length=20).fingerprint != before
    with torch.no_grad():
        next(iter(model.model.parameters())).add_(0.01)
    assert PredictScorer(model).fingerprint != before


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_without_torch_the_message_says_what_to_install(tmp_path):
    (tmp_path / "config.json").write_text(
        '{"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}'
    )
    save_file({"classifier.weight": np.zeros(1, np.float32)}, tmp_path / "model.safetensors")
    (tmp_path / "trained").mkdir()
    (tmp_path / "trained" / "cross_encoder.json").write_text("{}")
    run(f"""
import sys
for name in ("torch", "sentence_transformers", "huggingface_hub", "crossknn_train"):
    sys.modules[name] = None
import crossknn as ck
extra = "pip install 'crossknn[torch]'"
opened = [(ck.CrossEncoder, {str(tmp_path)!r}, extra)]
opened += [(ck.CrossEncoder, {str(tmp_path / "trained")!r}, "pip install crossknn-train")]
opened += [(make, "someone/some-model", extra) for make in (ck.CrossEncoder, ck.DualEncoder)]
for open_model, name, install in opened:
    try:
        open_model(name)
    except ck.CrossknnError as error:
        assert str(error).endswith(install), error
    else:
        sys.exit("no error")
""")


def test_cores_are_for_onnx_alone():
    assert CrossEncoder("bundled", cores=1).runtime._threads == 1
    assert CrossEncoder(bundled_folder("cross-encoder"), cores=3, threads=2).workers == 2
    assert isinstance(CrossEncoder("http://localhost:1", cores=2), HttpScorer)
