"""Published checkpoints against an independent forward pass of plain transformers.

The checkpoints are synthetic: the published names, layouts and file formats, at a small width. What
is expected is computed as the authors' code does it: halves padded to 128, then put together.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import sys
import types
from collections import OrderedDict

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from commands import run  # noqa: E402

from crossknn.data.marks import marked_item, marked_query  # noqa: E402
from crossknn.errors import InputError  # noqa: E402
from crossknn.scorers import CrossEncoder, DualEncoder  # noqa: E402
from crossknn.scorers.torch import TorchCrossEncoder, TorchDualEncoder  # noqa: E402
from crossknn.types import Pairs  # noqa: E402
from crossknn_lab.checkpoints import open_checkpoint, read_checkpoint  # noqa: E402

pytestmark = pytest.mark.torch

SPECIAL = ["[PAD]", "[unused0]", "[unused1]", "[unused2]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [f"word{n}" for n in range(30)]
HALF = 128
RNG = np.random.default_rng(0)


def words(count: int) -> str:
    return " ".join(RNG.choice(WORDS, count))


# (left, mention, right) and (title, description): short ones, and ones that must be cut.
MENTIONS = [
    (words(3), words(2), words(5)),
    (words(90), words(3), words(90)),
    ("", words(1), words(200)),
]
ENTITIES = [(words(2), words(9)), (words(1), words(200)), (words(3), ""), (words(2), words(60))]
QUERIES = [marked_query(*mention) for mention in MENTIONS]
ITEMS = [marked_item(*entity) for entity in ENTITIES]
TEXTS = [words(4), words(11), words(1)]


def tokenizer():
    return transformers.BertTokenizer(vocab={token: n for n, token in enumerate(SPECIAL + WORDS)})


def config(**settings):
    return transformers.BertConfig(
        **{
            "vocab_size": len(SPECIAL) + len(WORDS),
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 48,
            "max_position_embeddings": 256,
            "initializer_range": 0.3,
            **settings,
        }
    )


def bert(seed: int, **settings):
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

    def __init__(self, **settings) -> None:
        vars(self).update(settings)


class AttributeDict(dict):
    """Stands for the trainer's mapping of hyperparameters."""


def save(path, states, settings=None, *, legacy=False):
    """Write a checkpoint as the trainer does, with objects of classes that are then gone."""
    module = types.ModuleType("absent_module")
    for kind in (Config, AttributeDict):
        kind.__module__ = module.__name__
        setattr(module, kind.__name__, kind)
    sys.modules[module.__name__] = module
    content = {
        "epoch": 3,
        "state_dict": OrderedDict(states),
        "optimizer_states": [{"state": {0: {"exp_avg": torch.zeros(7)}}, "lr": 1e-5}],
        "callbacks": {AttributeDict: {"best_model_score": np.float64(0.5), "dirpath": None}},
        "hyper_parameters": AttributeDict(config=Config(**(settings or {}))),
    }
    try:
        torch.save(content, path, _use_new_zipfile_serialization=not legacy)
    finally:
        del sys.modules[module.__name__]
    return path


def prefixed(prefix, model):
    return {prefix + name: value for name, value in model.state_dict().items()}


def emb_states(model):
    return prefixed("model.encoder.bert_model.", model)


def mention_ids(fast, mention):
    """BLINK's representation of a mention (b, 128): as much of both sides as there is room for."""
    left, inside, right = (fast.tokenize(part) for part in mention)
    inside = ["[unused0]", *inside, "[unused1]"]
    left_quota = (HALF - len(inside)) // 2 - 1
    right_quota = HALF - len(inside) - left_quota - 2
    if len(left) <= left_quota:
        if len(right) > right_quota:
            right_quota += left_quota - len(left)
    elif len(right) <= right_quota:
        left_quota += right_quota - len(right)
    return padded(fast, [*left[-left_quota:], *inside, *right[:right_quota]])


def entity_ids(fast, entity):
    title, description = (fast.tokenize(part) for part in entity)
    return padded(fast, [*title, "[unused2]", *description][: HALF - 2])


def padded(fast, tokens):
    ids = fast.convert_tokens_to_ids(["[CLS]", *tokens, "[SEP]"])
    return ids + [0] * (HALF - len(ids))


def joint(model):
    """Ids (12, 255) of all pairs, padded between the halves, and the model's outputs for them."""
    fast = tokenizer()
    ids = torch.tensor(
        [mention_ids(fast, m) + entity_ids(fast, e)[1:] for m in MENTIONS for e in ENTITIES]
    )
    kinds = torch.zeros_like(ids)
    kinds[:, HALF:] = (ids[:, HALF:] > 0).long()
    with torch.inference_mode():
        found = model(input_ids=ids, attention_mask=(ids > 0).long(), token_type_ids=kinds)
    return ids, found


def emb_scores(model):
    ids, found = joint(model)
    start, end, entity = (
        torch.stack(
            [row[where] for row, where in zip(found.last_hidden_state, ids == token, strict=True)]
        )[:, 0]
        for token in (1, 2, 3)
    )
    return ((start + end) / 2 * entity).sum(-1).numpy()


def pairs(m, n):
    return Pairs(np.repeat(np.arange(m), n), np.tile(np.arange(n), m))


def scores_of(scorer, queries, items):
    out = np.full(len(queries) * len(items), np.nan, dtype=np.float32)
    for positions, scores in scorer.score(pairs(len(queries), len(items)), queries, items):
        out[positions] = scores
    return out


def same(found, expected):
    scale = np.abs(expected).max()
    assert expected.std() > 0.01 * scale  # or the comparison says little
    np.testing.assert_allclose(found / scale, expected / scale, atol=1e-5)


@pytest.mark.parametrize("legacy", [False, True])
def test_zeshel_emb_is_the_padded_forward_pass(tmp_path, base, legacy) -> None:
    model = bert(1)
    path = save(tmp_path / "emb.ckpt", emb_states(model), legacy=legacy)
    opened = open_checkpoint(path, encoder=base)
    assert opened.config.head == "emb"
    same(scores_of(TorchCrossEncoder(opened), QUERIES, ITEMS), emb_scores(model))
    folder = opened.save_pretrained(tmp_path / "ours")
    same(scores_of(CrossEncoder(folder, device="cpu"), QUERIES, ITEMS), emb_scores(model))


def test_a_converted_model_can_be_exported(tmp_path, base) -> None:
    pytest.importorskip("onnx")
    from crossknn.models.export import export_model

    model = bert(1)
    opened = open_checkpoint(save(tmp_path / "emb.ckpt", emb_states(model)), encoder=base)
    folder = export_model(opened.save_pretrained(tmp_path / "ours"), tmp_path / "onnx")
    same(scores_of(CrossEncoder(folder), QUERIES, ITEMS), emb_scores(model))


def test_the_padding_matters(tmp_path, base) -> None:
    from dataclasses import replace

    from crossknn.models.cross_encoder import CrossEncoderModel

    model = bert(1)
    opened = open_checkpoint(save(tmp_path / "emb.ckpt", emb_states(model)), encoder=base)
    unpadded = CrossEncoderModel(
        opened.encoder, opened.tokenizer.fast, replace(opened.config, item_position=None)
    )
    found = scores_of(TorchCrossEncoder(unpadded), QUERIES, ITEMS)
    assert np.abs(found - emb_scores(model)).max() > 0.01


@pytest.mark.parametrize("pooling", ["cls_w_lin", "cls"])
def test_zeshel_cls_has_its_linear_layer(tmp_path, base, pooling) -> None:
    model, linear = bert(2), torch.nn.Linear(32, 1)
    states = emb_states(model) | prefixed("model.encoder.additional_linear.", linear)
    path = save(tmp_path / "cls.ckpt", states, {"pooling_type": pooling})
    _, found = joint(model)
    pooled = found.pooler_output if pooling == "cls_w_lin" else found.last_hidden_state[:, 0]
    with torch.inference_mode():
        expected = linear(pooled)[:, 0].numpy()
    folder = open_checkpoint(path, encoder=base).save_pretrained(tmp_path / "ours")
    same(scores_of(CrossEncoder(folder, device="cpu"), QUERIES, ITEMS), expected)


@pytest.mark.parametrize("towers", [2, 1])
def test_zeshel_dual_is_two_towers_and_an_inner_product(tmp_path, base, towers) -> None:
    query, item = bert(3), bert(4)
    states = prefixed("model.input_encoder.bert_model.", query)
    states |= prefixed("model.label_encoder.bert_model.", item)
    if towers == 1:
        item, states = query, emb_states(query)
    path = save(tmp_path / "dual.ckpt", states, {"model_type": "bi_enc", "pooling_type": "cls"})
    fast, expected = tokenizer(), []
    for model, rows in (
        (query, [mention_ids(fast, mention) for mention in MENTIONS]),
        (item, [entity_ids(fast, entity) for entity in ENTITIES]),
    ):
        ids = torch.tensor(rows)
        with torch.inference_mode():
            found = model(input_ids=ids, attention_mask=(ids > 0).long())
        expected.append(found.last_hidden_state[:, 0].numpy())
    opened = open_checkpoint(path, encoder=base)
    folder = opened.save_pretrained(tmp_path / "ours")
    for encoder in (TorchDualEncoder(opened), DualEncoder(folder, device="cpu")):
        vectors = encoder.encode_queries(QUERIES), encoder.encode_items(ITEMS)
        for found, wanted in zip(vectors, expected, strict=True):
            np.testing.assert_allclose(found, wanted, atol=1e-5)
        same((vectors[0] @ vectors[1].T).ravel(), (expected[0] @ expected[1].T).ravel())


@pytest.mark.parametrize("pickled", [False, True])
def test_msmarco_emb_reads_cls_and_the_first_separator(tmp_path, pickled) -> None:
    model, fast = bert(5), tokenizer()
    folder = tmp_path / "emb"
    fast.save_pretrained(folder)
    config(num_labels=1, architectures=["BertForSequenceClassification"]).save_pretrained(folder)
    states = prefixed("bert.", model)
    if pickled:
        torch.save(states, folder / "pytorch_model.bin")
    else:
        from safetensors.torch import save_file

        save_file(states, folder / "model.safetensors", {"format": "pt"})
    batch = fast(
        [query for query in TEXTS for _ in TEXTS], TEXTS * 3, padding=True, return_tensors="pt"
    )
    with torch.inference_mode():
        found = model(**batch).last_hidden_state
    first = (batch["input_ids"] == fast.sep_token_id).int().argmax(1)
    expected = (found[:, 0] * found[torch.arange(9), first]).sum(-1).numpy()

    with pytest.raises(InputError, match=r"would be random.*--layout msmarco-emb"):
        CrossEncoder(folder)
    with pytest.raises(InputError, match=r"nothing in it says how it scores.*msmarco-emb"):
        open_checkpoint(folder)
    opened = open_checkpoint(folder, layout="msmarco-emb")
    assert opened.config.max_length == 256
    same(scores_of(TorchCrossEncoder(opened), TEXTS, TEXTS), expected)
    ours = opened.save_pretrained(tmp_path / "ours")
    same(scores_of(CrossEncoder(ours, device="cpu"), TEXTS, TEXTS), expected)


def test_msmarco_emb_is_not_any_folder(tmp_path, base) -> None:
    with pytest.raises(InputError, match="has no weights"):
        open_checkpoint(base, layout="msmarco-emb")
    torch.manual_seed(0)
    transformers.BertForSequenceClassification(config(num_labels=1)).save_pretrained(base)
    with pytest.raises(InputError, match="has a classification head"):
        open_checkpoint(base, layout="msmarco-emb")
    (base / "modules.json").write_text('[{"type": "sentence_transformers.models.Pooling"}]')
    with pytest.raises(InputError, match="is a bi-encoder"):
        open_checkpoint(base, layout="msmarco-emb")


def test_an_encoder_without_all_its_weights_names_them(tmp_path, base) -> None:
    states = {n: v for n, v in bert(1).state_dict().items() if "layer.1.attention" not in n}
    torch.save(states, base / "pytorch_model.bin")
    with pytest.raises(
        InputError, match=r"lacks \S*encoder\.layer\.1\.attention\S*, .* and 7 more$"
    ):
        open_checkpoint(base, layout="msmarco-emb")


def test_the_configuration_is_the_encoders_or_the_shapes(tmp_path, base) -> None:
    states = emb_states(bert(1, hidden_size=64, num_attention_heads=1))
    path = save(base / "emb.ckpt", states)
    with pytest.raises(
        InputError, match=r"not trained from .*: hidden_size is 64 there and 32 here"
    ):
        open_checkpoint(path)
    (base / "config.json").unlink()
    found = open_checkpoint(base)  # the one checkpoint in the folder, its tokenizer beside it
    assert found.encoder.config.num_attention_heads == 1
    assert found.encoder.config.intermediate_size == 48
    save(path, emb_states(bert(1)))
    with pytest.raises(
        InputError, match="width of 32, which does not say how many attention heads"
    ):
        open_checkpoint(path)


def test_lengths_are_the_checkpoints_own(tmp_path, base) -> None:
    settings = {"max_input_len": 32, "max_label_len": 64}
    path = save(tmp_path / "emb.ckpt", emb_states(bert(1)), settings)
    found = open_checkpoint(path, encoder=base).config
    assert (found.query_length, found.item_length, found.item_position) == (32, 63, 32)
    assert found.max_length == 95


@pytest.mark.parametrize("legacy", [False, True])
def test_weights_alone_are_a_checkpoint(tmp_path, base, legacy) -> None:
    model = bert(1)
    states = prefixed("encoder.bert_model.", model)
    path = tmp_path / "model.torch"
    torch.save(states, path, _use_new_zipfile_serialization=not legacy)
    same(
        scores_of(TorchCrossEncoder(open_checkpoint(path, encoder=base)), QUERIES, ITEMS),
        emb_scores(model),
    )


LINEAR = {
    "model.encoder.additional_linear.weight": torch.zeros(1, 32),
    "model.encoder.additional_linear.bias": torch.zeros(1),
}


@pytest.mark.parametrize(
    ("states", "layout", "message"),
    [
        (lambda: prefixed("model.", transformers.DistilBertModel(transformers.DistilBertConfig(dim=32, hidden_dim=32, n_layers=1, n_heads=2, vocab_size=38))), None, r"known layout: it lacks model\.encoder\.bert_model.* it has embeddings\."),
        (lambda: emb_states(bert(1)) | LINEAR, "zeshel-emb", r"no zeshel-emb checkpoint: it has encoder\.additional_linear\.bias, encoder\.additional_linear\.weight, which do not belong$"),
        (lambda: emb_states(bert(1)), "zeshel-cls", r"no zeshel-cls checkpoint: it lacks encoder\.additional_linear\.bias"),
        (lambda: prefixed("model.input_encoder.bert_model.", bert(1)), None, r"it lacks label_encoder\.bert_model\.\*$"),
        (lambda: {n: v for n, v in emb_states(bert(1)).items() if "position" not in n}, None, r"checkpoint of a BERT: it lacks encoder\.bert_model\.embeddings\.position_embeddings\.weight and"),
        (lambda: {n: v for n, v in emb_states(bert(1)).items() if not n.endswith("layer.1.output.dense.bias")}, None, r"BERT: it lacks encoder\.bert_model\.encoder\.layer\.1\.output\.dense\.bias$"),
        (lambda: emb_states(bert(1)) | {"model.encoder.bert_model.encoder.layer.1.adapter.weight": torch.zeros(1)}, None, r"BERT: it has encoder\.bert_model\.encoder\.layer\.1\.adapter\.weight, which does not belong$"),
        (lambda: emb_states(bert(1)) | {"model.encoder.bert_model.encoder.layer.1.output.dense.bias": torch.zeros(31)}, None, r"layer\.1\.output\.dense\.bias has the shape \(31,\), expected \(32,\)"),
        (lambda: {n: v for n, v in (emb_states(bert(1)) | LINEAR).items() if "pooler" not in n}, None, r"zeshel-cls checkpoint of a BERT: it lacks \S*pooler\.dense\.bias, \S*pooler\.dense\.weight and"),
        (lambda: {"model.encoder.bert_model.x": 1}, None, "holds no weights"),
    ],
)  # fmt: skip
def test_another_architecture_is_refused_by_its_keys(
    tmp_path, base, states, layout, message
) -> None:
    path = save(tmp_path / "other.ckpt", states())
    with pytest.raises(InputError, match=message) as caught:
        open_checkpoint(path, layout=layout, encoder=base)
    assert "\n" not in str(caught.value)


def test_an_encoder_must_be_the_right_one(tmp_path, base) -> None:
    path = save(tmp_path / "emb.ckpt", emb_states(bert(1)))
    with pytest.raises(InputError, match="holds no tokenizer: give the model"):
        open_checkpoint(path)
    with pytest.raises(InputError, match=r"cannot load a tokenizer|cannot read the configuration"):
        open_checkpoint(path, encoder=tmp_path / "absent")
    with pytest.raises(InputError, match="unknown layout 'zeshel': did you mean zeshel-"):
        open_checkpoint(path, layout="zeshel", encoder=base)
    vocabulary = {word: n for n, word in enumerate(["[PAD]", *SPECIAL[4:], *WORDS])}
    transformers.BertTokenizer(vocab=vocabulary).save_pretrained(base)
    with pytest.raises(InputError, match=r"has no \[unused0\], \[unused1\], \[unused2\]"):
        open_checkpoint(path, encoder=base)
    many = [*SPECIAL, *WORDS, "another"]
    transformers.BertTokenizer(vocab={word: n for n, word in enumerate(many)}).save_pretrained(base)
    with pytest.raises(InputError, match=r"has 39 tokens, and .* vectors for 38"):
        open_checkpoint(path, encoder=base)
    transformers.DistilBertConfig().save_pretrained(base)
    with pytest.raises(InputError, match=r"is a distilbert, and .* holds a BERT"):
        open_checkpoint(path, encoder=base)


def test_poolings_that_are_not_known_are_refused(tmp_path, base) -> None:
    path = save(tmp_path / "x.ckpt", emb_states(bert(1)) | LINEAR, {"pooling_type": "mean"})
    with pytest.raises(InputError, match="pools by 'mean'"):
        open_checkpoint(path, encoder=base)
    save(path, emb_states(bert(1)), {"pooling_type": "mean", "model_type": "bi_enc"})
    with pytest.raises(InputError, match="pools by 'mean'"):
        open_checkpoint(path, encoder=base)


class Evil:
    """Creates a file if a pickle of it is run."""

    def __init__(self, path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("legacy", [False, True])
def test_nothing_in_a_pickle_is_run(tmp_path, base, legacy) -> None:
    trap = tmp_path / "trap"
    model = bert(1)
    content = {
        "state_dict": OrderedDict(emb_states(model)),
        "hyper_parameters": {"config": Evil(trap)},
        "callbacks": [Evil(trap), {Evil: Evil(trap)}],
    }
    path = tmp_path / "evil.ckpt"
    torch.save(content, path, _use_new_zipfile_serialization=not legacy)
    same(
        scores_of(TorchCrossEncoder(open_checkpoint(path, encoder=base)), QUERIES, ITEMS),
        emb_scores(model),
    )
    torch.save(Evil(trap), path, _use_new_zipfile_serialization=not legacy)
    with pytest.raises(InputError, match="holds no weights"):
        open_checkpoint(path, encoder=base)
    torch.save({"model.encoder.bert_model.x": Evil(trap)}, path)
    with pytest.raises(InputError, match="holds no weights"):
        open_checkpoint(path, encoder=base)
    assert not trap.exists()
    torch.load(path, weights_only=False)  # the trap is one
    assert trap.exists()


@pytest.mark.parametrize("name", ["os.system", "builtins.eval", "builtins.getattr", "pathlib.Path"])
def test_names_in_a_pickle_become_inert(tmp_path, name) -> None:
    """Calls, new objects, states and items, all of things that are not let through."""
    from crossknn_lab.checkpoints import Inert, RestrictedUnpickler

    module, function = name.split(".")
    get = f"c{module}\n{function}\n".encode()
    for program in (
        get + b"(S'1'\ntR.",
        get + b"(S'1'\nt\x81.",
        get + b"(S'1'\ntR}S'a'\nI1\nsb.",
        get + b"(S'1'\ntR(S'a'\nI1\nu.",
        get + b"(tR(S'1'\ntR.",
    ):
        found = RestrictedUnpickler(io.BytesIO(program)).load()
        assert isinstance(found, Inert)


def test_files_that_are_no_checkpoints(tmp_path, base) -> None:
    path = tmp_path / "x.ckpt"
    good = save(tmp_path / "good.ckpt", emb_states(bert(1))).read_bytes()
    old = save(tmp_path / "good.ckpt", emb_states(bert(1)), legacy=True).read_bytes()
    plain = pickle.dumps({"state_dict": {"a": [1.0]}})
    huge = b"\x80\x05\x96" + (1 << 62).to_bytes(8, "little") + b"."
    for content in (
        b"",
        b"hello",
        huge,
        plain,
        good[: len(good) // 2],
        old[: len(old) // 2],
        old[:-8],
    ):
        path.write_bytes(content)
        with pytest.raises(InputError, match="not a readable torch checkpoint: ") as caught:
            open_checkpoint(path, encoder=base)
        assert "\n" not in str(caught.value)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"must hold one checkpoint file \(.*\), and has none"):
        open_checkpoint(tmp_path / "empty")
    for name in ("a.ckpt", "b.pt"):
        (tmp_path / "empty" / name).write_bytes(good)
    with pytest.raises(InputError, match=r"and has 2 \(a.ckpt, \.\.\.\)"):
        open_checkpoint(tmp_path / "empty")
    (tmp_path / "empty" / "cross_encoder.json").write_text("{}")
    with pytest.raises(InputError, match="is a crossknn model already"):
        open_checkpoint(tmp_path / "empty")


@pytest.mark.parametrize("legacy", [False, True])
def test_tensors_are_read_as_torch_wrote_them(tmp_path, legacy) -> None:
    whole = torch.arange(24.0).reshape(4, 6)
    states = {
        "whole": whole,
        "transposed": whole.T,
        "part": whole[1:3, 2:],
        "parameter": torch.nn.Parameter(whole.half()),
        "scalar": torch.tensor(3),
        "empty": torch.empty(0, 3),
        "flags": torch.tensor([True, False]),
        "brain": whole.bfloat16(),
    }
    path = tmp_path / "x.pt"
    torch.save(states, path, _use_new_zipfile_serialization=not legacy)
    tensors, _ = read_checkpoint(path)
    assert tensors.keys() == states.keys()
    for name, value in states.items():
        found = tensors[name]
        assert found.dtype == value.dtype
        assert torch.equal(found, value)


def test_a_hub_name_is_downloaded(tmp_path, base, monkeypatch) -> None:
    save(base / "emb.ckpt", emb_states(bert(1)))
    asked = []

    def download(name, *, revision, allow_patterns, ignore_patterns):
        asked.append((name, allow_patterns[0]))
        return str(base)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    (base / "config.json").rename(base / "other.json")
    with pytest.raises(InputError, match="attention heads"):
        open_checkpoint("someone/emb")
    assert asked == [("someone/emb", "*.ckpt")]


def test_the_command_converts(tmp_path, base, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = bert(1)
    save(tmp_path / "emb.ckpt", emb_states(model))
    assert run(["convert", "emb.ckpt", "ours", "--encoder", "base", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["kind"], said["settings"]["item_position"]) == ("[EMB] cross-encoder", 128)
    same(scores_of(CrossEncoder("./ours", device="cpu"), QUERIES, ITEMS), emb_scores(model))
    assert "from emb.ckpt" in (tmp_path / "ours" / "README.md").read_text()
    assert run(["convert", "emb.ckpt", "ours", "--encoder", "base"]) == 2
    assert "not empty" in capsys.readouterr().err
    assert run(["convert", "emb.ckpt", "new", "--encoder", "base"]) == 0
    assert "[EMB] cross-encoder; use it with  --scorer new" in capsys.readouterr().out


def test_the_command_says_that_msmarco_emb_is_unverified(tmp_path, base, capsys) -> None:
    bert(5).save_pretrained(base)
    given = ["convert", str(base), str(tmp_path / "ours"), "--layout", "msmarco-emb", "--json"]
    assert run(given) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["kind"] == "[EMB] cross-encoder"
    assert "msmarco-emb is unverified: compare its scores" in said.err
    assert "msmarco-emb is unverified" in (tmp_path / "ours" / "README.md").read_text()
