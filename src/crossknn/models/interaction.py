"""A cross-encoder that reads pair states and word matches (torch; extra `torch`).

The pair is encoded jointly, `[CLS] query [SEP] item [SEP]`, and four channels are read from it:

- cosine: mean state of the query's tokens against mean state of the item's tokens, an [EMB] score
  as in ANNCUR (Yadav et al. 2022) with means in place of single tokens;
- lexical: for each query token a learned weight times a saturated count of its matches in the item
  (BM25's term; the interaction matrix as in KNRM, Xiong et al. 2017, read beside the states as in
  CEDR, MacAvaney et al. 2019);
- late: for each query token the largest cosine to a state of the item, weighted alike (ColBERT's
  MaxSim, Khattab and Zaharia 2020);
- cls: a linear layer on the [CLS] state, zero at first.

The score is their learned linear combination. It depends on nothing but the pair.
Axes: b pairs, t tokens, d dimensions, v vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

CHANNELS = ("cosine", "lexical", "lexical_sum", "late")
MASKED = -1e9


class InteractionCrossEncoder(nn.Module):  # type: ignore[misc]
    """Scores of encoded pairs; see the module's docstring.

    Args:
        encoder: a transformers `BertModel` without pooler.
        special: ids of the tokens that belong to neither text ([CLS], [SEP], [PAD]).
        idf: (v,) initial token weights.
        average_length: item tokens at which the length normalisation is neutral.
    """

    def __init__(
        self, encoder: Any, special: tuple[int, ...], idf: Tensor, average_length: float = 80.0
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.special = tuple(special)
        self.average_length = average_length
        self.token_weight = nn.Embedding.from_pretrained(
            idf.float().reshape(-1, 1).clone(), freeze=False
        )
        self.k1 = nn.Parameter(torch.tensor(1.2))
        self.b = nn.Parameter(torch.tensor(0.0))  # through a sigmoid: 0.5 at first
        self.mix = nn.Parameter(torch.tensor([10.0, 5.0, 0.1, 5.0]))
        self.cls = nn.Linear(encoder.config.hidden_size, 1)
        nn.init.zeros_(self.cls.weight)
        nn.init.zeros_(self.cls.bias)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """(b, t) three times -> raw scores (b,)."""
        states = self.states(input_ids, attention_mask, token_type_ids)
        channels = self.channels(states, input_ids, attention_mask, token_type_ids)
        return channels @ self.mix + self.cls(states[:, 0]).squeeze(-1)

    def states(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Contextual states of the pair: (b, t) three times -> (b, t, d)."""
        bias = (1.0 - attention_mask[:, None, None, :].float()) * MASKED
        outputs = self.encoder(
            input_ids=input_ids, attention_mask=bias, token_type_ids=token_type_ids
        )
        states: Tensor = outputs.last_hidden_state.float()
        return states

    def channels(
        self, states: Tensor, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor
    ) -> Tensor:
        """Values of the channels: (b, t, d) and (b, t) three times -> (b, 4)."""
        text = attention_mask.bool()
        for token in self.special:
            text = text & (input_ids != token)
        query = (text & (token_type_ids == 0)).float()
        item = (text & (token_type_ids == 1)).float()
        cosine = (
            functional.normalize(masked_mean(states, query), dim=-1)
            * functional.normalize(masked_mean(states, item), dim=-1)
        ).sum(-1)

        weights = functional.relu(self.token_weight(input_ids).squeeze(-1)) * query
        total = weights.sum(1).clamp(min=1e-3)
        same = (input_ids[:, :, None] == input_ids[:, None, :]).float() * item[:, None, :]
        counts = same.sum(-1)
        b = torch.sigmoid(self.b)
        norm = self.k1.abs() * (1 - b + b * item.sum(1, keepdim=True) / self.average_length)
        matches = (weights * counts / (counts + norm + 1e-6)).sum(1)

        unit = functional.normalize(states, dim=-1)
        similar = unit @ unit.transpose(1, 2) + (item[:, None, :] - 1.0) * 4.0
        best = similar.amax(-1).clamp(min=-1.0)
        late = (weights * best).sum(1) / total
        return torch.stack([cosine, matches / total, matches, late], dim=-1)


def masked_mean(states: Tensor, mask: Tensor) -> Tensor:
    """Masked mean over t: (b, t, d), (b, t) -> (b, d)."""
    return (states * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True).clamp(min=1.0)


class MeanPooled(nn.Module):  # type: ignore[misc]
    """A dual encoder: unit mean-pooled states of an encoder."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """(b, t) three times -> unit vectors (b, d)."""
        bias = (1.0 - attention_mask[:, None, None, :].float()) * MASKED
        states = self.encoder(
            input_ids=input_ids, attention_mask=bias, token_type_ids=token_type_ids
        ).last_hidden_state
        return functional.normalize(masked_mean(states.float(), attention_mask.float()), dim=-1)


def prune_vocabulary(encoder: Any, kept_ids: Tensor) -> None:
    """Keep the given rows (v',) of a BertModel's word embeddings, in that order."""
    old = encoder.embeddings.word_embeddings.weight.data
    encoder.embeddings.word_embeddings = nn.Embedding.from_pretrained(
        old[kept_ids].clone(), freeze=False, padding_idx=0
    )
    encoder.config.vocab_size = len(kept_ids)


def keep_layers(encoder: Any, layers: tuple[int, ...]) -> None:
    """Keep the given transformer layers of a BertModel, in that order."""
    encoder.encoder.layer = nn.ModuleList([encoder.encoder.layer[position] for position in layers])
    encoder.config.num_hidden_layers = len(layers)
