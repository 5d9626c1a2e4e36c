"""CMC: the query and all candidates are compared together (Song et al., EMNLP 2024).

Every text is one vector. Paper, 3.1 (equations 3 and 4) and appendix C:

    [h_q; h_1; ...; h_c] = Attn([e_q; e_1; ...; e_c]),    score_j = h_q . h_j
    Attn: two layers F of a transformer encoder without positions, each as x + F(x)

F is post-norm: y = LN(x + MHA(x)), F(x) = LN(y + W2 relu(W1 y + b1) + b2), with 4 heads, a width of
2048 and dropout 0.1. `variant` says what a layer gives: "paper" x + F(x), "reference" (x + F(x)) /
2, as the authors' code computes it, or "none" F(x), the ablation of table 12.

Deviations: a padding mask (the authors' code has none, its lists all have one length).
Memory is linear in c: attention never holds a row per pair of candidates. Axes: b queries, c
candidates, s = 1 + c of both, h heads, d dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from crossknn.errors import InputError, nearest
from crossknn.models.late_interaction.head import Head, HeadOptions, bias_of, listed

VARIANTS = {"paper": (1.0, 1.0), "reference": (0.5, 0.5), "none": (0.0, 1.0)}
"""What a layer's input and output are multiplied by before they are added."""
CHUNK = 256
"""Rows of attention at once in a traced graph."""


@dataclass(frozen=True, kw_only=True)
class CMCOptions(HeadOptions):
    """See the module's docstring; feed_forward: the width."""

    layers: int = 2
    heads: int = 4
    feed_forward: int = 2048
    dropout: float = 0.1
    variant: str = "paper"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.variant not in VARIANTS:
            raise InputError(f"variant is {self.variant!r} ({nearest(self.variant, VARIANTS)})")


class CMC(Head):
    """See the module's docstring."""

    Options = CMCOptions
    joint = True

    def __init__(self, encoder: Any, options: CMCOptions) -> None:
        """Raises InputError if the heads do not divide the encoder's width."""
        super().__init__(encoder, options)
        if self.dimensions % options.heads:
            raise InputError(
                f"heads is {options.heads}, which does not divide the {self.dimensions} dimensions "
                "of the encoder"
            )
        self.layers = nn.ModuleList(Layer(self.dimensions, options) for _ in range(options.layers))

    def forward(
        self, query: Tensor, query_mask: Tensor, items: Tensor, item_mask: Tensor
    ) -> Tensor:
        found = torch.cat([query, items[:, :, 0]], dim=1)
        bias = bias_of(torch.cat([query_mask, item_mask[:, :, 0]], dim=1))[:, None, None, :]
        kept, added = VARIANTS[self.options.variant]
        for layer in self.layers:
            found = kept * found + added * layer(found, bias)
        return listed((found[:, 1:] * found[:, :1]).sum(-1), item_mask)


class Layer(nn.Module):  # type: ignore[misc]
    """F, one post-norm layer of a transformer encoder."""

    def __init__(self, dimensions: int, options: CMCOptions) -> None:
        super().__init__()
        self.heads = options.heads
        self.read = nn.Linear(dimensions, 3 * dimensions)
        self.write = nn.Linear(dimensions, dimensions)
        self.attention_norm = nn.LayerNorm(dimensions)
        self.wide = nn.Linear(dimensions, options.feed_forward)
        self.narrow = nn.Linear(options.feed_forward, dimensions)
        self.norm = nn.LayerNorm(dimensions)
        self.dropout = nn.Dropout(options.dropout)
        nn.init.xavier_uniform_(self.read.weight)
        nn.init.zeros_(self.read.bias)
        nn.init.zeros_(self.write.bias)

    def forward(self, found: Tensor, bias: Tensor) -> Tensor:
        """(b, s, d) and the bias (b, 1, 1, s) of the keys -> (b, s, d)."""
        read = self.read(found).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = self.write(self._attend(read[0], read[1], read[2], bias).transpose(1, 2).flatten(2))
        found = self.attention_norm(found + self.dropout(seen))
        wide = self.dropout(functional.relu(self.wide(found)))
        out: Tensor = self.norm(found + self.dropout(self.narrow(wide)))
        return out

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        """(b, h, s, d / h) three times -> (b, h, s, d / h)."""
        if torch.jit.is_tracing():  # a graph has no operator like the one below
            rows = (bias[0, 0, 0] <= 0).sum()
            traced: Tensor = _scripted()(query, key, value, bias, rows, CHUNK)
            return traced
        share = self.dropout.p if self.training else 0.0
        out: Tensor = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=bias, dropout_p=share
        )
        return out


@cache
def _scripted() -> Any:
    """`_in_chunks` with its loop, which tracing alone would unroll."""
    return torch.jit.script(_in_chunks)


def _in_chunks(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, rows: Tensor, chunk: int
) -> Tensor:
    """Attention of `chunk` rows at a time: (b, h, s, d / h) three times -> (b, h, s, d / h).

    `rows` is s again, counted from values: ONNX would take a size for a constant of the graph.
    """
    found: list[Tensor] = []
    keys = key.transpose(2, 3) * query.size(3) ** -0.5
    for part in range((int(rows) + chunk - 1) // chunk):
        logits = query[:, :, part * chunk : (part + 1) * chunk] @ keys + bias
        found.append(torch.softmax(logits, dim=-1) @ value)
    return torch.cat(found, dim=2)
