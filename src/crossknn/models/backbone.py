"""The Hugging Face encoder inside every model here: opened, given marks, run, and saved.

Axes: b rows, t tokens, d dimensions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer
from torch import Tensor

from crossknn.data.marks import MARKS
from crossknn.errors import InputError
from crossknn.models.hub import first_line
from crossknn.models.tokens import Row, padded

MASKED = -1e9
TOKENIZER = "tokenizer.json"


def open_backbone(source: str | Path, *, marked: bool = False) -> tuple[Any, Tokenizer]:
    """The encoder of a folder or hub name, without its pooler, and its fast tokenizer.

    `marked` makes the three marks tokens of their own (`add_marks`). Raises InputError if nothing
    can be loaded from there, or if the encoder's weights are not all there.
    """
    from transformers import AutoModel

    try:
        with quiet():
            encoder, report = AutoModel.from_pretrained(
                str(source),
                attn_implementation="sdpa",
                output_loading_info=True,
                trust_remote_code=False,
            )
            encoder = encoder.float()  # whatever precision the weights are kept in
    except Exception as error:
        raise InputError(f"cannot load an encoder from {source}: {first_line(error)}") from error
    # The library fills what is missing with random numbers.
    missing = sorted(
        key for key in report["missing_keys"] if not {"pooler", "position_ids"} & {*key.split(".")}
    )
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise InputError(
            f"{source} does not hold all weights of its {encoder.config.model_type} encoder: it "
            f"lacks {', '.join(missing[:3])}{more}"
        )
    tokenizer = open_tokenizer(source).backend_tokenizer
    if getattr(encoder, "pooler", None) is not None:
        encoder.pooler = None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return encoder, add_marks(tokenizer, encoder) if marked else tokenizer


def open_tokenizer(source: str | Path) -> Any:
    """The fast Hugging Face tokenizer of a folder or hub name; InputError if it has none."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(source), use_fast=True, trust_remote_code=False
        )
        tokenizer.backend_tokenizer.get_vocab_size()
    except Exception as error:
        raise InputError(f"cannot load a tokenizer from {source}: {first_line(error)}") from error
    return tokenizer


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps transformers' bars and reports (of a pooler nobody reads, say) off the terminal."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def add_marks(tokenizer: Tokenizer, encoder: Any) -> Tokenizer:
    """A tokenizer that reads `[Ms]`, `[Me]` and `[ENT]` as one token each.

    They take the places of `[unused0]` to `[unused2]`, whose vectors the encoder has (ANNCUR,
    A.2); where a vocabulary has none, they are new tokens and the encoder gets new vectors.
    """
    if all(tokenizer.token_to_id(mark) is not None for mark in MARKS):
        return tokenizer
    content = json.loads(tokenizer.to_str())
    vocabulary = content["model"].get("vocab")
    unused = [f"[unused{place}]" for place in range(len(MARKS))]
    if isinstance(vocabulary, dict) and all(name in vocabulary for name in unused):
        for mark, name in zip(MARKS, unused, strict=True):
            vocabulary[mark] = vocabulary.pop(name)
        content["added_tokens"] = [t for t in content["added_tokens"] if t["content"] not in unused]
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
    """Contextual states of the last layer: (b, t) each -> (b, t, d) float32.

    Token types are given only where the model has several.
    """
    # A mask of four axes goes to every layer as it is: local attention would lose its window.
    local = "sliding_attention" in (getattr(encoder.config, "layer_types", None) or ())
    arguments = {
        "input_ids": input_ids,
        "attention_mask": attention_mask
        if local
        else (1.0 - attention_mask[:, None, None, :].float()) * MASKED,
    }
    if int(getattr(encoder.config, "type_vocab_size", 0) or 0) > 1:
        arguments["token_type_ids"] = token_type_ids
    if position_ids is not None:
        arguments["position_ids"] = position_ids
    found: Tensor = encoder(**arguments).last_hidden_state
    return found.float()


def tensors(rows: list[Row], pad_token_id: int, max_length: int, device: Any) -> list[Tensor]:
    """Rows (b) -> input ids, attention mask and token types (b, t) on `device`."""
    arrays = padded(rows, pad_token_id, max_length)
    names = ("input_ids", "attention_mask", "token_type_ids")
    return [torch.from_numpy(arrays[name]).to(device) for name in names]


def position_limit(config: Any) -> int:
    """The longest input in tokens that an encoder with this configuration has positions for."""
    positions = int(getattr(config, "max_position_embeddings", 512) or 512)
    return (
        positions - 2 if config.model_type in ("roberta", "xlm-roberta", "camembert") else positions
    )


def save_backbone(encoder: Any, tokenizer: Tokenizer, folder: Path) -> None:
    """Write `config.json`, `model.safetensors` and the tokenizer's files."""
    from transformers import PreTrainedTokenizerFast

    with quiet():
        encoder.save_pretrained(folder)
    names = {"unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "mask": "[MASK]"}
    known = {
        f"{name}_token": token
        for name, token in names.items()
        if tokenizer.token_to_id(token) is not None
    }
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=position_limit(encoder.config), **known
    )
    fast.save_pretrained(folder)
    tokenizer.save(str(folder / TOKENIZER), pretty=False)
