"""ANNCUR: CUR approximation from fixed anchor items (Yadav et al. 2022, section 2.3-2.4).

paper            here
I_anc, k_i       the first batch: `anchors` of the budget
R_anc            index.anchors.scores (k_q, n)
C_test U R_anc   `needs.cur`
k_r              the second batch: the rest of the budget
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from crossknn.index.base import Index
from crossknn.index.stages import open_retriever
from crossknn.methods.base import Method, fraction, part
from crossknn.methods.needs import Center, anchors, cur
from crossknn.search.plan import Plan
from crossknn.spec import Spec

RANDOM = Spec("random")


@dataclass(frozen=True, kw_only=True)
class ANNCUR(Method):
    """Score anchor items, approximate all others, score the best of those.

    `retriever=random` takes the same anchor items for every query; any other retriever X picks
    them per query (ANNCUR_X). `center=none` is CUR as published; `auto` subtracts a constant from
    all scores first. `rcond` is the pseudo-inverse's cut: the paper's code keeps
    everything (1e-15), and its recall collapses where the number of anchor items is near that
    of anchor queries; 0.01 avoids the collapse.
    """

    name = "anncur"
    anchors: float = 0.5
    retriever: Spec = RANDOM
    center: Center = "auto"
    rcond: float = 1e-6

    def reads(self, index: Index) -> Collection[str]:
        return ("anchors",)

    def plan(self, index: Index, budget: int, seed: int) -> Plan:
        fraction(self.name, anchors=self.anchors, rcond=self.rcond)
        retriever = Spec("fixed") if self.retriever == RANDOM else self.retriever
        k_i = part(budget, self.anchors)
        return Plan(
            retriever=open_retriever(index, retriever, seed),
            predictor=cur(anchors(index, self.name), self.center, self.rcond),
            batches=(k_i, budget - k_i),
        )
