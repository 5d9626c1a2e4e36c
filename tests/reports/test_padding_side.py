"""A score is the same alone and in a batch, on whichever side a model's tokenizer pads."""

import json
import shutil

import numpy as np
import pytest
from tiny_models import CAUSAL, CHAT, LOCAL, ending, save_bi_encoder, save_hf, scores_of

import crossknn as ck
from crossknn.scorers.library import PredictScorer
from crossknn.scorers.opening import bundled_folder

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
    name, pooling, settings = BI_ENCODERS[kind]
    made = {"made": ending()} if pooling == "lasttoken" else {}
    folder = save_bi_encoder(tmp_path, name, pooling, padding_side=side, **settings, **made)
    encoder = ck.DualEncoder(folder, device="cpu")
    alone = np.concatenate([encoder.encode_items([item]) for item in ITEMS if item])
    together = encoder.encode_items([item for item in ITEMS if item])
    np.testing.assert_allclose(together, alone, atol=5e-5)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("kind", ["cross-encoder", "dual-encoder"])
def test_what_a_tokenizer_says_of_padding_and_length_is_not_followed(tmp_path, kind, side):
    """`tokenizer.json` pads to 48 tokens and cuts to 6, both on that side."""
    folder = shutil.copytree(bundled_folder(kind), tmp_path / "model")
    rules = json.loads((folder / "tokenizer.json").read_text())
    fixed = {"strategy": {"Fixed": 48}, "direction": side.title(), "pad_to_multiple_of": None}
    rules["padding"] = fixed | {"pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}
    cut = {"direction": side.title(), "max_length": 6}
    rules["truncation"] = cut | {"strategy": "LongestFirst", "stride": 0}
    (folder / "tokenizer.json").write_text(json.dumps(rules))
    if kind == "cross-encoder":
        own, changed = (scores_of(ck.CrossEncoder(f), [QUERY], ITEMS) for f in (None, folder))
    else:
        own, changed = (ck.DualEncoder(f).encode_items(ITEMS) for f in (None, folder))
    np.testing.assert_array_equal(changed, own)
