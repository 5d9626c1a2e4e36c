"""A head that reads pair states and word matches (torch; extra `torch`).

The pair is encoded jointly, `[CLS] query [SEP] item [SEP]`, and four channels are read from it:

- cosine: mean state of the query's tokens against mean state of the item's tokens, an [EMB] score
  as in ANNCUR (Yadav et al. 2022) with means in place of single tokens;
- lexical: for each query token a learned weight times a saturated count of its matches in the item
  (BM25's term; the interaction matrix as in KNRM, Xiong et al. 2017, read beside the states as in
  CEDR, MacAvaney et al. 2019), as a mean over the weights and as a sum;
- late: for each query token the largest cosine to a state of the item, weighted alike (ColBERT's
  MaxSim, Khattab and Zaharia 2020).

The score is their learned linear combination and a linear layer on the [CLS] state, zero at first.
It depends on nothing but the pair. Axes: b pairs, t tokens, d dimensions, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from crossknn.errors import InputError


class InteractionHead(nn.Module):  # type: ignore[misc]
    """Scores from states and word matches; see the module's docstring.

    Args:
        dimensions: d. vocabulary: v; every token weighs one at first (`weigh_tokens`).
        special: ids of the tokens that belong to neither text ([CLS], [SEP], [PAD]).
        average_length: item tokens at which the length normalisation is neutral.
    """

    def __init__(
        self,
        dimensions: int,
        vocabulary: int,
        special: Sequence[int],
        average_length: float = 80.0,
    ) -> None:
        super().__init__()
        self.special = tuple(special)
        self.average_length = average_length
        self.token_weight = nn.Embedding.from_pretrained(torch.ones(vocabulary, 1), freeze=False)
        self.k1 = nn.Parameter(torch.tensor(1.2))
        self.b = nn.Parameter(torch.tensor(0.0))  # through a sigmoid: 0.5 at first
        self.mix = nn.Parameter(torch.tensor([10.0, 5.0, 0.1, 5.0]))
        self.cls = nn.Linear(dimensions, 1)
        nn.init.zeros_(self.cls.weight)
        nn.init.zeros_(self.cls.bias)

    def weigh_tokens(self, weights: Tensor) -> None:
        """Set the tokens' weights (v,), such as inverse document frequencies.

        Raises InputError for another number of weights.
        """
        if weights.shape != self.token_weight.weight.shape[:1]:
            raise InputError(
                f"there are weights of shape {tuple(weights.shape)} for "
                f"{self.token_weight.num_embeddings} tokens"
            )
        with torch.no_grad():
            self.token_weight.weight.copy_(weights.float().unsqueeze(-1))

    def forward(
        self, states: Tensor, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor
    ) -> Tensor:
        """(b, t, d) and (b, t) three times -> (b,)."""
        channels = self.channels(states, input_ids, attention_mask, token_type_ids)
        first: Tensor = self.cls(states[:, 0]).squeeze(-1)
        return (channels * self.mix).sum(-1) + first

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
