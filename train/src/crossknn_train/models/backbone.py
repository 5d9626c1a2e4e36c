"""The Hugging Face encoder inside each model: open it, add marks, run layers, and save it.

Axes: b rows, t tokens, p tokens for which a layer is computed, h heads, d dimensions.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from crossknn.data.queries import MARKS
from crossknn.errors import InputError
from crossknn.models.folder import check_files, refusing

UNUSED = tuple(f"[unused{place}]" for place in range(len(MARKS)))
"""Unused tokens of a vocabulary, which the marks replace (ANNCUR, A.2)."""
_SPECIAL = {"unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "mask": "[MASK]"}
_OFFSET = ("roberta", "xlm-roberta", "camembert")
"""Encoders whose position numbers begin at 2."""
_LIKE_BERT = ("bert", "electra", *_OFFSET)
"""Encoders whose layers have BERT's structure."""


def open_backbone(source: str | Path, *, marked: bool = False) -> tuple[Any, Tokenizer]:
    """Open the encoder of a folder or hub name, without its pooler, and its fast tokenizer; with
    `marked` the marks become tokens."""
    from transformers import AutoModel
    from transformers.utils import logging

    check_files(Path(source))
    logging.set_verbosity_error()  # otherwise it warns about the pooler, which is not used
    logging.disable_progress_bar()
    settings = {"attn_implementation": "sdpa", "trust_remote_code": False}
    with refusing(f"cannot load an encoder from {source}"):
        encoder, report = AutoModel.from_pretrained(
            str(source), output_loading_info=True, **settings
        )
        encoder = encoder.float()  # from any precision of the stored weights
    # The library initializes missing weights at random.
    missing = sorted(
        key for key in report["missing_keys"] if not {"pooler", "position_ids"} & {*key.split(".")}
    )
    if missing:
        raise InputError(
            f"{source} lacks {len(missing)} weights of its encoder, such as {missing[0]}"
        )
    tokenizer = open_tokenizer(source).backend_tokenizer
    if getattr(encoder, "pooler", None) is not None:
        encoder.pooler = None
    return encoder, add_marks(tokenizer, encoder) if marked else tokenizer


def open_tokenizer(source: str | Path) -> Any:
    """Open the fast Hugging Face tokenizer of a folder or hub name; InputError if it has none."""
    from transformers import AutoTokenizer

    check_files(Path(source))
    with refusing(f"cannot load a tokenizer from {source}"):
        tokenizer = AutoTokenizer.from_pretrained(
            str(source), use_fast=True, trust_remote_code=False
        )
        tokenizer.backend_tokenizer.get_vocab_size()
    return tokenizer


def add_marks(tokenizer: Tokenizer, encoder: Any) -> Tokenizer:
    """Return a tokenizer that reads `[Ms]`, `[Me]` and `[ENT]` as one token each.

    These marks replace `[unused0]` to `[unused2]`, for which the encoder has vectors (ANNCUR, A.2).
    In a vocabulary without unused tokens they are new tokens, and the encoder gets new vectors.
    """
    if all(tokenizer.token_to_id(mark) is not None for mark in MARKS):
        return tokenizer
    content = json.loads(tokenizer.to_str())
    vocabulary = content["model"].get("vocab")
    if isinstance(vocabulary, dict) and all(name in vocabulary for name in UNUSED):
        for mark, name in zip(MARKS, UNUSED, strict=True):
            vocabulary[mark] = vocabulary.pop(name)
        content["added_tokens"] = [t for t in content["added_tokens"] if t["content"] not in UNUSED]
        tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in MARKS])
    size = tokenizer.get_vocab_size()
    if size > encoder.get_input_embeddings().num_embeddings:
        encoder.resize_token_embeddings(size)
    return tokenizer


def states(
    encoder: Any,
    input_ids: Tensor,
    attention_mask: Tensor,
    token_type_ids: Tensor,
    position_ids: Tensor | None = None,
) -> Tensor:
    """Compute the contextual states of the last layer: (b, t) each -> (b, t, d) float32."""
    # Pass a mask of two axes: a mask of four axes would reach every layer unchanged, and layers
    # with local attention would lose their window.
    is_local = "sliding_attention" in (getattr(encoder.config, "layer_types", None) or ())
    mask = attention_mask if is_local else bias_of(attention_mask)[:, None, None, :]
    arguments = {"input_ids": input_ids, "attention_mask": mask}
    if has_token_types(encoder.config):
        arguments["token_type_ids"] = token_type_ids
    if position_ids is not None:
        arguments["position_ids"] = position_ids
    result: Tensor = encoder(**arguments).last_hidden_state
    return result.float()


def has_token_types(config: Any) -> bool:
    """Whether an encoder with this configuration has vectors for several token types."""
    return int(getattr(config, "type_vocab_size", 0) or 0) > 1


def bias_of(mask: Tensor) -> Tensor:
    """Convert a mask to a bias of attention logits, 0 or -1e9: (...) -> (...)."""
    return (1.0 - mask.float()) * -1e9


def masked_mean(states: Tensor, mask: Tensor) -> Tensor:
    """Masked mean over t: (b, t, d), (b, t) -> (b, d)."""
    return (states * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True).clamp(min=1.0)


def position_limit(config: Any) -> int:
    """Return the maximum number of tokens for which an encoder has positions."""
    positions = int(getattr(config, "max_position_embeddings", 512) or 512)
    return positions - 2 if config.model_type in _OFFSET else positions


def save_backbone(encoder: Any, tokenizer: Tokenizer, folder: Path) -> None:
    """Write `config.json`, `model.safetensors` and the tokenizer's files."""
    from transformers import PreTrainedTokenizerFast

    encoder.save_pretrained(folder)
    special = {
        f"{name}_token": token
        for name, token in _SPECIAL.items()
        if tokenizer.token_to_id(token) is not None
    }
    limit = position_limit(encoder.config)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=limit, **special)
    fast.save_pretrained(folder)


# Layers with BERT's structure, run one by one.


def layers_of(encoder: Any) -> nn.ModuleList:
    """Return the layers of an encoder; InputError if they do not have BERT's structure."""
    if encoder.config.model_type not in _LIKE_BERT:
        kind = encoder.config.model_type
        raise InputError(
            f"this head uses the layers of a BERT, RoBERTa or ELECTRA, but the encoder is a {kind}"
        )
    return encoder.encoder.layer


def cut_layers(encoder: Any, count: int) -> None:
    """Remove the `count` top layers; InputError if no layer would be left."""
    layers = layers_of(encoder)
    if count >= len(layers):
        raise InputError(
            f"the head takes {count} of the {len(layers)} layers, so that none "
            "would be left in the tower"
        )
    encoder.encoder.layer = layers[:-count]
    encoder.config.num_hidden_layers = len(layers) - count


def read_first_token(encoder: Any) -> None:
    """Let the last layer of an encoder like BERT compute the first token's state only."""
    if encoder.config.model_type in _LIKE_BERT:
        last = layers_of(encoder)[-1]
        last.forward = lambda x, bias, *_, **__: run_layer(last, x[:, :1], x, bias[:, :, :1])


def run_layer(layer: Any, read: Tensor, states: Tensor, bias: Tensor) -> Tensor:
    """Compute a layer's output (b, p, d) for p tokens with the states `read` (b, p, d), which
    attend to all t tokens with `states` (b, t, d) and a bias of attention logits (b, 1, 1, t)."""
    attention = layer.attention.self
    heads = attention.num_attention_heads
    attended = functional.scaled_dot_product_attention(
        in_heads(attention.query(read), heads),
        in_heads(attention.key(states), heads),
        in_heads(attention.value(states), heads),
        attn_mask=bias,
        dropout_p=attention.dropout.p if layer.training else 0.0,
    )
    result = layer.attention.output(join_heads(attended), read)
    out: Tensor = layer.output(layer.intermediate(result), result)
    return out.float()


def in_heads(states: Tensor, count: int) -> Tensor:
    """Split states by attention head: (b, p, d) -> (b, h, p, d / h)."""
    return states.unflatten(2, (count, -1)).transpose(1, 2)


def join_heads(states: Tensor) -> Tensor:
    """Join the states of attention heads: (b, h, p, d / h) -> (b, p, d)."""
    return states.transpose(1, 2).flatten(2)
