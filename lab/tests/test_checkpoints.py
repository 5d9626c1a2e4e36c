"""Published checkpoints against an independent forward pass of plain torch and transformers.

The checkpoints are synthetic: the published names, layouts and file formats, at a small width. What
is expected is computed as the authors' code does it: halves padded to their full length, then put
together (ANNCUR); layers of torch that each keep half of their input (CMC).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import types
from collections import OrderedDict
from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import tiny_models  # noqa: E402

from crossknn import CrossEncoder, DualEncoder  # noqa: E402
from crossknn.errors import InputError  # noqa: E402
from crossknn_lab.checkpoints import open_checkpoint  # noqa: E402
from crossknn_lab.cli import run  # noqa: E402
from crossknn_train.models.late import LateInteractionModel  # noqa: E402
from crossknn_train.reading import ITEM_TEMPLATE, marked_query  # noqa: E402

pytestmark = pytest.mark.torch

SPECIAL = ["[PAD]", "[unused0]", "[unused1]", "[unused2]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [f"word{n}" for n in range(30)]
RNG = np.random.default_rng(0)
OPTIONS = {"type_model": "extend_multi_dot", "dataset": "zeshel", "L": 64, "num_heads": 4}


def words(count):
    return " ".join(RNG.choice(WORDS, count))


# (left, mention, right) and (title, description): short ones, and ones that must be cut.
MENTIONS = [(words(3), words(2), words(5)), (words(90), words(3), words(90)), ("", words(1), words(200))]  # fmt: skip
ENTITIES = [(words(2), words(9)), (words(1), words(200)), (words(3), ""), (words(2), words(60))]
QUERIES = [marked_query(*mention) for mention in MENTIONS]
ITEMS = [ITEM_TEMPLATE.format(title=title, text=text) for title, text in ENTITIES]
TEXTS = [words(4), words(11), words(1)]


def tokenizer(names=(*SPECIAL, *WORDS)):
    return transformers.BertTokenizer(vocab={token: n for n, token in enumerate(names)})


def config(**settings):
    sizes = {"vocab_size": 38, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"intermediate_size": 48, "max_position_embeddings": 256, "initializer_range": 0.3}
    return transformers.BertConfig(**sizes | settings)


def bert(seed, **settings):
    torch.manual_seed(seed)
    return transformers.BertModel(config(**settings)).eval()


@pytest.fixture
def base(tmp_path):
    """The folder of the encoder that the checkpoints were trained from."""
    tokenizer().save_pretrained(tmp_path / "base")
    config().save_pretrained(tmp_path / "base")
    return tmp_path / "base"


class Config:
    """Stands for the authors' configuration object."""

    __module__ = "absent_module"

    def __init__(self, **settings):
        vars(self).update(settings)


class AttributeDict(dict):
    """Stands for the trainer's mapping of hyperparameters."""

    __module__ = "absent_module"


def save(path, states, **settings):
    """Write a checkpoint as the trainer does, with objects of classes that are then gone."""
    module = types.SimpleNamespace(Config=Config, AttributeDict=AttributeDict)
    content = {
        "state_dict": OrderedDict(states),
        "optimizer_states": [{"state": {0: {"exp_avg": torch.zeros(7)}}, "lr": 1e-5}],
        "callbacks": {AttributeDict: {"best_model_score": np.float64(0.5), "dirpath": None}},
        "hyper_parameters": AttributeDict(config=Config(**settings)),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "absent_module", module)
        torch.save(content, path)
    return path


def prefixed(prefix, model):
    return {prefix + name: value for name, value in model.state_dict().items()}


def emb_states(model):
    return prefixed("model.encoder.bert_model.", model)


def mention_ids(mention, length=128):
    """BLINK's representation of a mention: as much of both sides as there is room for."""
    left, inside, right = (part.split() for part in mention)
    inside = ["[unused0]", *inside, "[unused1]"]
    room = length - 2 - len(inside)
    n_left = min(len(left), max(room // 2, room - len(right)))
    return padded([*left[len(left) - n_left :], *inside, *right], length)


def entity_ids(entity, length=128):
    return padded([*entity[0].split(), "[unused2]", *entity[1].split()], length)


def padded(tokens, length):
    ids = tokenizer().convert_tokens_to_ids(["[CLS]", *tokens[: length - 2], "[SEP]"])
    return ids + [0] * (length - len(ids))


@torch.inference_mode()
def first_states(model, ids_of, texts, length=128):
    ids = torch.tensor([ids_of(text, length) for text in texts])
    return model(input_ids=ids, attention_mask=(ids > 0).long()).last_hidden_state[:, 0]


def joint(model):
    """Ids (12, 255) of all pairs, padded between the halves, and the model's outputs for them."""
    ids = torch.tensor([mention_ids(m) + entity_ids(e)[1:] for m in MENTIONS for e in ENTITIES])
    kinds = torch.zeros_like(ids)
    kinds[:, 128:] = (ids[:, 128:] > 0).long()
    with torch.inference_mode():
        return ids, model(input_ids=ids, attention_mask=(ids > 0).long(), token_type_ids=kinds)


def emb_scores(model):
    ids, found = joint(model)
    places = [(ids == token).int().argmax(1) for token in (1, 2, 3)]
    states = found.last_hidden_state
    start, end, entity = (states[torch.arange(len(ids)), place] for place in places)
    return ((start + end) / 2 * entity).sum(-1).numpy()


def scores_of(folder, queries=QUERIES, items=ITEMS):
    return tiny_models.scores_of(CrossEncoder(folder, device="cpu"), queries, items)


def refused(message, path, encoder):
    with pytest.raises(InputError, match=message) as caught:
        open_checkpoint(path, encoder=encoder)
    assert "\n" not in str(caught.value)


def same(found, expected):
    scale = np.abs(expected).max()
    assert expected.std() > 0.005 * scale  # or the comparison says little
    np.testing.assert_allclose(found / scale, expected / scale, atol=1e-5)


@pytest.mark.parametrize("bare", [False, True])
def test_zeshel_emb_is_the_padded_forward_pass(tmp_path, base, bare):
    model, path = bert(1), tmp_path / "emb.ckpt"
    save(path, emb_states(model))
    if bare:  # weights alone
        torch.save(prefixed("encoder.bert_model.", model), path)
    opened = open_checkpoint(path, encoder=base)
    assert (opened.config.head, opened.config.item_position) == ("emb", 128)
    same(scores_of(opened.save_pretrained(tmp_path / "ours")), emb_scores(model))


@pytest.mark.parametrize("pooling", ["cls_w_lin", "cls"])
def test_zeshel_cls_has_its_linear_layer(tmp_path, base, pooling):
    model, linear = bert(2), torch.nn.Linear(32, 1)
    states = emb_states(model) | prefixed("model.encoder.additional_linear.", linear)
    path = save(tmp_path / "cls.ckpt", states, pooling_type=pooling)
    _, found = joint(model)
    pooled = found.pooler_output if pooling == "cls_w_lin" else found.last_hidden_state[:, 0]
    with torch.inference_mode():
        expected = linear(pooled)[:, 0].numpy()
    folder = open_checkpoint(path, encoder=base).save_pretrained(tmp_path / "ours")
    same(scores_of(folder), expected)


@pytest.mark.parametrize("towers", [2, 1])
def test_zeshel_dual_is_two_towers_and_an_inner_product(tmp_path, base, towers):
    query, item = bert(3), bert(4)
    states = prefixed("model.input_encoder.bert_model.", query)
    states |= prefixed("model.label_encoder.bert_model.", item)
    if towers == 1:
        item, states = query, emb_states(query)
    path = save(tmp_path / "dual.ckpt", states, model_type="bi_enc", pooling_type="cls")
    encoder = DualEncoder(open_checkpoint(path, encoder=base).save_pretrained(tmp_path / "ours"))
    found = first_states(query, mention_ids, MENTIONS), first_states(item, entity_ids, ENTITIES)
    np.testing.assert_allclose(encoder.encode_queries(QUERIES), found[0], atol=1e-5)
    np.testing.assert_allclose(encoder.encode_items(ITEMS), found[1], atol=1e-5)


def test_lengths_are_those_of_the_run(tmp_path, base):
    (tmp_path / "one").mkdir()  # a folder with one checkpoint
    save(tmp_path / "one/emb.ckpt", emb_states(bert(1)), max_input_len=32, max_label_len=64)
    found = open_checkpoint(tmp_path / "one", encoder=base).config
    lengths = found.query_length, found.item_length, found.item_position
    assert (*lengths, found.max_length) == (32, 63, 32, 95)
    path = save(tmp_path / "wide.ckpt", emb_states(bert(1, hidden_size=64)))
    refused("trained from .*: size mismatch for embeddings", path, encoder=base)


def test_an_encoder_must_be_the_right_one(tmp_path, base):
    path = save(tmp_path / "emb.ckpt", emb_states(bert(1)))
    absent = tmp_path / "absent"
    refused("cannot load a tokenizer|cannot read the configuration", path, encoder=absent)
    for names in (["[PAD]", *SPECIAL[4:], *WORDS], [*SPECIAL, *WORDS, "another"]):
        tokenizer(names).save_pretrained(base)
        refused("was not trained with the tokenizer of", path, encoder=base)
    transformers.DistilBertConfig().save_pretrained(base)
    refused("is a distilbert, and .* holds a BERT", path, encoder=base)


class Evil:
    """Runs a function if a pickle of it is run."""

    def __init__(self, *made):
        self.made = made

    def __reduce__(self):
        return self.made


def test_nothing_in_a_pickle_is_run(tmp_path, base):
    trap, path, model = tmp_path / "trap", tmp_path / "evil.ckpt", bert(1)
    evil = Evil(eval, (f"__import__('os').mkdir({str(trap)!r})",))
    content = {"hyper_parameters": {"config": evil}, "callbacks": [evil, {Evil: evil}]}
    torch.save({"state_dict": OrderedDict(emb_states(model))} | content, path)
    folder = open_checkpoint(path, encoder=base).save_pretrained(tmp_path / "ours")
    same(scores_of(folder), emb_scores(model))
    torch.save({"model.encoder.bert_model.x": evil}, path)
    refused("holds no weights", path, encoder=base)
    torch.save({"a": Evil(os.mkdir, (str(trap),))}, path)
    refused("not a readable torch checkpoint", path, encoder=base)
    assert not trap.exists()
    torch.load(path, weights_only=False)  # the trap is one
    assert trap.exists()


def test_files_that_are_no_checkpoints(tmp_path, base):
    path, folder = tmp_path / "x.ckpt", tmp_path / "empty"
    good = save(tmp_path / "good.ckpt", emb_states(bert(1))).read_bytes()
    torch.save(emb_states(bert(1)), tmp_path / "old", _use_new_zipfile_serialization=False)
    for content in (b"", b"hello", (tmp_path / "old").read_bytes(), good[:9999]):
        path.write_bytes(content)
        refused("not a readable torch checkpoint: ", path, encoder=base)
    folder.mkdir()
    refused(r"must hold one checkpoint file \(.*\) .* has none", folder, base)
    for name in ("a.ckpt", "b.pt"):
        (folder / name).write_bytes(good)
    refused(r"and has 2 \(a.ckpt, \.\.\.\)", folder, base)


class Half(torch.nn.Module):
    """A layer of the authors' code: half of its input is kept."""

    def __init__(self):
        super().__init__()
        self.encoder_layer = torch.nn.TransformerEncoderLayer(32, 4, batch_first=True)

    def forward(self, x):
        return 0.5 * self.encoder_layer(x) + 0.5 * x


PLAIN = partial(torch.nn.TransformerEncoderLayer, 32, 4, 24, batch_first=True)


class Theirs(torch.nn.Module):
    """What the authors' code trains: two BERTs and a stack of layers over [query; candidates]."""

    def __init__(self, make=Half, layers=2):
        super().__init__()
        self.mention_encoder, self.entity_encoder = bert(6), bert(7)
        torch.manual_seed(8)
        self.extend_multi_transformerencoder = torch.nn.Module()
        made = torch.nn.ModuleList(make() for _ in range(layers))
        self.extend_multi_transformerencoder.layers = made
        self.eval()

    @torch.inference_mode()
    def scores(self, lengths):
        query = first_states(self.mention_encoder, mention_ids, MENTIONS, lengths[0])
        item = first_states(self.entity_encoder, entity_ids, ENTITIES, lengths[1])
        x = torch.cat([query.unsqueeze(1), item.expand(len(MENTIONS), -1, -1)], dim=1)
        for layer in self.extend_multi_transformerencoder.layers:
            x = layer(x)
        return (x[:, :1] @ x[:, 1:].transpose(1, 2))[:, 0].numpy()


def save_cmc(path, states, **options):
    torch.save({"opt": argparse.Namespace(**OPTIONS | options), "sd": states}, path)
    return path


def cmc_scores(model):
    with torch.inference_mode():
        query = model.outputs(model.encoding.texts(QUERIES, queries=True), queries=True)
        items = model.outputs(model.encoding.texts(ITEMS, queries=False), queries=False)
        shared = [part.expand(len(QUERIES), *part.shape) for part in items]
        return model.head(*query, *shared).numpy()


WIKIPEDIA = {"dataset": "wikipedia", "L": 80, "inputmark": False, "identity_bert": False}


@pytest.mark.parametrize(
    ("make", "given", "variant", "layers", "width", "lengths"),
    [
        (Half, {}, "reference", 2, 2048, (32, 32)),
        (PLAIN, WIKIPEDIA, "none", 3, 24, (32, 48)),  # no skip, and queries to Wikipedia
    ],
)
def test_cmc_scores_as_the_plain_forward_pass(
    tmp_path, base, make, given, variant, layers, width, lengths
):
    theirs = Theirs(make, layers)
    path = save_cmc(tmp_path / "pytorch_model.bin", theirs.state_dict(), **given)
    model = open_checkpoint(path, encoder=base)
    options = {"layers": layers, "heads": 4, "feed_forward": width, "dropout": 0.1}
    assert model.config.options == options | {"variant": variant, "scale": 1.0}
    assert (model.config.query_length, model.config.item_length) == lengths
    folder = model.save_pretrained(tmp_path / "ours")
    same(cmc_scores(LateInteractionModel.from_pretrained(folder)), theirs.scores(lengths))


BERT = "model.encoder.bert_model."
LAYER = "extend_multi_transformerencoder.layers.1.encoder_layer."
LINEAR = prefixed("model.encoder.additional_linear.", torch.nn.Linear(32, 1))


@pytest.mark.parametrize(
    ("save", "changes", "settings", "message"),
    [
        (save, {"model.a.b": torch.zeros(1)}, {}, r"is of no known layout: .* it has a\.b, encoder"),
        (save, {BERT + "embeddings.position_embeddings.weight": None}, {}, r"Missing key.*embeddings\.position_"),
        (save, {BERT + "encoder.layer.1.adapter.weight": torch.zeros(1)}, {}, "Unexpected key"),
        (save, LINEAR, {"pooling_type": "mean"}, "pooling_type = 'mean'; only"),
        (save, {}, {"model_type": "bi_enc", "pooling_type": "mean"}, "only 'cls' can"),
        (save, {}, {"max_input_len": 4}, "max_input_len and max_label_len are"),
        (save_cmc, {}, {"token_type": True}, "was trained with token_type = True; only False can be opened"),
        (save_cmc, {}, {"dataset": "msmarco"}, "dataset = 'msmarco'; only 'zeshel' and 'wikipedia'"),
        (save_cmc, {}, {"num_heads": 5}, "5 heads do not divide 32 dimensions"),
        (save_cmc, {}, {"L": None}, "lacks opt with num_heads and L"),
        (save_cmc, {LAYER + "norm2.bias": None}, {}, r"Missing key.*layers\.1\.norm2\.bias"),
        (save_cmc, {LAYER + "norm1.bias": torch.zeros(3)}, {}, "size mismatch for layers"),
    ],
)  # fmt: skip
def test_another_architecture_is_refused_by_its_names(
    tmp_path, base, save, changes, settings, message
):
    states = Theirs().state_dict() if save is save_cmc else emb_states(bert(1))
    states = {name: value for name, value in {**states, **changes}.items() if value is not None}
    refused(message, save(tmp_path / "other.ckpt", states, **settings), encoder=base)


def test_the_command_converts(tmp_path, base, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = bert(1)
    save(tmp_path / "emb.ckpt", emb_states(model))
    assert run(["convert", "emb.ckpt", "ours", "--encoder", "base", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["kind"], said["settings"]["item_position"]) == ("[EMB] cross-encoder", 128)
    same(scores_of("./ours"), emb_scores(model))
    assert "from emb.ckpt" in (tmp_path / "ours" / "README.md").read_text()
    assert run(["convert", "emb.ckpt", "ours", "--encoder", "base"]) == 2
    assert "not empty" in capsys.readouterr().err
    save_cmc(tmp_path / "x.bin", Theirs().state_dict())
    assert run(["convert", "x.bin", "cmc", "--encoder", "base"]) == 0
    assert "use it with  crossknn index prepare INDEX --late cmc\n" in capsys.readouterr().err
