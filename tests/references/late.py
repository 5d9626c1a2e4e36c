"""Independent forward passes of CMC and of its late-interaction rivals, written from the papers.

One query against a list of candidates, one text at a time: there is no batch and no padding, so
nothing can leak from one text into another. Token ids come in as the caller's tokenizer made them;
weights are explicit tensors under Hugging Face's BERT names. Slow and plain.

Authors' code: github.com/yc-song/cmc, StonyBrookNLP/deformer and ysngki/MixEncoder.

Axes: n query tokens, l candidate tokens, d hidden, c candidates.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]
Ids = Sequence[int]
Items = Sequence[Ids]


@dataclass(frozen=True)
class Bert:
    """A BERT given by its weights, and by the numbers that do not show in their shapes."""

    weights: Weights
    heads: int
    layers: int
    eps: float = 1e-12

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The weights below a prefix, the prefix taken off."""
        return {k[len(prefix) :]: v for k, v in self.weights.items() if k.startswith(prefix)}


Towers = tuple[Bert, Bert]


def linear(x: Tensor, weights: Weights, name: str) -> Tensor:
    """An affine map: (..., d) -> (..., e)."""
    out = x @ weights[f"{name}.weight"].T
    bias = weights.get(f"{name}.bias")
    return out if bias is None else out + bias


def layer_norm(x: Tensor, weights: Weights, name: str, eps: float) -> Tensor:
    """Ba et al. 2016, over the last axis, with the biased variance."""
    centred = x - x.mean(-1, keepdim=True)
    unit = centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + eps)
    return unit * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def gelu(x: Tensor) -> Tensor:
    """x times the normal distribution function of x (the exact form, BERT's)."""
    return x * 0.5 * (1.0 + torch.erf(x / 2.0**0.5))


def attend(queries: Tensor, keys: Tensor, values: Tensor, heads: int) -> Tensor:
    """Vaswani et al. 2017, equation 1, one head at a time: (a, d), (b, d), (b, d) -> (a, d)."""
    width = queries.shape[-1] // heads
    out = []
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        scores = queries[:, part] @ keys[:, part].T / width**0.5
        out.append(torch.softmax(scores, -1) @ values[:, part])
    return torch.cat(out, -1)


def finish_layer(attended: Tensor, residual: Tensor, w: Weights, eps: float) -> Tensor:
    """What follows attention in a BERT layer."""
    x = linear(attended, w, "attention.output.dense") + residual
    return feed_forward(layer_norm(x, w, "attention.output.LayerNorm", eps), w, eps)


def feed_forward(x: Tensor, w: Weights, eps: float) -> Tensor:
    y = linear(gelu(linear(x, w, "intermediate.dense")), w, "output.dense")
    return layer_norm(x + y, w, "output.LayerNorm", eps)


def embed(bert: Bert, ids: Ids, token_type: int = 0) -> Tensor:
    """BERT's input: word + position + token type, normalised: n ids -> (n, d)."""
    w = bert.part("embeddings.")
    x = w["word_embeddings.weight"][list(ids)] + w["position_embeddings.weight"][: len(ids)]
    x = x + w["token_type_embeddings.weight"][token_type]
    return layer_norm(x, w, "LayerNorm", bert.eps)


def run_layer(bert: Bert, j: int, x: Tensor) -> Tensor:
    """Layer j, counted from 0, full self-attention over x: (n, d) -> (n, d)."""
    w = bert.part(f"encoder.layer.{j}.")
    q, k, v = (linear(x, w, f"attention.self.{name}") for name in ("query", "key", "value"))
    return finish_layer(attend(q, k, v, bert.heads), x, w, bert.eps)


def encode(bert: Bert, ids: Ids, token_type: int = 0) -> Tensor:
    """All layers over one text: n ids -> (n, d)."""
    x = embed(bert, ids, token_type)
    for j in range(bert.layers):
        x = run_layer(bert, j, x)
    return x


def deformer(towers: Towers, head: Weights, query: Ids, candidates: Items, *, lower: int) -> Tensor:
    """Scores (c,): Cao et al., ACL 2020, arXiv 2005.00697, abstract and section 3.

    Layers 1..`lower` run over each text by itself, the others over both. The score is a linear map
    (`head`) of BERT's tanh pooler at the first position. Open in the paper: a candidate's token type
    (1 in the authors' code, here 0 as in CMC's) and first position (0, as in the authors' code).
    """
    bert, candidate_bert = towers
    x = embed(bert, query)
    for j in range(lower):
        x = run_layer(bert, j, x)
    scores = []
    for candidate in candidates:
        y = embed(candidate_bert, candidate)
        for j in range(lower):
            y = run_layer(candidate_bert, j, y)
        both = torch.cat([x, y])
        for j in range(lower, bert.layers):
            both = run_layer(bert, j, both)
        first = torch.tanh(linear(both[0], bert.weights, "pooler.dense"))
        scores.append(first @ head["weight"].reshape(-1) + head["bias"].reshape(()))
    return torch.stack(scores)


def mixencoder(towers: Towers, w: Weights, gate: Weights, query: Ids, candidates: Items) -> Tensor:
    """Scores (c,): Yang et al., EMNLP 2023, arXiv 2210.05261, 3.1 and 3.2, one layer, k = 1.

    With K and V the query's key and value matrices of its last layer, and e the candidate's [CLS]:

    - equation 1, E = Attn(Q', [K'; K], [V'; V]), Q', K', V' from e by linear maps: one softmax over
      the candidate's own vector and the query's n tokens;
    - equation 2, H = Gate(Attn(Q*, K, V), H_0), Q* from e by a linear map, H_0 = 0, so that the
      gate is of e and the attention a: g = sigmoid(W [e; a] + b), and what passes is g * a.

    From the authors' code: Attn is followed by the rest of a layer, with one set of weights (`w`) for
    E and H; for H the skip is the gate; and the score is the dot product (the paper's: the cosine).
    """
    query_bert, candidate_bert = towers
    last = query_bert.layers - 1
    x = embed(query_bert, query)
    for j in range(last):
        x = run_layer(query_bert, j, x)
    layer = query_bert.part(f"encoder.layer.{last}.attention.self.")
    keys, values = linear(x, layer, "key"), linear(x, layer, "value")
    scores = []
    for candidate in candidates:
        e = encode(candidate_bert, candidate)[:1]
        own_keys = torch.cat([linear(e, w, "candidate_key"), keys])
        own_values = torch.cat([linear(e, w, "candidate_value"), values])
        heads, eps = query_bert.heads, query_bert.eps
        attended = attend(linear(e, w, "candidate_query"), own_keys, own_values, heads)
        enriched = finish_layer(attended, e, w, eps)[0]
        a = attend(linear(e, w, "compress_query"), keys, values, heads)
        a = linear(a, w, "attention.output.dense")
        g = torch.sigmoid(linear(torch.cat([e, a], -1), gate, "gate"))
        u = layer_norm(g * a, w, "attention.output.LayerNorm", eps)
        scores.append(enriched @ feed_forward(u, w, eps)[0])
    return torch.stack(scores)


def poly(towers: Towers, codes: Tensor, query: Ids, candidates: Items) -> Tensor:
    """Scores (c,): Humeau et al., ICLR 2020, arXiv 1905.01969, section 4.4.

    y^i_ctxt = sum_j w_j h_j with w = softmax(c_i . h_1, ..., c_i . h_N), h over all outputs of the
    context's transformer; y_ctxt = sum_i w_i y^i_ctxt with w = softmax(y_cand . y^1_ctxt, ...);
    "the final score for that candidate label is then y_ctxt . y_cand". `codes` is (m, d).
    """
    h = encode(towers[0], query)
    contexts = torch.stack([torch.softmax(h @ code, 0) @ h for code in codes])
    scores = []
    for candidate in candidates:
        y = encode(towers[1], candidate)[0]
        context = torch.softmax(contexts @ y, 0) @ contexts
        scores.append(context @ y)
    return torch.stack(scores)


def sum_of_max(towers: Towers, projection: Tensor, query: Ids, candidates: Items) -> Tensor:
    """Scores (c,): sum over the query's tokens of the best product with a candidate's token.

    Of the outputs themselves (Zhang and Stratos 2021; CMC's code), special tokens too, or projected by
    (e, d) as in Khattab and Zaharia 2020, section 3.3.
    """
    q = encode(towers[0], query) @ projection.T
    items = [encode(towers[1], ids) @ projection.T for ids in candidates]
    return torch.stack([(q @ item.T).max(1).values.sum() for item in items])


def cmc(
    towers: Towers,
    layers: Sequence[Weights],
    query: Ids,
    candidates: Items,
    *,
    heads: int,
    variant: str,
) -> Tensor:
    """Scores (c,) of candidates given together: Song et al., EMNLP 2024, 3.1 and appendix C.

    The [CLS] outputs of two encoders, [h_q; h_c1; ...; h_cK], go through "two layers of vanilla
    transformer encoder in Pytorch without positional encoding" (state dicts); the score is the dot
    product of what comes out for the query and the candidate. Appendix C: "the output is now
    formulated as x + F(x)" (`variant` "paper"); the authors' code: 0.5 * layer(x) + 0.5 * x.
    """
    texts = [(towers[0], query), *((towers[1], ids) for ids in candidates)]
    x = torch.stack([encode(bert, ids)[0] for bert, ids in texts])
    for w in layers:
        out = _torch_layer(x, w, heads)
        x = x + out if variant == "paper" else 0.5 * out + 0.5 * x
    return x[1:] @ x[0]


def _torch_layer(x: Tensor, w: Weights, heads: int, eps: float = 1e-5) -> Tensor:
    """Vaswani et al. 2017, section 3, with the norm after the skip: (a, d) -> (a, d)."""
    q, k, v = (x @ w["self_attn.in_proj_weight"].T + w["self_attn.in_proj_bias"]).chunk(3, -1)
    x = layer_norm(x + linear(attend(q, k, v, heads), w, "self_attn.out_proj"), w, "norm1", eps)
    y = linear(torch.relu(linear(x, w, "linear1")), w, "linear2")
    return layer_norm(x + y, w, "norm2", eps)
