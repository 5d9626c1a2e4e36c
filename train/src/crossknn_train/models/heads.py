"""Heads that compare a query with candidates: CMC, Poly-encoder, Sum-of-max, DeFormer, MixEncoder.

Axes: b queries, c candidates, t tokens (t_q of a query, t_i of an item), d dimensions, h attention
heads. If a text is a single vector, t = 1.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from inspect import signature
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from crossknn.errors import InputError, nearest
from crossknn_train.models.backbone import (
    bias_of,
    cut_layers,
    in_heads,
    join_heads,
    layers_of,
    run_layer,
)
from crossknn_train.models.cross_encoder import ClsHead

Reads = Literal["vector", "tokens"]

VARIANTS = {"paper": (1.0, 1.0), "reference": (0.5, 0.5), "none": (0.0, 1.0)}
"""Factors by which a CMC layer's input and output are multiplied before they are added."""
CHUNK = 256
"""Number of attention rows computed at once in a traced graph."""


class Head(nn.Module, ABC):  # type: ignore[misc]
    """Computes the scores of each query's candidates; the options are keyword arguments. `joint`:
    whether a candidate's score depends on the other candidates. `dimensions`: length of the states
    from `of_items`, which an index stores."""

    query_reads: ClassVar[Reads] = "vector"
    item_reads: ClassVar[Reads] = "vector"
    joint: ClassVar[bool] = False
    dimensions: int

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.dimensions = int(encoder.config.hidden_size)

    @classmethod
    def options(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return all options by name, checked, with defaults filled in."""
        parameters = signature(cls).parameters.values()
        defaults = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
        for name, value in given.items():
            if name not in defaults:
                raise InputError(f"the head has no option {name!r} ({nearest(name, defaults)})")
            kind = type(defaults[name])
            fits = type(value) is kind or (kind, type(value)) == (float, int)
            if fits and kind in (int, float):
                fits = value >= 1 if kind is int else 0 <= value < 1
            if not fits and value != defaults[name]:
                raise InputError(
                    f"{name} is {value!r}, but its default is {defaults[name]!r}: counts are "
                    "integers from 1, shares from 0 to below 1"
                )
        return defaults | dict(given)

    def take_over(self, query: Any, item: Any) -> None:
        """Move layers from a new model's encoders into the head; by default, move nothing."""

    def of_queries(self, states: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return query vectors to compare (b, t', d') and their mask, from (b, t, d) and (b, t)."""
        return states, mask

    def of_items(self, states: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the item vectors to store and their mask, with the shapes of `of_queries`."""
        return states, mask

    @abstractmethod
    def forward(self, query: Tensor, mask: Tensor, items: Tensor, item_mask: Tensor) -> Tensor:
        """Compute scores (b, c) from states and masks (True: a token) of queries, (b, t_q, d) and
        (b, t_q), and of candidates, (b, c, t_i, d) and (b, c, t_i); -inf for those without tokens.
        """


def in_full(states: Tensor) -> torch.autocast:
    """Compute in float32: scores of candidates are so close that they would tie in bfloat16."""
    return torch.autocast(states.device.type, enabled=False)


def listed(scores: Tensor, item_mask: Tensor) -> Tensor:
    """Return scores (b, c) float32, -inf for items without a token in their mask (b, c, t_i)."""
    return scores.float().masked_fill(~item_mask.any(-1), float("-inf"))


class CMC(Head):
    """CMC compares the query and all candidates together (Song et al., EMNLP 2024, equations 3 and
    4 and appendix C). Every text is one vector:

        [h_q; h_1; ...; h_c] = Attn([e_q; e_1; ...; e_c]),    score_j = h_q . h_j
        Attn: layers F of a transformer encoder without positions
        F(x) = LN(y + W2 relu(W1 y + b1) + b2),    y = LN(x + MHA(x))

    `variant` chooses the output of a layer: "paper" x + F(x), "reference" (x + F(x)) / 2, as in the
    authors' code, or "none" F(x), the ablation in table 12. Scores are multiplied by `scale`, 1 in
    the paper: layers make vectors longer, so that a softmax of their products is nearly all on one
    candidate. Memory is linear in c.
    """

    joint = True

    def __init__(
        self,
        encoder: Any,
        *,
        layers: int = 2,
        heads: int = 4,
        feed_forward: int = 2048,
        dropout: float = 0.1,
        variant: str = "paper",
        scale: float = 1.0,
    ) -> None:
        super().__init__(encoder)
        self.scale = scale
        if variant not in VARIANTS:
            raise InputError(f"variant is {variant!r} ({nearest(variant, VARIANTS)})")
        if self.dimensions % heads:
            raise InputError(f"{heads} heads do not divide {self.dimensions} dimensions")
        self.kept, self.added = VARIANTS[variant]
        self.layers = nn.ModuleList(
            Layer(self.dimensions, heads, feed_forward, dropout) for _ in range(layers)
        )

    def forward(self, query: Tensor, mask: Tensor, items: Tensor, item_mask: Tensor) -> Tensor:
        x = torch.cat([query, items[:, :, 0]], dim=1)
        bias = bias_of(torch.cat([mask, item_mask[:, :, 0]], dim=1))[:, None, None, :]
        for layer in self.layers:
            x = self.kept * x + self.added * layer(x, bias)
        return listed(self.scale * (x[:, 1:] * x[:, :1]).sum(-1), item_mask)


class Layer(nn.Module):  # type: ignore[misc]
    """The layer F of `CMC`. (Traced or without gradients, PyTorch's `TransformerEncoderLayer` would
    keep all s x s attention weights in memory, s = 1 + c.)"""

    def __init__(self, dimensions: int, heads: int, feed_forward: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.in_proj = nn.Linear(dimensions, 3 * dimensions)
        self.out_proj = nn.Linear(dimensions, dimensions)
        self.norm1 = nn.LayerNorm(dimensions)
        self.linear1 = nn.Linear(dimensions, feed_forward)
        self.linear2 = nn.Linear(feed_forward, dimensions)
        self.norm2 = nn.LayerNorm(dimensions)
        self.dropout = nn.Dropout(dropout)
        nn.init.xavier_uniform_(self.in_proj.weight)
        nn.init.zeros_(self.in_proj.bias)
        nn.init.zeros_(self.out_proj.bias)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """Compute the layer: states (b, s, d), bias of the keys (b, 1, 1, s) -> (b, s, d)."""
        query, key, value = (in_heads(y, self.heads) for y in self.in_proj(x).chunk(3, dim=2))
        if torch.jit.is_tracing():  # ONNX has no operator for the call below
            n_rows = (bias[0, 0, 0] <= 0).sum()
            attended = torch.jit.script(_in_chunks)(query, key, value, bias, n_rows, CHUNK)
        else:
            dropout = self.dropout.p if self.training else 0.0
            attended = functional.scaled_dot_product_attention(
                query, key, value, attn_mask=bias, dropout_p=dropout
            )
        y = self.norm1(x + self.dropout(self.out_proj(join_heads(attended))))
        wide = self.dropout(functional.relu(self.linear1(y)))
        out: Tensor = self.norm2(y + self.dropout(self.linear2(wide)))
        return out


def _in_chunks(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, rows: Tensor, chunk: int
) -> Tensor:
    """Compute attention for `chunk` rows at a time, in a loop that plain tracing would unroll.
    `rows` is s as a tensor, because tracing would turn a Python number into a constant."""
    chunks: list[Tensor] = []
    keys = key.transpose(2, 3) * query.size(3) ** -0.5
    for place in range((int(rows) + chunk - 1) // chunk):
        logits = query[:, :, place * chunk : (place + 1) * chunk] @ keys + bias
        chunks.append(torch.softmax(logits, dim=-1) @ value)
    return torch.cat(chunks, dim=2)


class Poly(Head):
    """Poly-encoder (Humeau et al., 2020, 1905.01969, 4.4): learned codes a_1 .. a_m attend over the
    states h_1 .. h_t of the query's tokens, and the item's vector y attends over the results:

        v_k = sum_j softmax_j(a_k . h_j) h_j,    v = sum_k softmax_k(y . v_k) v_k,    score = v . y

    Deviation: the codes attend to special tokens, too.
    """

    query_reads = "tokens"

    def __init__(self, encoder: Any, *, codes: int = 64) -> None:
        super().__init__(encoder)
        self.codes = nn.Parameter(torch.randn(codes, self.dimensions) * self.dimensions**-0.5)

    def of_queries(self, states: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        views = _attended(self.codes @ states.transpose(1, 2), mask, states)
        return views, mask.any(1, keepdim=True).expand(-1, len(self.codes))

    def forward(self, query: Tensor, mask: Tensor, items: Tensor, item_mask: Tensor) -> Tensor:
        vectors = items[:, :, 0]
        mixed = _attended(vectors @ query.transpose(1, 2), mask, query)
        return listed((mixed * vectors).sum(-1), item_mask)


def _attended(logits: Tensor, mask: Tensor, values: Tensor) -> Tensor:
    """Return means (..., p, d) of values (..., t, d), weighted by the softmax of logits (..., p, t)
    over the tokens of masks (..., t)."""
    return torch.softmax(logits + bias_of(mask).unsqueeze(-2), dim=-1) @ values


class SumOfMax(Head):
    """Sum-of-max finds the best match in the item for each query token (Zhang and Stratos, 2021;
    ColBERT, Khattab and Zaharia, 2020, 3.3). With states h_j of the query and g_k of the item:

        score = sum_j max_k h_j . g_k

    With `projected`, W h_j and W g_k replace h_j and g_k, for one linear map W (ColBERT, 3.2).
    Unlike in ColBERT, states are not normalized, queries have no [MASK], and items keep their
    punctuation.
    """

    query_reads = "tokens"
    item_reads = "tokens"

    def __init__(self, encoder: Any, *, projected: bool = False, dimensions: int = 128) -> None:
        super().__init__(encoder)
        self.project: nn.Module = nn.Identity()
        if projected:
            self.project = nn.Linear(self.dimensions, dimensions, bias=False)
            self.dimensions = dimensions

    def of_queries(self, states: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return self.project(states).float(), mask

    of_items = of_queries

    def forward(self, query: Tensor, mask: Tensor, items: Tensor, item_mask: Tensor) -> Tensor:
        with in_full(items):
            matches = items.float() @ query.float().unsqueeze(1).transpose(2, 3)
        best = (matches + bias_of(item_mask).unsqueeze(-1)).amax(2) * mask.unsqueeze(1)
        return listed(best.sum(-1), item_mask)


class Deformer(Head):
    """The lower k of n layers read each text alone, the upper layers read the pair (Cao et al.,
    2020, 2005.00697, with k = 9 and n = 12):

        x = L_(k+1:n)([L_(1:k)(query); L_(1:k)(item)]),    score = w . tanh(W x_1 + w') + w0

    Towers keep the lower layers. The head's layers begin as copies of the encoder's, and W random.

    Deviations: no auxiliary losses; two towers (with `shared` one tower, as in the paper); an item
    has its own [CLS] and token type 0, as in CMC's code.
    """

    query_reads = "tokens"
    item_reads = "tokens"

    def __init__(self, encoder: Any, *, layers: int = 3, dropout: float = 0.1) -> None:
        super().__init__(encoder)
        own = layers_of(encoder)
        # A saved tower may have too few layers: the head's weights are loaded later.
        chosen = [own[-min(left, len(own))] for left in range(layers, 0, -1)]
        self.layers = nn.ModuleList(map(copy.deepcopy, chosen))
        self.out = ClsHead(self.dimensions, dropout=dropout)

    def take_over(self, query: Any, item: Any) -> None:
        """Remove the upper layers from the towers; InputError if no layer would be left."""
        for encoder in [query] if item is query else [query, item]:
            cut_layers(encoder, len(self.layers))

    def forward(self, query: Tensor, mask: Tensor, items: Tensor, item_mask: Tensor) -> Tensor:
        c = items.shape[1]
        queries = query.unsqueeze(1).expand(-1, c, -1, -1)
        masks = mask.unsqueeze(1).expand(-1, c, -1)
        x = torch.cat([queries, items], dim=2).flatten(0, 1)
        both = bias_of(torch.cat([masks, item_mask], dim=2).flatten(0, 1))[:, None, None, :]
        for layer in self.layers[:-1]:
            x = run_layer(layer, x, x, both)
        first = run_layer(self.layers[-1], x[:, :1], x, both)
        with in_full(first):
            scores = self.out(first)
        return listed(scores.reshape(item_mask.shape[:2]), item_mask)


class MixEncoder(Head):
    """The query is encoded once, and each item attends over it (Yang et al., 2023, 2210.05261;
    equations as in the authors' code).

    An item is a vector e. In the last layer of the query encoder, whose input states are x, e
    attends to the query and itself, which gives e', and u is a summary of the query for this item:

        e' = F(e + O MHA(Q e, [K x; K' e], [V x; V' e]))
        u  = F(g * a),    a = O MHA(Q' e, K x, V x),    g = sigmoid(W [e; a])
        score = e' . u

    O is the output of attention, F the norm and the feed-forward block after it. The query tower
    keeps the lower layers; the last layer moves to the head, its Q becomes Q', and Q, K' and V'
    begin as copies.

    Deviations: e is the item tower's vector and not the state of a learned token; e attends in one
    layer only; two towers. As in the authors' code and CMC's, the score is the inner product (the
    paper, 3.2, uses the cosine), and attention has no dropout.
    """

    query_reads = "tokens"

    def __init__(self, encoder: Any) -> None:
        super().__init__(encoder)
        layer = copy.deepcopy(layers_of(encoder)[-1])
        own = layer.attention.self
        self.heads = int(own.num_attention_heads)
        self.query, self.key, self.value = own.query, own.key, own.value
        self.item_query = copy.deepcopy(own.query)
        self.item_key, self.item_value = copy.deepcopy(own.key), copy.deepcopy(own.value)
        self.output, self.wide = layer.attention.output, layer.intermediate
        self.narrow = layer.output
        self.gate = nn.Linear(2 * self.dimensions, self.dimensions)

    def take_over(self, query: Any, item: Any) -> None:
        """Remove the query tower's last layer; InputError if no layer would be left, or if the
        towers are shared."""
        if item is query:
            raise InputError("a mixencoder's towers have different layers: set shared = false")
        cut_layers(query, 1)

    def forward(self, query: Tensor, mask: Tensor, items: Tensor, item_mask: Tensor) -> Tensor:
        e, bias = items[:, :, 0], bias_of(mask)[:, None, None, :]
        scale = (self.dimensions // self.heads) ** -0.5
        keys = in_heads(self.key(query), self.heads).transpose(2, 3) * scale  # K x
        values = in_heads(self.value(query), self.heads)  # V x
        own_query, own_key, own_value = (
            in_heads(linear(e), self.heads)
            for linear in (self.item_query, self.item_key, self.item_value)
        )
        own_logit = (own_query * own_key).sum(-1, keepdim=True) * scale
        weights = torch.softmax(torch.cat([own_query @ keys + bias, own_logit], dim=-1), dim=-1)
        mixed = weights[..., :-1] @ values + weights[..., -1:] * own_value
        enriched = self.output(join_heads(mixed), e)

        weights = torch.softmax(in_heads(self.query(e), self.heads) @ keys + bias, dim=-1)
        a = self.output.dropout(self.output.dense(join_heads(weights @ values)))
        gate = torch.sigmoid(self.gate(torch.cat([e, a], dim=-1)))
        gathered = self.output.LayerNorm(gate * a)
        left, right = (self.narrow(self.wide(x), x) for x in (enriched, gathered))
        return listed((left * right).sum(-1), item_mask)
