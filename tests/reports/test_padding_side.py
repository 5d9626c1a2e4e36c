"""A score is the same alone and in a batch, on whichever side a model's tokenizer pads."""

import json

import numpy as np
import pytest
from tiny_models import (
    CAUSAL,
    CHAT,
    LOCAL,
    ending,
    save_bert,
    save_bi_encoder,
    save_hf,
    scores_of,
)

import crossknn as ck
from crossknn.scorers import LateInteraction, PredictScorer

pytestmark = pytest.mark.torch
library = pytest.importorskip("sentence_transformers")

QUERY = "the red oak"
ITEMS = ["elm", "seals swam in a lake near the old hill", "storm " * 20, "a tall gull", "", "snow"]
ROBERTA = {"type_vocab_size": 1, "max_position_embeddings": 80}
TWO = {"num_hidden_layers": 2}
GPT2 = {"n_embd": 32, "n_head": 2, "n_layer": 2, "n_positions": 64}
ENCODER_DECODER = {
    f"{part}_{what}": 2 for part in ("encoder", "decoder") for what in ("layers", "attention_heads")
}
ARCHITECTURES = {
    "Bert": {},
    "Electra": {"embedding_size": 32},
    "Albert": {"embedding_size": 32},
    "Roberta": ROBERTA,
    "XLMRoberta": ROBERTA,
    "MPNet": {"max_position_embeddings": 80},
    "DistilBert": {"dim": 32, "hidden_dim": 64, "n_heads": 2, "n_layers": 2},
    "DebertaV2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "type_vocab_size": 0},
    "ModernBert": {**LOCAL, "classifier_pooling": "mean"},
    "Qwen3": CAUSAL,
    "Llama": CAUSAL,
    "Gemma": CAUSAL,
    "GPT2": GPT2,
    "OPT": {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "T5": {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0, "eos_token_id": 3},
    "Bart": {"d_model": 32, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "eos_token_id": 3, "bos_token_id": 2, "decoder_start_token_id": 3, **ENCODER_DECODER},
    # Its score is read from the last place, so that it has to be padded on the left.
    "XLNet": {"d_model": 32, "n_head": 2, "n_layer": 2, "d_inner": 64, "max_position_embeddings": None, "num_hidden_layers": None},
}  # fmt: skip
SIDES = ["right", "left"]


def check(scorer, expected=None):
    """All scores at once are those of each pair alone, which differ from one another."""
    alone = np.concatenate([scores_of(scorer, [QUERY], [item]) for item in ITEMS])
    assert np.ptp(alone) > 0.1
    np.testing.assert_allclose(scores_of(scorer, [QUERY], ITEMS), alone, atol=5e-5)
    if expected is not None:
        np.testing.assert_allclose(alone, expected, atol=5e-5)


def one_by_one(model):
    raw = {"activation_fn": __import__("torch").nn.Identity(), "show_progress_bar": False}
    return np.concatenate([model.predict([(QUERY, item)], **raw) for item in ITEMS])


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_cross_encoders_with_a_head(tmp_path, kind, side):
    """A folder of Hugging Face whose `tokenizer_config.json` has that `padding_side`."""
    name, settings = f"{kind}ForSequenceClassification", ARCHITECTURES[kind]
    folder = save_hf(tmp_path / "hf", name, num_labels=1, padding_side=side, **settings)
    model = library.CrossEncoder(str(folder), device="cpu")
    assert model.tokenizer.padding_side == side
    expected = one_by_one(model)
    check(ck.CrossEncoder(folder, device="cpu"), expected)
    check(PredictScorer(model), expected)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("kind", ["Qwen3ForCausalLM", "OPTForCausalLM", "GPT2LMHeadModel"])
def test_rerankers_that_answer_by_two_words(tmp_path, kind, side):
    """A causal reranker, padded on the left by the library, with positions that it learned or not."""
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.cross_encoder.modules import LogitScore

    settings = {"Qwen3ForCausalLM": CAUSAL, "GPT2LMHeadModel": GPT2}.get(kind, ARCHITECTURES["OPT"])
    folder = save_hf(
        tmp_path / "hf", kind, padding_side=side, made=ending(), chat_template=CHAT, **settings
    )
    transformer = Transformer(str(folder), transformer_task="text-generation")
    words = transformer.tokenizer.convert_tokens_to_ids(["yes", "no"])
    model = library.CrossEncoder(modules=[transformer, LogitScore(*words)], device="cpu")
    expected = one_by_one(model)
    check(PredictScorer(model), expected)


BI_ENCODERS = {
    "e5": ("BertModel", "mean", {}),
    "several": ("BertModel", ("cls", "lasttoken"), {}),
    "xlm-roberta": ("XLMRobertaModel", "cls", ROBERTA),
    "modernbert": ("ModernBertModel", "cls", LOCAL),
    "qwen3": ("Qwen3Model", "lasttoken", CAUSAL),
    "gpt2": ("GPT2Model", "lasttoken", GPT2),
}


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("kind", BI_ENCODERS)
def test_dual_encoders(tmp_path, kind, side):
    """Vectors of a sentence-transformers folder."""
    name, pooling, settings = BI_ENCODERS[kind]
    made = {"made": ending()} if pooling == "lasttoken" else {}
    folder = save_bi_encoder(tmp_path, name, pooling, padding_side=side, **settings, **made)
    encoder = ck.DualEncoder(folder, device="cpu")
    alone = np.concatenate([encoder.encode_items([item]) for item in ITEMS if item])
    together = encoder.encode_items([item for item in ITEMS if item])
    np.testing.assert_allclose(together, alone, atol=5e-5)


def pad(folder, side):
    """The folder, whose tokenizer pads to 48 tokens and cuts texts, both on that side."""
    path = folder / "tokenizer.json"
    padding = {
        "strategy": {"Fixed": 48},
        "direction": side.title(),
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "[PAD]",
    }
    truncation = {
        "direction": side.title(),
        "max_length": 6,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    about = {"padding": padding, "truncation": truncation}
    path.write_text(json.dumps(json.loads(path.read_text()) | about))
    config = folder / "tokenizer_config.json"
    if config.exists():
        config.write_text(json.dumps(json.loads(config.read_text()) | {"padding_side": side}))
    return folder


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return save_bert(tmp_path_factory.mktemp("bert"), positions=128)


def made(bert, folder, kind):
    """A model of ours in its folder."""
    from crossknn_train.models.cross_encoder import CrossEncoderConfig, CrossEncoderModel
    from crossknn_train.models.dual_encoder import DualEncoderConfig, DualEncoderModel
    from crossknn_train.models.late import LateInteractionConfig, LateInteractionModel

    lengths = {"query_length": 30, "item_length": 30}
    if kind.endswith("-CE"):
        config = CrossEncoderConfig(max_length=60, head=kind[:3])
        model = CrossEncoderModel.new(bert, config)
    elif kind == "dual":
        model = DualEncoderModel.new(bert, DualEncoderConfig(**lengths))
    else:
        options = {"layers": 1} if kind == "deformer" else {}
        config = LateInteractionConfig(head=kind, options=options, **lengths)
        model = LateInteractionModel.new(bert, config)
    return model.save_pretrained(folder)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(
    "kind", ["cls-CE", "emb-CE", "dual", "cmc", "poly", "som", "deformer", "mixencoder"]
)
def test_models_of_ours_and_their_onnx_folders(tmp_path, bert, kind, side):
    """A model trained here, and its export, whose `tokenizer.json` pads: nothing is padded by it."""
    from crossknn_train.export import export_model

    task = {"dual": "dual-encoder"}.get(
        kind, "cross-encoder" if "-CE" in kind else "late-interaction"
    )
    folder = made(bert, tmp_path / "torch", kind)
    onnx = export_model(folder, tmp_path / "onnx", task)
    expected = outputs(folder, task, marked=kind != "cls-CE")
    for one in pad(folder, side), pad(onnx, side):
        alone = outputs(one, task, marked=kind != "cls-CE")
        np.testing.assert_allclose(
            alone, expected, atol=2e-3 if task == "late-interaction" else 5e-5
        )


def outputs(folder, task, marked):
    """Scores or vectors of texts together, which are those of each alone."""
    queries = ["the red [Ms] oak [Me] in a hill"] if marked else [QUERY]
    items = [f"{item} [ENT] the old {item}" if marked else item for item in ITEMS]
    if task == "cross-encoder":
        scorer = ck.CrossEncoder(folder)
        run = lambda texts: scores_of(scorer, queries, texts)  # noqa: E731
    elif task == "dual-encoder":
        encoder = ck.DualEncoder(folder)
        run = lambda texts: encoder.encode_items(texts) @ encoder.encode_queries(queries)[0]  # noqa: E731
    else:
        model = LateInteraction(folder)
        asked = model.encode_queries(queries)

        def run(texts):
            lists = np.arange(len(texts))[None] if texts is items else np.array([[0]])
            return model.compare(asked, model.encode_items(texts), lists)[0]

    together = run(items)
    if task != "late-interaction":  # some of them look at the candidates together
        alone = np.concatenate([run([item]) for item in items])
        np.testing.assert_allclose(together, alone, atol=5e-5)
    return together
