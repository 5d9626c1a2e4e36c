"""Upper layers of a Hugging Face encoder, run by a head in place of the encoder.

For encoders built as BERT is (RoBERTa, ELECTRA and others). Axes: b rows, p tokens that are read, t
tokens, h heads, d dimensions.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from crossknn.errors import InputError
from crossknn.models.late_interaction.head import bias_of

_PARTS = {
    "": {"attention", "intermediate", "output"},
    "attention": {"self", "output"},
    "attention.self": {"query", "key", "value", "dropout"},
    "attention.output": {"dense", "LayerNorm", "dropout"},
}


def layers_of(encoder: Any) -> nn.ModuleList:
    """The layers of an encoder; InputError if they are not built as BERT's are."""
    layers = getattr(getattr(encoder, "encoder", None), "layer", None)
    found = dict(layers[0].named_modules()) if layers else {}
    parts = {
        name: {part for part, _ in found[name].named_children()} for name in _PARTS if name in found
    }
    if parts != _PARTS:
        raise InputError(
            f"the layers of a {encoder.config.model_type} encoder are not built as BERT's are, "
            "which this model takes apart: start from a BERT, RoBERTa or ELECTRA"
        )
    return layers


def copies(encoder: Any, count: int) -> nn.ModuleList:
    """Copies of the `count` top layers; of the top one only where there are fewer."""
    layers = layers_of(encoder)
    places = (-min(left, len(layers)) for left in range(count, 0, -1))
    return nn.ModuleList(copy.deepcopy(layers[place]) for place in places)


def cut(encoder: Any, count: int) -> None:
    """Take the `count` top layers off; InputError if none would be left."""
    layers = layers_of(encoder)
    if count >= len(layers):
        raise InputError(
            f"the encoder has {len(layers)} layers, of which the head would take {count}: at least "
            "one must stay in the towers (the option layers says how many it takes)"
        )
    encoder.encoder.layer = layers[:-count]
    encoder.config.num_hidden_layers = len(layers) - count


def run(layer: Any, read: Tensor, states: Tensor, mask: Tensor) -> Tensor:
    """What a layer gives at some tokens, whose states are `read`, out of those of all, `states`:
    (b, p, d), (b, t, d) and the mask (b, t) -> (b, p, d)."""
    attention = layer.attention.self
    query, key, value = (
        in_heads(linear(source), attention.num_attention_heads)
        for linear, source in (
            (attention.query, read),
            (attention.key, states),
            (attention.value, states),
        )
    )
    seen = functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=bias_of(mask)[:, None, None, :],
        dropout_p=attention.dropout.p if layer.training else 0.0,
    )
    found = layer.attention.output(joined(seen), read)
    out: Tensor = layer.output(layer.intermediate(found), found)
    return out.float()


def in_heads(states: Tensor, count: int) -> Tensor:
    """(b, p, d) -> (b, h, p, d / h)."""
    return states.unflatten(2, (count, -1)).transpose(1, 2)


def joined(states: Tensor) -> Tensor:
    """(b, h, p, d / h) -> (b, p, d)."""
    return states.transpose(1, 2).flatten(2)
