"""Golden values: ten training losses and the dev measures of every kind of model, recorded at commit
a2db68d."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from recorded import check
from tiny_models import save_bert, write_beir, write_zeshel

pytestmark = pytest.mark.torch
OPTIONS = {
    "cmc": {"feed_forward": 32},
    "poly": {"codes": 3},
    "som": {"projected": True, "dimensions": 8},
    "deformer": {"layers": 1},
    "mixencoder": {},
}
LENGTHS = {"query_length": 24, "item_length": 24}
NEGATIVES = {"kind": "tfidf", "count": 3, "depth": 4, "dev_candidates": 5}
MINED = {"count": 1, "depth": 3}
CASES = {
    "cross cls": ("cross", "beir", {"head": "cls"}, NEGATIVES, {}),
    "cross emb": ("cross", "zeshel", {"head": "emb"}, NEGATIVES | {"skip": 1}, {}),
    "cross random": ("cross", "beir", {"head": "cls"}, NEGATIVES | {"kind": "random"}, {}),
    "dual": ("dual", "beir", {"shared": False}, MINED, {}),
    "dual normalized": ("dual", "zeshel", {"normalize": True}, MINED | {"skip": 1}, {}),
    **{kind: (kind, "zeshel", {}, {"retriever": "bm25"}, {}) for kind in OPTIONS},
    "cmc frozen": ("cmc", "beir", {}, {"retriever": "tfidf", "fixed": 0.0}, {"freeze": "items"}),
    "som frozen": ("som", "zeshel", {}, {"retriever": "random"}, {"freeze": "both"}),
    "poly uniform": ("poly", "beir", {}, {"retriever": "bm25", "sampling": "uniform"}, {}),
}


def losses(case: str, folder: Path) -> dict[str, object]:
    """Ten losses, two passes a step, and what the best checkpoint measured."""
    from crossknn_train import run, settings

    kind, layout, model, wrong, more = CASES[case]
    write, dev = {"zeshel": (write_zeshel, "valid"), "beir": (write_beir, "dev")}[layout]
    training = {"steps": 10, "batch": 4, "accumulate": 2, "learning_rate": 1e-3, "warmup": 0.2}
    about = {
        "encoder": str(save_bert(folder / "bert", std=0.1)),
        "data": {"folder": write(folder / "data"), "dev": dev},
        "training": training | {"evaluations": 1, "precision": "float32", "seed": 3},
        "model": {"marked": layout == "zeshel"} | model,
        **more,
    }
    about["model"] |= {"max_length": 48} if kind == "cross" else LENGTHS
    if kind == "cross":
        made = settings.CrossEncoderSettings(negatives=wrong, **about)
    elif kind == "dual":
        made = settings.DualEncoderSettings(negatives=wrong, **about)
    else:
        found = {"count": 3, "depth": 4, "dev_candidates": 5} | wrong
        about["model"] |= {"options": OPTIONS[kind]}
        made = settings.LateInteractionSettings(kind=kind, candidates=found, **about)
    fitted = run.train(made, folder / "model")
    log = (folder / "model" / "run" / "log.jsonl").read_text().splitlines()
    found = [line["loss"] for line in map(json.loads, log) if "loss" in line]
    return {"losses": found, "best": fitted.best, "best_step": fitted.best_step}


@pytest.mark.parametrize("case", CASES)
def test_training_gives_the_losses_that_it_gave(case, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    check("training_losses.json", {case: losses(case, tmp_path)}, close=2e-3, whole=False)
