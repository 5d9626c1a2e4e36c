"""The files of CMC's authors against a forward pass of plain torch and transformers.

They are synthetic: the names, the layout and the options that the authors' code saves, at a small
width. What is expected is computed as it does: texts padded to their full length, `[CLS]` states,
layers of torch that each keep half of their input, inner products.
"""

from __future__ import annotations

import argparse
import json
import os

import numpy as np
import pytest
from tiny_models import CONTENT, save_bert

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from commands import run  # noqa: E402

from crossknn.data.marks import marked_item, marked_query  # noqa: E402
from crossknn.errors import InputError  # noqa: E402
from crossknn.models.late.model import LateInteractionModel  # noqa: E402
from crossknn_lab.checkpoints import open_checkpoint  # noqa: E402

pytestmark = pytest.mark.torch

D, HEADS, WIDTH = 16, 4, 2048
OPTIONS = {
    "type_model": "extend_multi_dot",
    "dataset": "zeshel",
    "L": 64,
    "num_heads": HEADS,
    "num_layers": 2,
    "num_mention_vecs": 1,
    "identity_bert": True,
    "fixed_initial_weight": True,
    "batch_first": True,
    "token_type": False,
    "inputmark": True,
    "layernorm": False,
    "skip_connection": False,
}
RNG = np.random.default_rng(0)


def words(count):
    return list(RNG.choice(CONTENT, count))


# (left, mention, right) and (title, description): short ones, and ones that must be cut.
MENTIONS = [(words(3), words(2), words(4)), (words(40), words(2), words(40)), ([], words(1), [])]
ENTITIES = [(words(2), words(9)), (words(1), words(80)), (words(3), []), (words(2), words(20))]
QUERIES = [marked_query(*(" ".join(part) for part in mention)) for mention in MENTIONS]
ITEMS = [marked_item(*(" ".join(part) for part in entity)) for entity in ENTITIES]


class Half(torch.nn.Module):
    """A layer that keeps half of its input."""

    def __init__(self, weight=None):
        super().__init__()
        self.encoder_layer = torch.nn.TransformerEncoderLayer(D, HEADS, batch_first=True)
        if weight is not None:
            self.weight = torch.nn.Parameter(torch.tensor([weight]))

    def forward(self, x, **masks):
        return (x + self.encoder_layer(x)) / 2


class Theirs(torch.nn.Module):
    """The modules whose names are in the files."""

    def __init__(self, folder, layer=None, layers=2):
        super().__init__()
        torch.manual_seed(0)
        self.mention_encoder, self.entity_encoder = (
            transformers.BertModel(transformers.BertConfig.from_pretrained(folder)) for _ in "qi"
        )
        self.extend_multi_transformerencoderlayer = layer or Half()
        self.extend_multi_transformerencoder = torch.nn.TransformerEncoder(
            self.extend_multi_transformerencoderlayer, layers, enable_nested_tensor=False
        )
        self.extend_multi_linearhead = torch.nn.Linear(D, 1)
        self.extend_multi_token_type_embeddings = torch.nn.Embedding(2, D)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        self.eval()

    @torch.inference_mode()
    def scores(self, mentions, entities):
        first = [
            tower(input_ids=ids, attention_mask=(ids > 0).long())[0][:, 0]
            for tower, ids in ((self.mention_encoder, mentions), (self.entity_encoder, entities))
        ]
        lists = first[1].expand(len(mentions), -1, -1)
        found = torch.cat([first[0][:, None], lists], dim=1)
        for layer in self.extend_multi_transformerencoder.layers:
            found = layer(found)
        return (found[:, :1] @ found[:, 1:].transpose(1, 2))[:, 0].numpy()


def padded(fast, tokens, length):
    ids = fast.convert_tokens_to_ids(["[CLS]", *tokens, "[SEP]"])
    return ids + [0] * (length - len(ids))


def mention_ids(fast, mention, length):
    """As many words on each side as there is room for; the room of a short side is the other's."""
    left, inside, right = mention
    inside = ["[unused0]", *inside, "[unused1]"]
    room = length - 2 - len(inside)
    n_left = min(len(left), max(room // 2, room - len(right)))
    kept = [*left[len(left) - n_left :], *inside, *right]
    return padded(fast, kept[: length - 2], length)


def entity_ids(fast, entity, length):
    return padded(fast, [*entity[0], "[unused2]", *entity[1]][: length - 2], length)


def expected(model, base, lengths=(32, 32)):
    fast = transformers.AutoTokenizer.from_pretrained(base)
    return model.scores(
        torch.tensor([mention_ids(fast, mention, lengths[0]) for mention in MENTIONS]),
        torch.tensor([entity_ids(fast, entity, lengths[1]) for entity in ENTITIES]),
    )


def found(model):
    texts = model.encoding
    with torch.inference_mode():
        query, mask = model.states(texts.texts(QUERIES, queries=True), queries=True)
        items, item_mask = model.states(texts.texts(ITEMS, queries=False), queries=False)
        lists = (part.expand(len(QUERIES), *part.shape) for part in (items, item_mask))
        return model.head(query, mask, *lists).numpy()


def same(made, wanted):
    assert wanted.std() > 0.005 * np.abs(wanted).max()  # or the comparison says little
    np.testing.assert_allclose(made, wanted, atol=1e-5 * np.abs(wanted).max())


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return save_bert(tmp_path_factory.mktemp("base"), positions=256)


@pytest.fixture(scope="module")
def theirs(base):
    return Theirs(base)


def save(path, states, options=None):
    optimizer = {"state": {0: {"exp_avg": torch.zeros(7)}}, "param_groups": [{"names": ["a"]}]}
    content = {
        "opt": argparse.Namespace(**(OPTIONS | (options or {}))),
        "sd": states,
        "perf": np.float64(0.6),
        "epoch": 5,
        "opt_sd": optimizer,
        "scheduler_sd": {"last_epoch": 9},
        "step_num": 3,
    }
    torch.save(content, path)
    return path


def test_scores_are_those_of_the_plain_forward_pass(tmp_path, base, theirs):
    path = save(tmp_path / "pytorch_model.bin", theirs.state_dict())
    model = open_checkpoint(path, encoder=base)
    assert model.config.options == {
        "layers": 2,
        "heads": HEADS,
        "feed_forward": WIDTH,
        "dropout": 0.1,
        "variant": "reference",
    }
    assert not model.training
    wanted = expected(theirs, base)
    same(found(model), wanted)
    folder = model.save_pretrained(tmp_path / "ours")
    same(found(LateInteractionModel.from_pretrained(folder)), wanted)


def test_older_names_and_files_of_weights_with_options_alone(tmp_path, base, theirs):
    older = {n.replace("multi_t", "multi.t"): v for n, v in theirs.state_dict().items()}
    assert "extend_multi.transformerencoder.layers.0.encoder_layer.norm1.weight" in older
    path = tmp_path / "epoch_5.bin"
    torch.save({"opt": argparse.Namespace(num_heads=HEADS, L=64), "sd": older}, path)
    same(found(open_checkpoint(path, encoder=base)), expected(theirs, base))


def test_layers_without_a_skip_of_their_own(tmp_path, base):
    layer = torch.nn.TransformerEncoderLayer(D, HEADS, dim_feedforward=24, batch_first=True)
    theirs = Theirs(base, layer, layers=3)
    path = save(tmp_path / "pytorch_model.bin", theirs.state_dict(), {"identity_bert": False})
    model = open_checkpoint(path, encoder=base)
    options = model.config.options
    assert (options["variant"], options["layers"], options["feed_forward"]) == ("none", 3, 24)
    same(found(model), expected(theirs, base))


def test_queries_to_wikipedia_are_short(tmp_path, base, theirs):
    options = {"dataset": "wikipedia", "L": 80, "inputmark": False}
    path = save(tmp_path / "pytorch_model.bin", theirs.state_dict(), options)
    model = open_checkpoint(path, encoder=base)
    assert (model.config.query_length, model.config.item_length) == (32, 48)
    same(found(model), expected(theirs, base, (32, 48)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"token_type": True}, "was trained with token_type = True; only False is known"),
        ({"type_model": "extend_multi"}, "only 'extend_multi_dot' is known"),
        ({"num_mention_vecs": 2}, "num_mention_vecs = 2; only 1 is known"),
        ({"batch_first": False}, "batch_first = False; only True is known"),
        ({"layernorm": True}, "layernorm = True"),
        ({"inputmark": False}, "inputmark = False"),
        ({"dataset": "msmarco"}, "was trained on 'msmarco', whose texts have marks of their own"),
        ({"num_heads": "four"}, "lacks opt with num_heads and L"),
        ({"num_heads": 5}, "heads is 5, which does not divide the 16 dimensions"),
        ({"L": None}, "lacks opt with num_heads and L"),
    ],
)
def test_options_that_make_another_model_are_refused(tmp_path, base, theirs, options, message):
    path = save(tmp_path / "pytorch_model.bin", theirs.state_dict(), options)
    with pytest.raises(InputError, match=message) as caught:
        open_checkpoint(path, encoder=base)
    assert "\n" not in str(caught.value)


def without(states, part):
    return {name: value for name, value in states.items() if part not in name}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: without(s, "entity_encoder"), r"no cmc checkpoint: it lacks entity_encoder\.\*$"),
        (lambda s: without(s, "layers.1.encoder_layer.norm2"), r"lacks extend_multi_\S*layers\.1\.encoder_layer\.norm2\.bias"),
        (lambda s: without(s, ".layers."), r"lacks extend_multi_transformerencoder\.layers\.\*|lacks mention_encoder"),
        (lambda s: s | {"mlp.fc.weight": torch.zeros(1)}, r"it has mlp\.fc\.weight, which does not belong$"),
        (lambda s: s | {"extend_multi_transformerencoder.layers.1.encoder_layer.extra": torch.zeros(1)}, r"has \S*extra, which does not belong$"),
        (lambda s: s | {"extend_multi_transformerencoder.layers.1.encoder_layer.norm1.bias": torch.zeros(3)}, r"norm1\.bias has the shape \(3,\), expected \(16,\)"),
    ],
)  # fmt: skip
def test_other_keys_are_named(tmp_path, base, theirs, change, message):
    path = save(tmp_path / "pytorch_model.bin", change(theirs.state_dict()))
    with pytest.raises(InputError, match=message) as caught:
        open_checkpoint(path, encoder=base)
    assert "\n" not in str(caught.value)


def test_a_learned_share_of_the_input_is_refused(tmp_path, base):
    states = Theirs(base, Half(weight=-5.0)).state_dict()
    path = save(tmp_path / "pytorch_model.bin", states, {"fixed_initial_weight": False})
    with pytest.raises(InputError, match=r"has learned how much of a layer's input to keep"):
        open_checkpoint(path, encoder=base)


def test_files_without_options_are_refused(tmp_path, base, theirs):
    path = tmp_path / "pytorch_model.bin"
    for content in ({"sd": theirs.state_dict(), "epoch": 0}, theirs.state_dict()):
        torch.save(content, path)
        with pytest.raises(InputError, match="lacks opt with num_heads and L"):
            open_checkpoint(path, encoder=base)


class Evil:
    """Creates a folder if a pickle of it is run."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_nothing_in_the_options_is_run(tmp_path, base, theirs):
    trap = tmp_path / "trap"
    path = save(tmp_path / "x.bin", theirs.state_dict(), {"run_id": Evil(trap)})
    open_checkpoint(path, encoder=base)
    assert not trap.exists()
    torch.load(path, weights_only=False)  # the trap is one
    assert trap.exists()


def test_the_command_converts(tmp_path, base, theirs, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "pytorch_model.bin", theirs.state_dict())
    assert run(["convert", "pytorch_model.bin", "ours", "--encoder", str(base)]) == 0
    said = capsys.readouterr().out
    assert said == "ours: a late-interaction model (cmc); use it with  crossknn encode INDEX ours\n"
    assert run(["convert", "pytorch_model.bin", "new", "--encoder", str(base), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["kind"] == "late-interaction model (cmc)"
    assert made["settings"]["options"]["variant"] == "reference"
    same(found(LateInteractionModel.from_pretrained("new")), expected(theirs, base))
    with pytest.raises(InputError, match="is a crossknn model already"):
        open_checkpoint("new")
