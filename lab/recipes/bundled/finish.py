"""The steps after training a cross-encoder.

    python finish.py mean MODEL OUT --config FILE --share S    weights between the start and MODEL
    python finish.py calibrate MODEL --config FILE      scores become logits of relevance, in place

`--config` names the settings of the training: its start and its dev queries are used. MODEL and OUT
are folders in torch's format.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import minimize

import crossknn as ck
from crossknn.types import FloatArray
from crossknn_train.corpora import Corpora, read_corpora, retrieved
from crossknn_train.labelled import CrossEncoderTask
from crossknn_train.models.cross_encoder import CrossEncoderModel
from crossknn_train.models.gated import FASTER
from crossknn_train.settings import CrossEncoderSettings, read_settings


def mean(folder: Path, out: Path, settings: CrossEncoderSettings, share: float) -> None:
    """Write start + share * (trained - start): a trained model forgets what the mean still knows
    (Wortsman et al. 2022)."""
    start = CrossEncoderModel.from_pretrained(settings.encoder).state_dict()
    model = CrossEncoderModel.from_pretrained(folder)
    trained = model.state_dict()
    model.load_state_dict({name: start[name].lerp(trained[name], share) for name in start})
    model.save_pretrained(out)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("step", choices=("mean", "calibrate"))
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--config", type=Path)
    parser.add_argument("--share", type=float, default=1.0)
    given = parser.parse_args()
    settings = read_settings(given.config, CrossEncoderSettings)
    if given.step == "mean":
        return mean(given.model, given.out, settings, given.share)
    return calibrate(given.model, settings)


if __name__ == "__main__":
    main()
