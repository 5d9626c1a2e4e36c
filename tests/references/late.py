"""Independent forward passes of CMC and of its late-interaction rivals, written from the papers.

One query against a list of candidates, one text at a time: there is no batch and no padding here,
so nothing can leak from one text into another. Token ids come in as the caller's tokenizer made
them (special tokens included); weights are explicit tensors under Hugging Face's BERT names
(`BertModel.state_dict()`); everything is computed in the precision of those weights. Slow and plain.

Sources, and what is said below to be "left open" is left open by them:

- CMC: Song et al., EMNLP 2024 (shared/papers/cmc-emnlp2024.txt) and github.com/yc-song/cmc.
- DeFormer: Cao et al., ACL 2020, arXiv 2005.00697. The text of its section 3 could not be had; its
  abstract and the authors' code (github.com/StonyBrookNLP/deformer, models/ebert.py) were.
- MixEncoder: Yang et al., EMNLP 2023, arXiv 2210.05261 (whole text), github.com/ysngki/MixEncoder.
- Poly-encoder: Humeau et al., ICLR 2020, arXiv 1905.01969 (the equations of section 4.4).
- Sum-of-max: Khattab and Zaharia 2020 and Zhang and Stratos 2021, as the CMC paper uses them.

Axes: n query tokens, l candidate tokens, k context vectors a candidate, m codes, d hidden, c candidates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class Bert:
    """A BERT given by its weights.

    `weights` is a BertModel's state dict; heads, layers and eps are the three numbers of its
    configuration that do not show in the shapes.
    """

    weights: Weights
    heads: int
    layers: int
    eps: float = 1e-12

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The weights below a prefix, the prefix taken off."""
        return {k[len(prefix) :]: v for k, v in self.weights.items() if k.startswith(prefix)}


# --- BERT (Devlin et al. 2019) ------------------------------------------------------------------


def linear(x: Tensor, weights: Weights, name: str) -> Tensor:
    """An affine map: (..., d) -> (..., e)."""
    out = x @ weights[f"{name}.weight"].T
    bias = weights.get(f"{name}.bias")
    return out if bias is None else out + bias


def layer_norm(x: Tensor, weights: Weights, name: str, eps: float) -> Tensor:
    """Ba et al. 2016, over the last axis, with the biased variance."""
    centred = x - x.mean(-1, keepdim=True)
    variance = (centred**2).mean(-1, keepdim=True)
    return (
        centred / torch.sqrt(variance + eps) * weights[f"{name}.weight"] + weights[f"{name}.bias"]
    )


def gelu(x: Tensor) -> Tensor:
    """x times the normal distribution function of x (the exact form, BERT's)."""
    return x * 0.5 * (1.0 + torch.erf(x / 2.0**0.5))


def attend(queries: Tensor, keys: Tensor, values: Tensor, heads: int) -> Tensor:
    """Scaled dot-product attention with heads: (a, d), (b, d), (b, d) -> (a, d).

    Vaswani et al. 2017, equation 1, one head at a time; the heads' outputs side by side.
    """
    width = queries.shape[-1] // heads
    out = []
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        scores = queries[:, part] @ keys[:, part].T / width**0.5
        out.append(torch.softmax(scores, -1) @ values[:, part])
    return torch.cat(out, -1)


def finish_layer(attended: Tensor, residual: Tensor, w: Weights, eps: float) -> Tensor:
    """What follows attention in a BERT layer: out-projection, skip, norm, feed-forward, skip, norm."""
    x = linear(attended, w, "attention.output.dense") + residual
    x = layer_norm(x, w, "attention.output.LayerNorm", eps)
    y = linear(gelu(linear(x, w, "intermediate.dense")), w, "output.dense")
    return layer_norm(x + y, w, "output.LayerNorm", eps)


def embed(bert: Bert, ids: Sequence[int], token_type: int = 0, first_position: int = 0) -> Tensor:
    """BERT's input: word + position + token type, normalised: n ids -> (n, d)."""
    w = bert.part("embeddings.")
    positions = range(first_position, first_position + len(ids))
    x = w["word_embeddings.weight"][list(ids)] + w["position_embeddings.weight"][list(positions)]
    x = x + w["token_type_embeddings.weight"][token_type]
    return layer_norm(x, w, "LayerNorm", bert.eps)


def run_layer(bert: Bert, j: int, x: Tensor) -> Tensor:
    """Layer j, counted from 0, full self-attention over x: (n, d) -> (n, d)."""
    w = bert.part(f"encoder.layer.{j}.")
    q, k, v = (linear(x, w, f"attention.self.{name}") for name in ("query", "key", "value"))
    return finish_layer(attend(q, k, v, bert.heads), x, w, bert.eps)


def encode(bert: Bert, ids: Sequence[int], token_type: int = 0) -> Tensor:
    """All layers over one text: n ids -> (n, d)."""
    x = embed(bert, ids, token_type)
    for j in range(bert.layers):
        x = run_layer(bert, j, x)
    return x


# --- DeFormer -----------------------------------------------------------------------------------


def deformer(
    bert: Bert,
    head: Weights,
    query: Sequence[int],
    candidates: Sequence[Sequence[int]],
    *,
    lower: int,
    candidate_bert: Bert | None = None,
    token_types: tuple[int, int] = (0, 1),
    candidate_position: int = 0,
    pooler: bool = False,
) -> Tensor:
    """Scores of c candidates, (c,): Cao et al. 2020, abstract and section 3.

    "substitutes the full self-attention with question-wide and passage-wide self-attentions in the
    lower layers": layers 1..`lower` run over each text by itself; the two outputs are put one after
    the other (query first) and layers `lower`+1..n run over both together, with the same weights as
    the original transformer. The score is a linear map (`head`) of the first position, as in BERT's
    classification of pairs.

    Left open, or different from one source to the next:

    - Positions of the second text: the authors' code counts each text's positions from 0
      (BertEmbedding, `tf.range(max_seq_length)`, called once a text): `candidate_position` = 0.
    - Token types: 0 and 1 in the authors' code (and in MixEncoder's); CMC's code gives 0 to both.
    - The special tokens of the second text: "text [SEP]" in the authors' code, "[CLS] text [SEP]" in
      MixEncoder's and CMC's. The caller's ids decide.
    - BERT's tanh pooler before the linear map: in the authors' code and in MixEncoder's, not in CMC's.
    - One transformer reads both texts in the paper and in all three codes; `candidate_bert` is for a
      caller whose candidates have lower layers of their own.
    - `lower`: 9 of 12 in the authors' code (n - 3 in MixEncoder's). CMC's code joins the last 4 layers
      but takes hidden_states[-4], the output of layer n - 3, as their input: layer n - 3 runs twice,
      once apart and once together. Nothing in the paper asks for it and it is not done here.
    """
    x = embed(bert, query, token_types[0])
    for j in range(lower):
        x = run_layer(bert, j, x)
    scores = []
    for candidate in candidates:
        other = candidate_bert or bert
        y = embed(other, candidate, token_types[1], candidate_position)
        for j in range(lower):
            y = run_layer(other, j, y)
        both = torch.cat([x, y])
        for j in range(lower, bert.layers):
            both = run_layer(bert, j, both)
        retriever = both[0]
        if pooler:
            retriever = torch.tanh(linear(retriever, bert.weights, "pooler.dense"))
        scores.append((retriever @ head["weight"].reshape(-1)) + head["bias"].reshape(()))
    return torch.stack(scores)


# --- MixEncoder ---------------------------------------------------------------------------------


def mix_context(
    bert: Bert,
    candidate: Sequence[int],
    *,
    codes: Tensor | None = None,
    special: int = 0,
    token_type: int = 0,
) -> Tensor:
    """The k context embeddings of a candidate, (k, d): Yang et al. 2023, section 3.1.

    S-strategy ("prepending k special tokens {S_i} to T_i before feeding T_i into the Transformer
    encoder, and using the output at these special tokens as context embeddings"): `special` = k, the
    ids begin with those k tokens. With one context vector and no token added to the vocabulary, [CLS]
    is the special token. C-strategy ("k context codes [...] to extract global features from output of
    the encoder by attention mechanism"): `codes`, (k, d).

    Left open: the scale of the C-strategy's attention (none in the authors' code, as in Poly-encoder).
    The paper's default is S; the released code has C only.
    """
    out = encode(bert, candidate, token_type)
    if codes is not None:
        return torch.softmax(codes @ out.T, -1) @ out
    return out[:special]


def mixencoder(
    query_bert: Bert,
    candidate_bert: Bert,
    interaction: Mapping[int, Weights],
    gate: Weights,
    query: Sequence[int],
    candidates: Sequence[Sequence[int]],
    *,
    codes: Tensor | None = None,
    special: int = 0,
    similarity: str = "cosine",
    token_types: tuple[int, int] = (0, 0),
) -> Tensor:
    """Scores of c candidates, (c,): Yang et al. 2023, sections 3.1 to 3.2.

    The query runs through its layers once, untouched by the candidates. At each interaction layer j
    (the keys of `interaction`, counted from 0), with K and V the query's key and value matrices of
    that layer, computed from the layer's input:

    - equation 1, E_j = Attn(Q', [K'; K], [V'; V]), Q', K', V' from E_{j-1} "with a linear
      transformation": one softmax over the candidate's own k vectors and the query's n tokens;
    - equation 2, H_j = Gate(Attn(Q*, K, V), H_{j-1}), "Q* derived from E_{j-1} by a pooling operation",
      "H_0 is initialized as a zero matrix": softmax over the query's tokens alone.

    Section 3.2: e is "the mean of the i-th row of E", h the row of H, and "the cosine similarity
    between e_i and h_i is used" (`similarity` = "cosine").

    Left open, and taken from the authors' code:

    - Attn is followed by a layer's out-projection, skip and norm, feed-forward, skip and norm
      (`finish_layer`), with weights of their own, one set a layer, shared by E and H, named as a BERT
      layer's below each layer of `interaction`.
    - For H the skip connection of the attention's output is the gate itself:
      g = sigmoid(W [p; a; H_{j-1}] + b), p the pooled E_{j-1} before any linear map, a the
      out-projected attention, and g * a + (1 - g) * H_{j-1}; one gate for all layers.
    - The pooling is the mean over the k vectors; Q* = (its own linear map, `compress`) of that mean.
    - Linear maps: `candidate_query`, `candidate_key`, `candidate_value`, `compress_query`, with biases.
    - Number of heads: the encoder's.
    - One encoder for queries and candidates in the authors' code (pass the same twice).
    - The released code, and CMC's copy of it, scores by the dot product: `similarity` = "dot".
    """
    eps, heads = query_bert.eps, query_bert.heads
    states: list[Tensor] = []  # inputs of the query's layers, then the output: (n, d) each
    x = embed(query_bert, query, token_types[0])
    for j in range(query_bert.layers):
        states.append(x)
        x = run_layer(query_bert, j, x)
    scores = []
    for candidate in candidates:
        e = mix_context(
            candidate_bert, candidate, codes=codes, special=special, token_type=token_types[1]
        )
        h = torch.zeros_like(e[:1])
        for j in sorted(interaction):
            w = interaction[j]
            layer = query_bert.part(f"encoder.layer.{j}.")
            keys = linear(states[j], layer, "attention.self.key")
            values = linear(states[j], layer, "attention.self.value")
            pooled = e.mean(0, keepdim=True)
            attended = attend(
                linear(e, w, "candidate_query"),
                torch.cat([linear(e, w, "candidate_key"), keys]),
                torch.cat([linear(e, w, "candidate_value"), values]),
                heads,
            )
            compressed = attend(linear(pooled, w, "compress_query"), keys, values, heads)
            h = _gated(compressed, h, pooled, w, gate, eps)
            e = finish_layer(attended, e, w, eps)
        mean = e.mean(0)
        score = mean @ h[0]
        if similarity == "cosine":
            score = score / (mean.norm() * h[0].norm())
        scores.append(score)
    return torch.stack(scores)


def _gated(
    compressed: Tensor, h: Tensor, pooled: Tensor, w: Weights, gate: Weights, eps: float
) -> Tensor:
    """Equation 2 of MixEncoder with the rest of the layer: (1, d) -> (1, d)."""
    a = linear(compressed, w, "attention.output.dense")
    g = torch.sigmoid(linear(torch.cat([pooled, a, h], -1), gate, "gate"))
    x = layer_norm(g * a + (1 - g) * h, w, "attention.output.LayerNorm", eps)
    y = linear(gelu(linear(x, w, "intermediate.dense")), w, "output.dense")
    return layer_norm(x + y, w, "output.LayerNorm", eps)


# --- Poly-encoder -------------------------------------------------------------------------------


def poly(
    query_bert: Bert,
    candidate_bert: Bert,
    codes: Tensor,
    query: Sequence[int],
    candidates: Sequence[Sequence[int]],
) -> Tensor:
    """Scores of c candidates, (c,): Humeau et al. 2020, section 4.4.

    y^i_ctxt = sum_j w_j h_j with w = softmax(c_i . h_1, ..., c_i . h_N), h over all outputs of the
    context's transformer; y_ctxt = sum_i w_i y^i_ctxt with w = softmax(y_cand . y^1_ctxt, ...);
    "the final score for that candidate label is then y_ctxt . y_cand". No scaling by the width
    anywhere, no projection. y_cand is the first output (section 4.2, `red`). `codes` is (m, d).

    Left open: padding (there is none here).
    """
    h = encode(query_bert, query)
    contexts = torch.stack([torch.softmax(h @ code, 0) @ h for code in codes])
    scores = []
    for candidate in candidates:
        y = encode(candidate_bert, candidate)[0]
        context = torch.softmax(contexts @ y, 0) @ contexts
        scores.append(context @ y)
    return torch.stack(scores)


# --- Sum-of-max ---------------------------------------------------------------------------------


def sum_of_max(
    query_bert: Bert,
    candidate_bert: Bert,
    query: Sequence[int],
    candidates: Sequence[Sequence[int]],
    *,
    projection: Tensor | None = None,
    unit: bool = False,
) -> Tensor:
    """Scores of c candidates, (c,): sum over the query's tokens of the best candidate token's product.

    CMC paper, section 2.2: "Sum-of-Max [...] rely on maximum similarity operations [...] on top of
    bi-encoders", "every token embedding per each candidate". Its code (HardAttention, from Zhang and
    Stratos 2021) takes the encoder's outputs themselves: inner products, no projection, no unit
    length: the defaults here. Khattab and Zaharia 2020, section 3.3, project (`projection`, (e, d)) and
    normalise (`unit`), and pad the query with [MASK] tokens, which the caller's ids would hold.

    Left open: special tokens take part (they do in the code, and here); the code takes the first 128
    positions whether or not they are padding, which is an artefact of a fixed length, not done here.
    """

    def vectors(bert: Bert, ids: Sequence[int]) -> Tensor:
        out = encode(bert, ids)
        out = out if projection is None else out @ projection.T
        return out / out.norm(dim=-1, keepdim=True) if unit else out

    q = vectors(query_bert, query)
    return torch.stack(
        [(q @ vectors(candidate_bert, ids).T).max(1).values.sum() for ids in candidates]
    )


# --- CMC ----------------------------------------------------------------------------------------


def cmc(
    query_bert: Bert,
    candidate_bert: Bert,
    layers: Sequence[Weights],
    query: Sequence[int],
    candidates: Sequence[Sequence[int]],
    *,
    heads: int,
    variant: str = "paper",
    eps: float = 1e-5,
) -> Tensor:
    """Scores of c candidates given together, (c,): Song et al. 2024, section 3.1 and appendix C.

    Equations 1 and 2: h_q and h_c are the [CLS] outputs of two encoders. Equation 3: [h_q; h_c1; ...;
    h_cK] goes through "two layers of vanilla transformer encoder in Pytorch without positional
    encoding". Equation 4: the score is the dot product of the outputs of the query and the candidate.
    `layers` are the state dicts of `torch.nn.TransformerEncoderLayer`.

    Appendix C, "Extra Skip Connection": "for an encoder layer consisting of self-attention layer F(x),
    the output is now formulated as x + F(x)" (`variant` = "paper"). The authors' code gives
    0.5 * layer(x) + 0.5 * x instead (a fixed sigmoid(0) as the weight; `variant` = "reference").

    Left open: F is read as the whole encoder layer (attention, feed-forward, their skips and norms),
    as in the code, not the attention alone; the extra sum is not normalised; the number of heads, the
    feed-forward width and the activation are PyTorch's (ReLU, norm after the skip, eps 1e-5).
    """
    x = torch.stack(
        [encode(query_bert, query)[0]] + [encode(candidate_bert, ids)[0] for ids in candidates]
    )
    for w in layers:
        out = _torch_layer(x, w, heads, eps)
        x = x + out if variant == "paper" else 0.5 * out + 0.5 * x
    return x[1:] @ x[0]


def _torch_layer(x: Tensor, w: Weights, heads: int, eps: float) -> Tensor:
    """Vaswani et al. 2017, section 3, with the norm after the skip: (a, d) -> (a, d)."""
    q, k, v = (x @ w["self_attn.in_proj_weight"].T + w["self_attn.in_proj_bias"]).chunk(3, -1)
    x = layer_norm(x + linear(attend(q, k, v, heads), w, "self_attn.out_proj"), w, "norm1", eps)
    y = linear(torch.relu(linear(x, w, "linear1")), w, "linear2")
    return layer_norm(x + y, w, "norm2", eps)
