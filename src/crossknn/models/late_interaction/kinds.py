"""The late-interaction heads by name."""

from __future__ import annotations

from crossknn.errors import InputError, nearest
from crossknn.models.late_interaction.cmc import CMC
from crossknn.models.late_interaction.deformer import Deformer
from crossknn.models.late_interaction.head import Head
from crossknn.models.late_interaction.mixencoder import MixEncoder
from crossknn.models.late_interaction.poly import Poly
from crossknn.models.late_interaction.som import SumOfMax

KINDS: dict[str, type[Head]] = {
    "cmc": CMC,
    "poly": Poly,
    "som": SumOfMax,
    "deformer": Deformer,
    "mixencoder": MixEncoder,
}


def head_of(kind: str) -> type[Head]:
    """The head of that name; InputError for an unknown one."""
    if kind not in KINDS:
        raise InputError(f"the late-interaction model {kind!r} is unknown ({nearest(kind, KINDS)})")
    return KINDS[kind]
