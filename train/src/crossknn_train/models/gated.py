"""Reads a pair as a dual encoder reads its texts, and lets attention between them grow from zero.

Each text has its own [CLS] and positions. In every layer a token attends to its own text, as in the
dual encoder, and to the other text, weighted by a learned gate per head (ReZero, Bachlechner et al.
2020, gates residual branches alike). Gates start at zero: before training, the states are exactly
the dual encoder's, so that a cross-encoder starts with its quality.

Axes: b pairs, t tokens, h heads, d dimensions.
"""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from torch import Tensor, nn

from crossknn_train.models.backbone import bias_of, in_heads, join_heads, layers_of

FASTER = 50.0
"""Parameters of the head are multiplied by it, to learn faster than the encoder's weights."""


class GatedReading(nn.Module):  # type: ignore[misc]
    """The gates of an encoder's layers, (layers, h), all 0 at first."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        layers = layers_of(encoder)
        heads = int(encoder.config.num_attention_heads)
        self.gates = nn.Parameter(torch.zeros(len(layers), heads))  # times FASTER

    def forward(self, encoder: Any, ids: Tensor, mask: Tensor, kinds: Tensor) -> Tensor:
        """(b, t) three times -> the last layer's states (b, t, d) float32. `kinds` is 0 for the
        query's tokens and 1 for the item's."""
        place = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        start = kinds.argmax(1, keepdim=True)  # the item's first token
        states = encoder.embeddings(
            input_ids=ids,
            token_type_ids=torch.zeros_like(kinds),
            position_ids=torch.where(kinds == 1, place - start, place),
        )
        same = (kinds[:, :, None] == kinds[:, None, :]).float()
        own = bias_of(mask[:, None, :] * same)[:, None]
        other = bias_of(mask[:, None, :] * (1 - same))[:, None]
        for layer, gates in zip(layers_of(encoder), self.gates * FASTER, strict=True):
            attention = layer.attention.self
            heads = attention.num_attention_heads
            query, key, value = (
                in_heads(linear(states), heads)
                for linear in (attention.query, attention.key, attention.value)
            )
            logits = query @ key.transpose(2, 3) * key.shape[-1] ** -0.5
            weights = (logits + own).softmax(-1)
            weights = weights + gates[:, None, None] * (logits + other).softmax(-1)
            attended = join_heads(weights.to(value.dtype) @ value)
            result = layer.attention.output(attended, states)
            states = layer.output(layer.intermediate(result), result)
        return states.float()


def read_apart(tokenizer: Tokenizer) -> Tokenizer:
    """Let a tokenizer put `[CLS] ... [SEP]` around each text of a pair."""
    special = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS]:0 $A:0 [SEP]:0 [CLS]:1 $B:1 [SEP]:1",
        special_tokens=special,
    )
    return tokenizer
