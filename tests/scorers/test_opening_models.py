"""What users call a model, and what opening one costs."""

import json
import struct
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from scorer_helpers import collect, grid
from tiny_models import save_hf

import crossknn.scorers
from crossknn.errors import CrossknnError, InputError, MissingExtraError
from crossknn.scorers import (
    CallableScorer,
    CrossEncoder,
    DualEncoder,
    HttpScorer,
    MatrixScorer,
    OnnxCrossEncoder,
    PredictScorer,
    as_scorer,
)


class Model:
    def predict(self, pairs):
        return [0.0] * len(pairs)


def test_everything_a_user_may_have_becomes_a_scorer():
    scorer = CallableScorer(lambda pairs: [0.0] * len(pairs))
    assert as_scorer(scorer) is scorer
    assert isinstance(as_scorer(), OnnxCrossEncoder)
    assert isinstance(as_scorer("bundled"), OnnxCrossEncoder)
    assert isinstance(as_scorer("http://localhost:1/rerank"), HttpScorer)
    assert isinstance(as_scorer(np.zeros((2, 3))), MatrixScorer)
    assert isinstance(as_scorer(Model()), PredictScorer)
    assert isinstance(as_scorer(len), CallableScorer)
    with pytest.raises(InputError, match="cannot score with int"):
        as_scorer(3)
    found = collect(as_scorer(Model()), grid(1, 2), ["q"], ["a", "b"])
    np.testing.assert_array_equal(found, [0, 0])


@pytest.mark.parametrize("name", ["./absent", "/absent", "a/b/c", "", "two words"])
@pytest.mark.parametrize("open_model", [CrossEncoder, DualEncoder])
def test_paths_that_are_not_there_are_refused_without_the_network(name, open_model):
    with pytest.raises(InputError, match="no model folder"):
        open_model(name)


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"")
    with pytest.raises(InputError, match="is a file"):
        CrossEncoder(tmp_path / "model.onnx")


@pytest.mark.parametrize("name", ["best.ckpt", "pytorch_model.bin", "model.torch"])
def test_a_checkpoint_is_made_a_folder_first(tmp_path, name):
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(
        InputError, match=r"is a file.*; a checkpoint is .* crossknn-lab convert CHECK"
    ):
        CrossEncoder(tmp_path / name)


def scores_of(scorer, queries, items):
    return collect(scorer, grid(len(queries), len(items)), queries, items)


@pytest.fixture
def published(tmp_path):
    """Folders of both kinds as sentence-transformers writes them, and the plain models."""
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    library = pytest.importorskip("sentence_transformers")
    source = save_hf(tmp_path / "plain", "BertForSequenceClassification", num_labels=1)
    plain = transformers.BertForSequenceClassification.from_pretrained(source).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    plain.bert.save_pretrained(tmp_path / "encoder")
    tokenizer.save_pretrained(tmp_path / "encoder")
    library.CrossEncoder(str(source), device="cpu").save_pretrained(str(tmp_path / "cross-encoder"))
    library.SentenceTransformer(str(tmp_path / "encoder"), device="cpu").save(
        str(tmp_path / "bi-encoder")
    )
    return tmp_path, plain, tokenizer


QUERIES, ITEMS = ["the red oak", "elm"], ["seal", "old crab in the sand", "tern"]


def forward(model, batch):
    import torch

    with torch.inference_mode():
        return model(**batch)


@pytest.mark.torch
def test_hub_names_of_both_kinds(published, monkeypatch):
    folder, plain, tokenizer = published

    def download(name, **options):
        assert "*.safetensors" in options["allow_patterns"]
        return str(folder / name.removeprefix("someone/"))

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    pairs = [(query, item) for query in QUERIES for item in ITEMS]
    batch = tokenizer(
        [q for q, _ in pairs], [i for _, i in pairs], padding=True, return_tensors="pt"
    )
    expected = forward(plain, batch).logits[:, 0].numpy()
    found = scores_of(CrossEncoder("someone/cross-encoder", device="cpu"), QUERIES, ITEMS)
    np.testing.assert_allclose(found, expected, atol=1e-5)

    batch = tokenizer(ITEMS, padding=True, return_tensors="pt")
    mask = batch["attention_mask"][:, :, None]
    states = forward(plain.bert, batch).last_hidden_state
    vectors = ((states * mask).sum(1) / mask.sum(1)).numpy()
    found = DualEncoder("someone/bi-encoder", device="cpu").encode_items(ITEMS)
    np.testing.assert_allclose(found, vectors, atol=1e-5)


@pytest.mark.torch
def test_pickled_weights_are_looked_into(published):
    """A head that is missing from pytorch_model.bin is seen too."""
    import torch

    folder, plain, tokenizer = published
    (folder / "plain" / "model.safetensors").unlink()
    pickled = folder / "plain" / "pytorch_model.bin"
    torch.save(plain.state_dict(), pickled)
    scorer = CrossEncoder(folder / "plain", device="cpu")
    batch = tokenizer(QUERIES[:1], ITEMS[:1], return_tensors="pt")
    expected = forward(plain, batch).logits[0].numpy()
    np.testing.assert_allclose(scores_of(scorer, QUERIES[:1], ITEMS[:1]), expected, atol=1e-5)
    states = {key: value for key, value in plain.state_dict().items() if "classifier" not in key}
    torch.save(states, pickled)
    with pytest.raises(
        InputError, match=r"would be random; an \[EMB\] checkpoint is first made one"
    ):
        CrossEncoder(folder / "plain")
    pickled.write_bytes(b"x")
    with pytest.raises(InputError, match=r"the weights in .*plain are damaged"):
        CrossEncoder(folder / "plain")


@pytest.mark.torch
def test_what_cannot_score_is_refused_with_the_reason(published):
    folder, _, _ = published
    with pytest.raises(InputError, match=r"bi-encoder is a bi-encoder: .*open it with DualEncoder"):
        CrossEncoder(folder / "bi-encoder")
    with pytest.raises(InputError, match=r"no classification head \(BertModel\)"):
        CrossEncoder(folder / "encoder")
    settings = json.loads((folder / "plain" / "config.json").read_text())
    settings["id2label"] = {"0": "no", "1": "yes"}
    (folder / "plain" / "config.json").write_text(json.dumps(settings))
    with pytest.raises(InputError, match="has 2 outputs for a pair"):
        CrossEncoder(folder / "plain")
    with pytest.raises(InputError, match=r"is a cross-encoder: .*open it with CrossEncoder"):
        DualEncoder(folder / "cross-encoder")


@pytest.mark.torch
@pytest.mark.parametrize("open_model", [CrossEncoder, DualEncoder])
def test_a_hub_name_without_a_network_is_one_sentence(open_model, monkeypatch):
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="no folder 'nobody/nothing', and the Hugging") as caught:
        open_model("nobody/nothing")
    assert "\n" not in str(caught.value)


def run(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )


def test_importing_loads_nothing_heavy():
    code = """
import sys
import crossknn.scorers
for name in ("callable", "http", "late", "library", "matrix", "onnx", "opening"):
    __import__("crossknn.scorers." + name)
heavy = {"torch", "onnxruntime", "tokenizers", "urllib3", "sentence_transformers", "transformers"}
sys.exit(repr(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)
"""
    done = run(code)
    assert done.returncode == 0, done.stderr


def test_without_torch_the_message_names_the_extra(tmp_path):
    (tmp_path / "config.json").write_text(
        '{"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}'
    )
    header = json.dumps(
        {"classifier.weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
    ).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    code = f"""
import sys
for name in ("torch", "sentence_transformers", "huggingface_hub"):
    sys.modules[name] = None
from crossknn.errors import MissingExtraError
from crossknn.scorers import CrossEncoder, DualEncoder
for open_model in (CrossEncoder, DualEncoder):
    for name in ({str(tmp_path)!r}, "someone/some-model"):
        if open_model is DualEncoder and name != "someone/some-model":
            continue
        try:
            open_model(name)
        except MissingExtraError as error:
            assert "pip install 'crossknn[torch]'" in str(error), error
        else:
            sys.exit("no error")
"""
    done = run(code)
    assert done.returncode == 0, done.stderr
    assert issubclass(MissingExtraError, CrossknnError)


def test_every_public_name_is_there():
    without_torch = find_spec("torch") is None
    for name in crossknn.scorers.__all__:
        if without_torch and name.startswith("Torch"):
            with pytest.raises(MissingExtraError, match=r"pip install 'crossknn\[torch\]'"):
                getattr(crossknn.scorers, name)
            continue
        assert getattr(crossknn.scorers, name).__module__.startswith("crossknn.scorers.")
    with pytest.raises(AttributeError):
        _ = crossknn.scorers.absent
