"""Golden values of every fit: what they gave at commit a2db68d."""

from __future__ import annotations

import tempfile
import zlib
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from late_helpers import vector
from recorded import check
from tiny_models import CONTENT

from crossknn import CallableScorer
from crossknn.fitting.factors import Targets, als, per_item
from crossknn.fitting.fit import fit
from crossknn.index.item_index import ItemIndex
from crossknn.scores.sparse import SparseScores
from crossknn.types import Pairs, Queries
from crossknn_lab.cur import cur
from crossknn_lab.fits import fit_method

DATA = Path(__file__).parents[2] / "benchmarks" / "data" / "medquad-two.npz"
ITEMS = [f"{a} {b} {c}" for a in CONTENT[:4] for b in CONTENT[20:24] for c in CONTENT[30:33]]
QUERIES = [f"{a} {b}" for a in CONTENT[:6] for b in CONTENT[20:25]]


def words(pairs):
    """Scores that reward common words, with a taste of their own for each pair."""
    return [
        len(set(q.split()) & set(t.split())) + zlib.crc32(f"{q}{t}".encode()) / 2**33
        for q, t in pairs
    ]


def word_vectors(texts):
    """The means of words' own vectors (t, 6), the same on every machine."""
    return np.stack([np.mean([vector(word, 6) for word in t.split()], axis=0) for t in texts])


def summary(values):
    """A few numbers that tell an array from another."""
    values = np.asarray(values, np.float64)
    flat, found = values.ravel(), {"shape": list(values.shape)}
    if not len(flat):
        return found
    some, size = flat[np.linspace(0, len(flat) - 1, 6).astype(int)], np.sqrt(np.mean(flat**2))
    return found | {"mean": flat.mean(), "size": size, "some": some}


def matrix():
    """80 queries x 300 items with a dual encoder's vectors, and a random third of the pairs."""
    with np.load(DATA) as file:
        table = file["scores"][:80, :300].astype(np.float32)
        items, queries = (file[f"{x}_vectors"].astype(np.float32) for x in ("item", "query"))
    chosen = np.random.default_rng(5).random(table.shape) < 0.3
    query, item = np.nonzero(chosen)
    return table, query, item, items[:300], queries[:80]


def factorized(kind, options):
    table, query, item, items, queries = matrix()
    scores = SparseScores.of(range(80), 300, Pairs(query, item), table[query, item])
    targets, vectors = Targets.of(scores, items, queries, held_out=0.1, seed=3), queries[:5]
    if kind == "als":
        found = als(targets, **options)
    else:
        found = getattr(import_module("crossknn_lab.mf"), kind)(targets, **options)
    return {
        "items": summary(found.items),
        "queries": summary(found.queries),
        "mapped": summary(found.map(vectors)),
        "item_mapped": None if found.item_map is None else summary(found.item_map(vectors)),
        "scale": [found.scale.alpha, found.scale.beta],
        "errors": [found.initial, found.held_out],
        "untouched": found.untouched,
    }


def cur_of(options):
    table, _, _, _, queries = matrix()
    options = {"center": float(table.mean()), **options}
    if options.pop("encoded", False):
        options["queries"] = queries
    found = cur(table, **options)
    signs = np.abs(np.asarray(found.items, np.float64))  # singular vectors have no sign
    return {
        "items": summary(signs),
        "queries": summary(np.abs(found.queries)),
        "mapped": None if found.map is None else summary(np.abs(found.map(queries[:5]))),
        "scale": [found.scale.alpha, found.scale.beta],
        "errors": [found.initial, found.held_out],
        "rank": found.details["rank"],
        "ridge": found.details["ridge"],
    }


def indexed(method, options, vectors=None):
    """Fit an index of these texts with a scoring function; what it keeps, and how it searches."""
    own = {"vectors": word_vectors(ITEMS), "query_vectors": word_vectors}
    index = ItemIndex.build([{"text": t} for t in ITEMS], **vectors or own)
    found = fit(index, CallableScorer(words, "words"), QUERIES, fit_method(method), **options)
    made, turned = found.vectors, np.abs if str(method).startswith("cur") else np.asarray
    queries = np.zeros((0, 0))
    if index.has_query_vectors(found.name):
        queries = index.query_vectors(Queries(QUERIES[:5]), found.name)
    now, cost, details = found.collected, made.cost, made.details
    values = {
        "items": summary(turned(index.vectors[found.name])),
        "queries": summary(turned(queries)),
        "scale": [made.scale.alpha, made.scale.beta],
        "calls": [now.calls, now.reused, cost["queries"], cost["calls"]],
    }
    if vectors:
        return values | {"measures": {k: v for k, v in details.items() if isinstance(v, float)}}
    return values | {"held_out": details.get("held_out")}


def distilled(**options):
    import torch
    from tiny_models import save_bert

    from crossknn_train.distillation import Distill
    from crossknn_train.models.dual_encoder import DualEncoderConfig, DualEncoderModel

    with tempfile.TemporaryDirectory() as work:
        torch.manual_seed(0)
        bert, folder = save_bert(Path(work) / "bert"), Path(work) / "encoder"
        config = DualEncoderConfig(query_length=12, item_length=12)
        DualEncoderModel.new(bert, config).save_pretrained(folder)
        method = Distill(out=Path(work) / "distilled", **options)
        return indexed(method, {"per": 12}, {"encoder": folder})


def planned():
    pairs = per_item(50, 20, 4, seed=1).pairs
    return {"query": summary(pairs.query), "item": summary(pairs.item)}


CASES = {
    "als": lambda: factorized("als", {}),
    "als no bias": lambda: factorized("als", {"bias": 0.0, "strength": 0.05, "sweeps": 3}),
    "cur": lambda: cur_of({}),
    "cur rank": lambda: cur_of({"rank": 12, "encoded": True, "seed": 1}),
    "index als": lambda: indexed("als", {"per": 20}),
    "index als per item": lambda: indexed("als(bias=0)", {"strategy": "i", "per": 8, "seed": 2}),
    "index als bm25": lambda: indexed("als", {"retriever": "bm25", "per": 12}),
    "index cur": lambda: indexed("cur(rank=6)", {}),
    "plan per item": planned,
}
TORCH = {
    "mf-trns": lambda: factorized("mf_trns", {"epochs": 3, "lr": 0.01}),
    "mf-ind": lambda: factorized("mf_ind", {"epochs": 3, "hidden": 16}),
    "mf-ind no skip": lambda: factorized("mf_ind", {"epochs": 2, "hidden": 16, "skip": False}),
    "index mf-trns": lambda: indexed("mf-trns(epochs=2)", {"per": 20}),
    "index mf-ind": lambda: indexed("mf-ind(epochs=2)", {"per": 20}),
    "distill": lambda: distilled(epochs=2),
}


@pytest.mark.parametrize(
    "case", [*CASES, *(pytest.param(case, marks=pytest.mark.torch) for case in TORCH)]
)
def test_a_fit_gives_what_it_gave(case):
    if case in TORCH:
        pytest.importorskip("transformers")
    found = {case: (CASES | TORCH)[case]()}
    check("fit_values.json", found, close=2e-3, floor=0.1, whole=False)
