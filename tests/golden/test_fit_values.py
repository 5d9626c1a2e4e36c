"""Golden values of every fit: what ALS, MF_TRNS, MF_IND, CUR, distillation and pseudo-queries gave
at commit a2db68d. `python tests/golden/test_fit_values.py` in this folder's Python writes them anew.
"""

from __future__ import annotations

import json
import sys
import tempfile
import zlib
from pathlib import Path

import numpy as np
import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import fit_adapter as made  # noqa: E402
from tiny_models import CONTENT  # noqa: E402

FILE = Path(__file__).with_name("fit_values.json")
DATA = Path(__file__).parents[2] / "benchmarks" / "data" / "medquad-two.npz"
ITEMS = [f"{a} {b} {c}" for a in CONTENT[:4] for b in CONTENT[20:24] for c in CONTENT[30:33]]
QUERIES = [f"{a} {b}" for a in CONTENT[:6] for b in CONTENT[20:25]]


def words(pairs):
    """Scores that reward common words, with a taste of their own for each pair."""
    return [
        len(set(q.split()) & set(t.split())) + zlib.crc32(f"{q}{t}".encode()) / 2**33
        for q, t in pairs
    ]


def summary(values):
    """A few numbers that tell an array from another."""
    values = np.asarray(values, np.float64)
    flat = values.ravel()
    at = np.linspace(0, len(flat) - 1, 6).astype(int) if len(flat) else []
    if not len(flat):
        return {"shape": list(values.shape)}
    return {
        "shape": list(values.shape),
        "mean": _short(flat.mean()),
        "size": _short(np.sqrt(np.mean(flat**2))),
        "some": [_short(v) for v in flat[at]],
    }


def _short(value):
    return None if value is None or np.isnan(value) else float(f"{value:.5g}")


def matrix():
    """80 queries x 300 items with a dual encoder's vectors, and a random third of the pairs."""
    with np.load(DATA) as file:
        table = file["scores"][:80, :300].astype(np.float32)
        items, queries = (file[f"{x}_vectors"].astype(np.float32) for x in ("item", "query"))
    chosen = np.random.default_rng(5).random(table.shape) < 0.3
    query, item = np.nonzero(chosen)
    return table, query, item, items[:300], queries[:80]


def factorized(kind, options):
    found = made.fit(kind, made.targets(*matrix()), **options)
    vectors = matrix()[4][:5]
    return {
        "items": summary(found.items),
        "queries": summary(found.queries),
        "mapped": summary(found.map(vectors)),
        "item_mapped": None if found.item_map is None else summary(found.item_map(vectors)),
        "scale": [_short(found.scale.alpha), _short(found.scale.beta)],
        "errors": [_short(found.initial), _short(found.held_out)],
        "untouched": found.untouched,
    }


def cur_of(options):
    table, _, _, _, queries = matrix()
    options = {"center": float(table.mean()), **options}
    if options.pop("encoded", False):
        options["queries"] = queries
    found = made.fit_cur(table, **options)
    signs = np.abs(np.asarray(found.items, np.float64))  # singular vectors have no sign
    return {
        "items": summary(signs),
        "queries": summary(np.abs(found.queries)),
        "mapped": None if found.map is None else summary(np.abs(found.map(queries[:5]))),
        "scale": [_short(found.scale.alpha), _short(found.scale.beta)],
        "errors": [_short(found.initial), _short(found.held_out)],
        "rank": found.details["rank"],
        "ridge": found.details["ridge"],
    }


def indexed(method, options):
    found = made.fitted_index(ITEMS, QUERIES, words, method, **options)
    turned = np.abs if method.startswith("cur") else np.asarray
    return {
        "items": summary(turned(found["items"])),
        "queries": summary(turned(found["queries"])),
        "scale": [_short(value) for value in found["scale"]],
        "calls": [found["calls"], found["reused"], *found["cost"]],
        "held_out": _short(found["held_out"]),
    }


def distilled(options):
    import torch
    from tiny_models import save_bert

    from crossknn.models.dual_encoder import DualEncoderConfig, DualEncoderModel

    with tempfile.TemporaryDirectory() as work:
        torch.manual_seed(0)
        bert, folder = save_bert(Path(work) / "bert"), Path(work) / "encoder"
        config = DualEncoderConfig(query_length=12, item_length=12)
        DualEncoderModel.new(bert, config).save_pretrained(folder)
        found = made.fitted_index(
            ITEMS, QUERIES, words, options["method"], encoder={"encoder": folder}, per=12,
            encoder_folder=Path(work) / "distilled",
        )  # fmt: skip
    numbers = {k: _short(v) for k, v in found["details"].items() if isinstance(v, float)}
    return {
        "items": summary(found["items"]),
        "queries": summary(found["queries"]),
        "scale": [_short(value) for value in found["scale"]],
        "calls": [found["calls"], found["reused"], *found["cost"]],
        "measures": numbers,
    }


def planned(options):
    query, item = made.pairs_per_item(**options)
    return {"query": summary(query), "item": summary(item)}


TEXTS = [
    f"The {a} of the {b} has a {c}. It {d} by the {e}, where a {f} {a} is rare; so is the {c}."
    for a, b, c, d, e, f in zip(*(CONTENT[s : s + 30] for s in range(6)), strict=False)
]


def made_up(options):
    titles = [text.split()[1].title() for text in TEXTS]
    texts = TEXTS
    if options.get("marked"):
        texts = [f"{title} [ENT] {text}" for title, text in zip(titles, TEXTS, strict=True)]
    found = made.made_up_queries(titles, texts, **options)
    crc = zlib.crc32("\n".join(found).encode())
    return {"count": len(found), "some": found[::9], "crc": crc}


CASES = {
    "als": lambda: factorized("als", {}),
    "als no bias": lambda: factorized("als", {"bias": 0.0, "strength": 0.05, "sweeps": 3}),
    "cur": lambda: cur_of({}),
    "cur rank": lambda: cur_of({"rank": 12, "encoded": True, "seed": 1}),
    "index als": lambda: indexed("als", {"per": 20}),
    "index als per item": lambda: indexed("als(bias=0)", {"strategy": "i", "per": 8, "seed": 2}),
    "index als bm25": lambda: indexed("als", {"retriever": "bm25", "per": 12}),
    "index cur": lambda: indexed("cur(rank=6)", {}),
    "plan per item": lambda: planned({"n": 50, "q": 20, "per": 4, "seed": 1}),
    "pseudo": lambda: made_up({"count": 200}),
    "pseudo marked": lambda: made_up({"count": 40, "marked": True, "seed": 4}),
}
TORCH = {
    "mf-trns": lambda: factorized("mf-trns", {"epochs": 3, "lr": 0.01}),
    "mf-ind": lambda: factorized("mf-ind", {"epochs": 3, "hidden": 16}),
    "mf-ind no skip": lambda: factorized("mf-ind", {"epochs": 2, "hidden": 16, "skip": False}),
    "index mf-trns": lambda: indexed("mf-trns(epochs=2)", {"per": 20}),
    "index mf-ind": lambda: indexed("mf-ind(epochs=2)", {"per": 20}),
    "distill": lambda: distilled({"method": "distill(epochs=2)"}),
    "distill both": lambda: distilled({"method": "distill(loss=both, top=5, epochs=1)"}),
}


def close(found, wanted, where=""):
    """Numbers within 2e-3 of each other (float32, other BLAS), all else equal."""
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys(), where
        for key in wanted:
            close(found[key], wanted[key], f"{where}.{key}")
    elif isinstance(wanted, list):
        assert len(found) == len(wanted), where
        for place, (one, other) in enumerate(zip(found, wanted, strict=True)):
            close(one, other, f"{where}[{place}]")
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, rel=2e-3, abs=2e-4), where
    else:
        assert found == wanted, where


@pytest.mark.parametrize("case", CASES)
def test_a_fit_gives_what_it_gave(case):
    close(CASES[case](), json.loads(FILE.read_text())[case], case)


@pytest.mark.torch
@pytest.mark.parametrize("case", TORCH)
def test_a_fit_by_torch_gives_what_it_gave(case):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    close(TORCH[case](), json.loads(FILE.read_text())[case], case)


if __name__ == "__main__":
    found = {case: run() for case, run in {**CASES, **TORCH}.items()}
    FILE.write_text(json.dumps(found, indent=None, separators=(",", ":"), ensure_ascii=False))
