"""The sweeps that exhibits are made of, by name: what each tries on a matrix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from crossknn_lab.report.data import Data
from crossknn_lab.report.exhibits import asked
from crossknn_lab.report.presets import Preset
from crossknn_lab.report.study import Plans

PAPERS = (100, 500, 2000)
"""Numbers of anchor queries in the papers (|Q_train|)."""

BASELINE = "rerank(retriever={stage})"
"""Reranking, its retriever chosen like every other setting."""

EPSILONS = (0.0, 0.25, 0.5, 0.75)
"""Random shares of anchor items of the oracle samplers (ADACUR 3.2)."""


def anchor_sizes(preset: Preset, data: Data) -> tuple[int, ...]:
    """The papers' |Q_train| as far as a matrix has them; else all its anchors and parts of them."""
    have = data.file.n_anchors
    if not have or not data.divisible:
        return (have,) if have else ()
    known = [size for size in PAPERS if size < have]
    sizes = sorted({*(known if known and len(known) > 1 else (have // 9, have // 3)), have})
    return tuple(size for size in sizes if size)[-preset.sizes :]


def stages(data: Data) -> tuple[str, ...]:
    """Retrievers of a matrix, the dual encoder first; `hybrid` where there are several."""
    own = tuple(name for name in ("dense", "bm25") if name in (*data.vectors, *data.firsts))
    return (*own, "hybrid") if len(own) > 1 else own


def _tests(preset: Preset, data: Data) -> dict[str, Any]:
    return {"redraw": preset.redraw and data.divisible}


def methods(preset: Preset, data: Data) -> Mapping[str, Any] | None:
    """ANNCUR and ADACUR from every retriever, and reranking, by |Q_train|."""
    own = [stage for stage in stages(data) if stage != "hybrid"]
    tried = [f"rerank(retriever={stage})" for stage in own]
    if data.file.n_anchors:
        tried += [
            "anncur(center=none, anchors=0.5)",
            "adacur(center=none, retriever=random, rounds=5, split=0.5)",
            "adacur(center=none, retriever=random, rounds=5, split=0.5, sample=softmax)",
            "adacur(center=none, retriever=random, rounds=5)",
        ]
        tried += [f"anncur(center=none, anchors=0.5, retriever={stage})" for stage in own]
        tried += [f"adacur(center=none, retriever={stage}, rounds=5)" for stage in own]
    sizes = anchor_sizes(preset, data)
    return {"methods": tuple(tried), "anchors": sizes, **_tests(preset, data)} if tried else None


def splits(preset: Preset, data: Data) -> Mapping[str, Any] | None:
    """ANNCUR with every division of its budget."""
    if not data.file.n_anchors:
        return None
    tried = ("anncur(center=none, anchors={share})",)
    return {"methods": tried, "grid": {"share": preset.shares}, **_tests(preset, data)}


def chosen_splits(preset: Preset, data: Data) -> Mapping[str, Any] | None:
    """The same, the division chosen on dev queries."""
    found = splits(preset, data)
    return {**found, "choose": True} if found and _can_choose(data) else None


def rounds(preset: Preset, data: Data) -> Mapping[str, Any] | None:
    """ADACUR and AXN with ever more rounds."""
    tried = []
    if data.file.n_anchors:
        tried.append("adacur(center=none, retriever=random, rounds={rounds}, split=0.5)")
        tried += (
            ["adacur(center=none, retriever=dense, rounds={rounds})"]
            if "dense" in data.vectors
            else []
        )
    if "dense" in data.vectors:
        tried.append("axn(retriever=dense, rounds={rounds}, blend=0.5, vectors=dense)")
        tried.append("axn(retriever=dense, rounds={rounds}, ridge=0.3, vectors=dense)")
    grid = {"rounds": preset.rounds}
    return {"methods": tuple(tried), "grid": grid, **_tests(preset, data)} if tried else None


def oracle_masked(preset: Preset, data: Data) -> Mapping[str, Any] | None:
    """ANNCUR with anchor items by their exact scores, the best k_m of them masked."""
    if not data.file.n_anchors:
        return None
    tried = tuple(
        f"anncur(center=none, anchors=0.5, retriever=oracle_{kind}(masked={{masked}}))"
        for kind in ("topk", "softmax")
    )
    grid = {"masked": (0, *(k for k in preset.k if k <= data.file.n_items // 2))}
    return {"methods": tried, "grid": grid, **_tests(preset, data)}


def oracle_random(preset: Preset, data: Data) -> Mapping[str, Any] | None:
    """The same with a share epsilon of random anchor items."""
    if not data.file.n_anchors:
        return None
    tried = tuple(
        f"anncur(center=none, anchors=0.5, retriever=oracle_{kind}(epsilon={{epsilon}}))"
        for kind in ("topk", "softmax")
    )
    return {"methods": tried, "grid": {"epsilon": EPSILONS}, **_tests(preset, data)}


def items(preset: Preset, data: Data) -> Mapping[str, Any] | None:
    """Indexing by scores of items with items."""
    if not data.items_by_items or not data.file.n_anchors:
        return None
    return {
        "methods": (
            "fixeditem(anchors=0.5)",
            "itemcur(center=none, anchors=0.5)",
            "anncur(center=none, anchors=0.5)",
        )
    }


def query_vectors(preset: Preset, data: Data) -> Mapping[str, Any] | None:
    """Ways to move the query's vector."""
    if "dense" not in data.vectors:
        return None
    tried = (
        "rerank(retriever=dense)",
        "axn(retriever=dense, rounds=10, blend=0.0, vectors=dense)",
        "axn(retriever=dense, rounds=10, blend=0.8, vectors=dense)",
        "axn(retriever=dense, rounds=10, ridge=0.3, vectors=dense)",
        "tour(retriever=dense, loss=kl, rounds=10, vectors=dense)",
        "tour(retriever=dense, loss=mse, rounds=10, vectors=dense)",
        "refit(retriever=dense, vectors=dense)",
        "feedback(retriever=dense, vectors=dense)",
    )
    return {"methods": tried, **_tests(preset, data)}


def blend(preset: Preset, data: Data) -> Mapping[str, Any] | None:
    """AXN with every weight of the parametric query vector."""
    if "dense" not in data.vectors:
        return None
    tried = ("axn(retriever=dense, rounds=10, blend={blend}, vectors=dense)",)
    return {"methods": tried, "grid": {"blend": preset.blends}, **_tests(preset, data)}


def second_encoder(preset: Preset, data: Data) -> Mapping[str, Any] | None:
    """The same with every dual encoder that a matrix has vectors of."""
    if len(data.vectors) < 2:
        return None
    tried = [f"rerank(retriever={name})" for name in data.vectors]
    tried += [f"axn(retriever={v}, rounds=10, blend=0.5, vectors={v})" for v in data.vectors]
    tried += [f"axn(retriever={v}, rounds=10, ridge=0.3, vectors={v})" for v in data.vectors]
    return {"methods": tuple(tried)}


def questions(preset: Preset, data: Data) -> Mapping[str, Any] | None:
    """Every method that a question names."""
    if "dense" not in data.vectors:
        return None
    tried = [
        spec
        for spec in asked.methods(preset, stages(data))
        if data.file.n_anchors or not spec.startswith(("anncur", "adacur"))
    ]
    return {"methods": tuple(tried), **_tests(preset, data)}


def rivals(preset: Preset, data: Data) -> Mapping[str, Any] | None:
    """All methods, each with its settings chosen on dev queries; reranking and exact search."""
    own = stages(data)
    if not own or not _can_choose(data) or "dense" not in data.vectors:
        return None
    grid = _grid(preset, own)
    return {
        "methods": (
            BASELINE,
            *(["rerank(retriever=bm25)"] if "bm25" in own else []),
            *TRIED,
            "exact",
        ),
        "grid": grid,
        "choose": True,
        "baseline": BASELINE,
        **_tests(preset, data),
    }


TRIED = (
    "anncur(anchors={share}, retriever={stage}, center={center}, rcond={rcond})",
    "adacur(retriever={stage}, rounds={rounds}, center={center}, rcond={rcond})",
    "axn(retriever={stage}, rounds=10, blend={blend}, rcond={cut}, vectors=dense)",
    "axn(retriever={stage}, rounds=10, ridge={ridge}, vectors=dense)",
    "tour(retriever={stage}, loss=kl, rounds=10, lr={lr}, vectors=dense)",
    "refit(retriever={stage}, sample={sample}, lr={lr}, vectors=dense)",
    "refit(retriever={stage}, sample=0.1, rounds=9, lr={lr}, vectors=dense)",
    "feedback(retriever={stage}, sample={sample}, c={gain}, vectors=dense)",
    "feedback(retriever={stage}, sample=0.1, rounds=9, c={gain}, vectors=dense)",
    "gp(retriever={stage}, mean={mean}, query={query}, beta={beta}, vectors=dense)",
    "kriging(retriever={stage}, mean={features}, anchors=false, vectors=dense)",
    "kriging(retriever={stage}, mean={features}, vectors=dense)",
    "gar(retriever={stage}, affinity=score, neighbours={neighbours}, graph=dense)",
    "gar(retriever={stage}, affinity=set, softmax={softmax}, neighbours={neighbours}, graph=dense)",
    "ladr(retriever={stage}, seeds={sample}, depth={depth}, neighbours={neighbours}, graph=dense)",
    "greedy(retriever={stage}, seeds={sample}, neighbours={neighbours}, graph=dense)",
)
"""Methods whose settings are chosen; ReFIT and the formula as published, and in ten rounds."""


def _grid(preset: Preset, own: tuple[str, ...]) -> dict[str, tuple[Any, ...]]:
    """Every setting has 1 value that is the default or the papers', and others where it matters."""
    wide, whole = preset.settings, tuple(stage for stage in own if stage != "bm25")
    return {
        "stage": whole,
        "features": whole if wide else whole[-1:],
        "share": (0.2, 0.5) if wide else (0.5,),
        "rcond": (1e-6, 0.01, 0.03, 0.1) if wide else (0.03,),
        "center": ("auto", "none"),
        "cut": (1e-6, 0.1) if wide else (1e-6,),
        "rounds": (5, 10, 20) if wide else (5,),
        "blend": (0.0, 0.5, 0.8) if wide else (0.5,),
        "ridge": (0.1, 0.3, 1.0) if wide else (0.3,),
        "lr": (0.1, 0.5, 1.0, 3.0) if wide else (0.1, 1.0),
        "sample": (0.25, 0.5, 0.75) if wide else (0.5,),
        "gain": (0.01, 0.03, 0.1, 1.0) if wide else (0.1,),
        "mean": ("constant", "first") if wide else ("constant",),
        "query": (False, True) if wide else (True,),
        "beta": (0.0, 1.0) if wide else (1.0,),
        "depth": (10, 50) if wide else (50,),
        "softmax": ("raw", "scaled") if wide else ("raw",),
        "neighbours": (8, 16, 32) if wide else (16,),
    }


def _can_choose(data: Data) -> bool:
    return data.divisible and data.file.n_dev > 0


SWEEPS: Mapping[str, Plans] = {
    plan.__name__.replace("_", "-"): plan
    for plan in (
        *(methods, splits, chosen_splits, rounds, oracle_masked, oracle_random, items),
        *(query_vectors, blend, second_encoder, questions, rivals),
    )
}
"""All sweeps by name."""
