"""Which methods the questions compare: pairs of a method and what it is asked to be better than.

ADACUR and ANNCUR leave singular values below 3% of the largest out (`rcond=0.03`): with the papers'
pseudo-inverse recall collapses where there are about as many anchor items as anchor queries
(ANNCUR, figure 6), which would answer for a budget, not for a method. Question 1 has both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

from crossknn_lab.report.presets import Preset

Pair: TypeAlias = tuple[str, str, str]
"""A title, and the specs of the method and of the other."""

RNR = "rerank(retriever={})"
ANNCUR = "anncur(anchors=0.5, retriever={}, rcond=0.03)"
ADACUR = "adacur(retriever={}, rounds={}, rcond=0.03)"
PUBLISHED_ANNCUR = "anncur(center=none, anchors=0.5, retriever={})"
PUBLISHED_ADACUR = "adacur(center=none, retriever={}, rounds={})"
BLEND = "axn(retriever=dense, rounds={}, blend={}, vectors=dense)"
RIDGE = "axn(retriever={}, rounds={}, ridge=0.3, vectors=dense)"


def papers_order(preset: Preset) -> list[Pair]:
    """ADACUR_X over ANNCUR_X over reranking X; both as published, too."""
    pairs = []
    for stage in ("dense", "bm25"):
        adacur, anncur = ADACUR.format(stage, 5), ANNCUR.format(stage)
        pairs.append((f"ADACUR_{stage} over ANNCUR_{stage}", adacur, anncur))
        pairs.append((f"ANNCUR_{stage} over RNR_{stage}", anncur, RNR.format(stage)))
        adacur, anncur = PUBLISHED_ADACUR.format(stage, 5), PUBLISHED_ANNCUR.format(stage)
        pairs.append((f"as published: ADACUR_{stage} over ANNCUR_{stage}", adacur, anncur))
        pairs.append((f"as published: ANNCUR_{stage} over RNR_{stage}", anncur, RNR.format(stage)))
    return pairs


def axn_over_reranking(preset: Preset) -> list[Pair]:
    """AXN, as published and with ridge, over reranking the same retriever."""
    return [
        ("blend 0", BLEND.format(10, 0.0), RNR.format("dense")),
        ("blend 0.8", BLEND.format(10, 0.8), RNR.format("dense")),
        ("ridge 0.3", RIDGE.format("dense", 10), RNR.format("dense")),
    ]


def rounds(preset: Preset) -> list[Pair]:
    """Each number of rounds over the one before."""
    several = [r for r in preset.rounds if r > 1]
    forms: dict[str, Callable[[int], str]] = {
        "ADACUR": lambda count: ADACUR.format("dense", count),
        "AXN, blend 0.5": lambda count: BLEND.format(count, 0.5),
        "AXN, ridge 0.3": lambda count: RIDGE.format("dense", count),
    }
    return [
        (f"{name}: {more} rounds over {less}", form(more), form(less))
        for name, form in forms.items()
        for less, more in zip((1, *several), several, strict=False)
    ]


def blends(preset: Preset) -> list[Pair]:
    """Each weight of the parametric query vector over none."""
    return [
        (f"blend {value} over 0", BLEND.format(10, value), BLEND.format(10, 0.0))
        for value in preset.blends
        if value
    ]


def first_stages(preset: Preset) -> list[Pair]:
    """Other retrievers over the dual encoder."""
    forms: dict[str, Callable[[str], str]] = {
        "RNR": RNR.format,
        "AXN, ridge 0.3": lambda stage: RIDGE.format(stage, 10),
        "ADACUR": lambda stage: ADACUR.format(stage, 5),
    }
    return [
        (f"{name}: {stage} over dense", form(stage), form("dense"))
        for name, form in forms.items()
        for stage in ("bm25", "hybrid")
    ]


def in_short(preset: Preset) -> list[Pair]:
    """One pair or two of each question."""
    return [
        (
            "ADACUR over ANNCUR, retriever `dense`",
            ADACUR.format("dense", 5),
            ANNCUR.format("dense"),
        ),
        ("ANNCUR over reranking `dense`", ANNCUR.format("dense"), RNR.format("dense")),
        (
            "AXN as published (blend 0.8) over reranking `dense`",
            BLEND.format(10, 0.8),
            RNR.format("dense"),
        ),
        (
            "AXN with ridge 0.3 over reranking `dense`",
            RIDGE.format("dense", 10),
            RNR.format("dense"),
        ),
        (
            "AXN with ridge: ten rounds over two",
            RIDGE.format("dense", 10),
            RIDGE.format("dense", 2),
        ),
        ("AXN: blend 0.8 over 0", BLEND.format(10, 0.8), BLEND.format(10, 0.0)),
        (
            "AXN with ridge: retriever `hybrid` over `dense`",
            RIDGE.format("hybrid", 10),
            RIDGE.format("dense", 10),
        ),
    ]


QUESTIONS: Sequence[Callable[[Preset], list[Pair]]] = (
    papers_order,
    axn_over_reranking,
    rounds,
    blends,
    first_stages,
    in_short,
)


def methods(preset: Preset, stages: Sequence[str]) -> tuple[str, ...]:
    """The specs of every method in the questions that begins with one of these retrievers."""
    specs = [spec for pairs in QUESTIONS for _, *both in pairs(preset) for spec in both]
    return tuple(spec for spec in dict.fromkeys(specs) if _stage(spec) in stages)


def _stage(spec: str) -> str:
    """
    >>> _stage("axn(retriever=dense, rounds=10)")
    'dense'
    """
    found = re.search(r"retriever=(\w+)", spec)
    assert found is not None
    return found[1]
