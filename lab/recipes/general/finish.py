"""The steps after training a cross-encoder.

    python finish.py calibrate MODEL --config FILE      scores become logits of relevance, in place
    python finish.py shallow MODEL OUT                  layers 1, 3 and 6, to train further
    python finish.py fusion MODELS OUT --config FILE    weights of the retrievers beside the scores

`--config` names the settings of the training: its dev queries are used. MODEL and OUT of the first
two are folders in torch's format; MODELS holds `cross-encoder` and `dual-encoder`, exported, and
OUT is the JSON file in the package.

Axes: m queries, c candidates, r retrievers.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch import nn

import crossknn as ck
from crossknn.fitting.fusion import BM25, VECTORS, by_judgements
from crossknn.retrievers.specs import open_retriever
from crossknn.types import NO_ITEM, FloatArray, IntArray, Pairs, Queries
from crossknn_train.corpora import Corpora, read_corpora, retrieved
from crossknn_train.labelled import CrossEncoderTask
from crossknn_train.models.backbone import layers_of
from crossknn_train.models.cross_encoder import CrossEncoderModel
from crossknn_train.models.gated import FASTER
from crossknn_train.settings import CrossEncoderSettings, read_settings

KEPT = (0, 2, 5)
DEPTH, POOL = 100, 400


def calibrate(folder: Path, settings: CrossEncoderSettings) -> None:
    """Scale and shift the scores so that the logistic function of a score is the share of relevant
    items among the dev queries' nearest items by the dual encoder."""
    dev = Corpora(read_corpora(settings)[1])
    encoder = ck.DualEncoder(settings.negatives.encoder)
    model = CrossEncoderModel.from_pretrained(folder)
    near = retrieved(dev, "dual-encoder", settings.negatives.dev_candidates, encoder)[1].items
    rows = range(len(dev))
    task = CrossEncoderTask(model, dev.datasets, dev.datasets, settings, encoder)
    with torch.inference_mode():
        scores = np.concatenate([task.scores(dev, [row], near[row : row + 1]) for row in rows])
    right = np.stack([np.isin(near[row], dev.positives[row]) for row in rows])
    present = np.isfinite(scores)
    values, relevant = scores[present], right[present]

    def loss(line: FloatArray) -> float:
        logits = line[0] * values + line[1]
        return float(np.logaddexp(0, np.where(relevant, -logits, logits)).mean())

    slope, shift = minimize(loss, [1.0, 0.0]).x
    head = model.head
    with torch.no_grad():
        for part in (head.cosine, head.mix, head.first.weight, head.bias):
            part.mul_(slope)
        head.bias.add_(shift / FASTER)
    model.save_pretrained(folder)
    chance = 1 / (1 + np.exp(-slope * values - shift))
    near_half = np.abs(chance - 0.5) < 0.15
    print(
        f"{len(dev)} queries: times {slope:.3f}, plus {shift:.3f}; mean loss "
        f"{loss(np.array([1, 0])):.4f} -> {loss(np.array([slope, shift])):.4f}; relevant are "
        f"{relevant[chance > 0.5].mean():.2f} of the pairs above 0, and "
        f"{relevant[near_half].mean():.2f} of the {near_half.sum()} with a probability near 0.5"
    )


def shallow(folder: Path, out: Path) -> None:
    """Write a copy of the model with three of its six layers, `KEPT`."""
    model = CrossEncoderModel.from_pretrained(folder)
    layers, reading = layers_of(model.encoder), model.head.reading
    model.encoder.encoder.layer = nn.ModuleList(layers[depth] for depth in KEPT)
    model.encoder.config.num_hidden_layers = len(KEPT)
    reading.gates = nn.Parameter(reading.gates[list(KEPT)])
    model.save_pretrained(out)


def fusion(models: Path, out: Path, settings: CrossEncoderSettings) -> None:
    """Fit the shipped fusion to the dev queries of all folders together."""
    scorer = ck.CrossEncoder(models / "cross-encoder")
    encoder = ck.DualEncoder(models / "dual-encoder")
    parts = [_candidates(data, scorer, encoder) for data in read_corpora(settings)[1]]
    scores, pool, grades, of_pool, best = (
        np.concatenate(p, axis=-2) for p in zip(*parts, strict=True)
    )
    judged, start = (grades, of_pool, best), np.array([VECTORS, BM25])
    weights, deviations, ndcg = by_judgements(scores, pool, judged, start)
    made = {
        "cross_encoder": scorer.fingerprint,
        "dual_encoder": encoder.fingerprint,
        "weights": dict(zip(("dense", "bm25"), weights.round(3).tolist(), strict=True)),
        "deviations": dict(
            zip(("exact", "dense", "bm25"), deviations.round(4).tolist(), strict=True)
        ),
        "ndcg": {name: round(value, 4) for name, value in ndcg.items()},
        "judged": len(grades),
    }
    out.write_text(json.dumps(made, indent=2) + "\n")
    print(made)


def _candidates(data: Any, scorer: Any, encoder: Any) -> list[FloatArray]:
    """Candidates' exact and retriever scores (1 + r, m, c), the retrievers' scores of a larger pool
    (r, m, p), and grades: of both, and of all relevant items (m, 100)."""
    index = ck.ItemIndex.build(data.items.texts, encoder=encoder)
    queries = Queries(data.queries.texts)
    stages = [open_retriever(index, name) for name in ("dense", "bm25")]
    near, wide = (_nearest(index, queries, count) for count in (DEPTH, POOL))

    def cheap(items: Any) -> FloatArray:
        scores = np.stack([stage.scores(queries, items) for stage in stages])
        return np.where(items == NO_ITEM, np.nan, scores)

    query, column = np.nonzero(near != NO_ITEM)
    exact = np.full((1, *near.shape), np.nan)
    pairs = Pairs(query, near[query, column])
    for places, scores in scorer.score(pairs, queries.texts, index.items.texts):
        exact[0, query[places], column[places]] = scores
    grades = [
        np.stack([np.isin(row, p) for row, p in zip(of, data.positives, strict=True)]) * 1.0
        for of in (near, wide)
    ]
    best = np.zeros((len(data), 100))
    for row, positives in enumerate(data.positives):
        best[row, : len(positives)] = 1.0
    return [np.concatenate([exact, cheap(near)]), cheap(wide), *grades, best]


def _nearest(index: ck.ItemIndex, queries: Queries, count: int) -> IntArray:
    """The best items of `hybrid` (m, count), padded if there are fewer."""
    items = open_retriever(index, "hybrid").top(queries, min(count, index.n)).items
    padding = ((0, 0), (0, count - items.shape[1]))
    return np.pad(items, padding, constant_values=NO_ITEM)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("step", choices=("calibrate", "shallow", "fusion"))
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--config", type=Path)
    given = parser.parse_args()
    if given.step == "shallow":
        return shallow(given.model, given.out)
    settings = read_settings(given.config, CrossEncoderSettings)
    if given.step == "calibrate":
        return calibrate(given.model, settings)
    return fusion(given.model, given.out, settings)


if __name__ == "__main__":
    main()
