"""What compares a query with candidates, from the states that the towers hand over.

Axes: b queries, c candidates, t tokens (t_q of a query, t_i of an item), d dimensions. A single
vector is t = 1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn

from crossknn.errors import InputError, nearest
from crossknn.models.backbone import MASKED

Reads = Literal["vector", "tokens"]
O = TypeVar("O", bound="HeadOptions")  # noqa: E741


@dataclass(frozen=True, kw_only=True)
class HeadOptions:
    """The settings of a head: each of a known type, with a default.

    A whole number counts something: it is 1 or more. Another number is a share: it is from 0 to
    below 1.
    """

    def __post_init__(self) -> None:
        """Raises InputError for a value of another type, or outside of these."""
        for field in fields(self):
            value = getattr(self, field.name)
            wanted = type(field.default)
            fits = type(value) is wanted or (wanted is float and type(value) is int)
            if not fits:
                raise InputError(
                    f"{field.name} is {value!r}, which a head cannot have: it is {field.default!r} "
                    "by default"
                )
            if wanted is int and value < 1:
                raise InputError(f"{field.name} is {value}; it must be 1 or more")
            if wanted is float and not 0 <= value < 1:
                raise InputError(f"{field.name} is {value}; it must be from 0 to below 1")

    @classmethod
    def of(cls: type[O], given: Mapping[str, Any]) -> O:
        """Options by name, the rest by default; InputError for an unknown one."""
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise InputError(f"the head has no option {name!r} ({nearest(name, known)})")
        return cls(**given)


class Head(nn.Module, ABC):  # type: ignore[misc]
    """Scores of each query's candidates; one subclass per paper.

    query_reads, item_reads: what the towers hand over, one vector or the states of all tokens.
    joint: whether the score of a candidate depends on the others. dimensions: of what `of_items`
    gives, which an index stores.
    """

    Options: ClassVar[type[HeadOptions]] = HeadOptions
    query_reads: ClassVar[Reads] = "vector"
    item_reads: ClassVar[Reads] = "vector"
    joint: ClassVar[bool] = False
    dimensions: int

    def __init__(self, encoder: Any, options: Any) -> None:
        """A head with new weights on the states of a Hugging Face encoder."""
        super().__init__()
        self.options = options
        self.dimensions = int(encoder.config.hidden_size)

    def take_over(self, query: Any, item: Any) -> None:
        """What the head of a new model takes from its encoders: by default nothing."""

    def of_queries(self, states: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """What of a query is compared: (b, t, d) and (b, t) -> (b, t', d') and (b, t')."""
        return states, mask

    def of_items(self, states: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """What of an item is stored: (b, t, d) and (b, t) -> (b, t', d') and (b, t')."""
        return states, mask

    @abstractmethod
    def forward(
        self, query: Tensor, query_mask: Tensor, items: Tensor, item_mask: Tensor
    ) -> Tensor:
        """Scores (b, c), -inf for an item without any token, which is padding.

        Takes states and masks (True: a token) of queries, (b, t_q, d) and (b, t_q), and of their
        candidates, (b, c, t_i, d) and (b, c, t_i).
        """


def in_full(states: Tensor) -> torch.autocast:
    """A context in which products are float32 also where the model computes in bfloat16.

    A list's scores lie close together, and rounded ones would tie.
    """
    return torch.autocast(states.device.type, enabled=False)


def bias_of(mask: Tensor) -> Tensor:
    """What is added to attention logits, 0 or so low that nothing is left: (...) -> (...)."""
    return (1.0 - mask.float()) * MASKED


def listed(scores: Tensor, item_mask: Tensor) -> Tensor:
    """Scores (b, c) float32, -inf where the mask (b, c, t_i) knows no token."""
    return scores.float().masked_fill(~item_mask.any(-1), float("-inf"))


def attended(logits: Tensor, mask: Tensor, values: Tensor) -> Tensor:
    """Means of values (..., t, d), weighted by softmax of logits (..., p, t) where masks (..., t)
    allow: (..., p, d)."""
    weights = torch.softmax(logits + bias_of(mask).unsqueeze(-2), dim=-1)
    return weights @ values
