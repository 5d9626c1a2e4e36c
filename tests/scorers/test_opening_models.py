"""What users call a model, and what opening one costs."""

import subprocess
import sys

import numpy as np
import pytest
from scorer_helpers import collect, grid

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
for name in ("cache", "callable", "cross_encoder", "encoder", "http", "matrix", "onnx", "predict"):
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
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
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
    for name in crossknn.scorers.__all__:
        assert getattr(crossknn.scorers, name).__module__.startswith("crossknn.scorers.")
    with pytest.raises(AttributeError):
        _ = crossknn.scorers.absent
