"""Train CMC and its rivals for the tables of docs/results.md, all alike: one encoder, one first
stage, the same candidates, steps, learning rates and choice by dev. Resumable.

    python lab/benchmarks/train_late.py wordnet --data wordnet --retriever MiniLM --encoder DUAL --work WORK
    python lab/benchmarks/train_late.py medquad --data medquad --retriever MiniLM --encoder DUAL --work WORK

The item tower keeps still (the query tower and the head learn), so that item states are computed
once; no GPU is needed then. Every model is tried with each rate and the first seed; the other seeds
take the rate that was best on dev. WORK/late-DATA/NAME-SEED holds a model and its run.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from progress import line
from train_wordnet import data as wordnet_data

from crossknn.models.late.model import head_of
from crossknn.training.run import RUN, train
from crossknn.training.settings import (
    CandidateSettings,
    DataSettings,
    LateInteractionSettings,
    LossSettings,
    TrainingSettings,
)

KINDS = ("cmc", "poly", "som", "mixencoder", "deformer")
OPTIONS: dict[str, dict[str, Any]] = {"deformer": {"layers": 2}}
RATES = (1e-4, 3e-4)
SEEDS = (0, 1, 2)
STEPS, BATCH = {"wordnet": 600, "medquad": 400}, 8
FOUND, STATES = ("dev.npy", "candidates.npy"), ("item-states*",)
WINDOWS = {
    "wordnet": {"marked": True, "query_length": 32, "item_length": 48},
    "medquad": {"marked": False, "query_length": 48, "item_length": 128},
}


@dataclass(frozen=True)
class Variant:
    """A row of the tables: a kind, where it starts from, and what is left out (CMC, table 12)."""

    kind: str
    start: str = "in"
    change: str = ""

    @property
    def name(self) -> str:
        parts = (self.kind, "" if self.start == "in" else self.start, self.change)
        return "-".join(part for part in parts if part)


CHANGES = ("reference", "no-skip", "no-kl", "kl-turned", "fixed", "uniform")
VARIANTS = {
    variant.name: variant
    for variant in (
        *(Variant(kind) for kind in KINDS),
        *(Variant("cmc", change=change) for change in CHANGES),
        *(Variant(kind, start="out") for kind in KINDS),
    )
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("set", choices=list(WINDOWS))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--retriever", required=True, help="the dual encoder of the retriever")
    parser.add_argument("--encoder", required=True, help="a dual encoder trained in the domain")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--only", nargs="*", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--seeds", type=int, nargs="*", default=SEEDS)
    parser.add_argument("--steps", type=int, help="by default as many as the tables say")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    for name in options.only:
        for seed in options.seeds:
            train_variant(options, VARIANTS[name], seed)


def train_variant(options: argparse.Namespace, variant: Variant, seed: int) -> None:
    """One model; for the first seed the best of all rates."""
    made = options.work / f"late-{options.set}" / f"{variant.name}-{seed}"
    if (made / "README.md").exists():
        return
    if seed != SEEDS[0]:
        first = made.with_name(f"{variant.name}-{SEEDS[0]}")
        rate = json.loads((first / RUN / "settings.json").read_text())["training"]["learning_rate"]
        run(settings(options, variant, seed, rate), made)
        return
    tried = {}
    plain = variant.name == variant.kind
    for rate in RATES if plain else [best_rate(options, variant.kind)]:
        folder = made.with_name(f"{made.name}-rate-{rate:g}")
        tried[rate] = run(settings(options, variant, seed, rate), folder)
    best = max(tried, key=lambda rate: tried[rate])
    made.with_name(f"{made.name}-rate-{best:g}").rename(made)


def best_rate(options: argparse.Namespace, kind: str) -> float:
    """Of the unchanged model."""
    made = options.work / f"late-{options.set}" / f"{kind}-{SEEDS[0]}" / RUN / "settings.json"
    return float(json.loads(made.read_text())["training"]["learning_rate"])


def run(wanted: LateInteractionSettings, folder: Path) -> float:
    """Train into a folder; the mean reciprocal rank on dev."""
    done = folder / RUN / "dev.json"
    if not done.exists():
        reads = head_of(wanted.kind).item_reads
        drawn = f"-{wanted.training.seed}" if wanted.data.train_queries else ""
        common = folder.parent / f"found{drawn}"
        shared = {common: FOUND, common / f"{Path(wanted.encoder).name}-{reads}": STATES}
        for place, patterns in shared.items():
            link(place, folder / RUN, patterns)
        began = time.perf_counter()
        found = train(wanted, folder, progress=line(folder.name))
        seconds = round(time.perf_counter() - began, 1)
        for place, patterns in shared.items():
            link(folder / RUN, place, patterns)
        for states in (folder / RUN).glob("item-states-*"):
            states.unlink()
        done.write_text(json.dumps({**found.best, "step": found.best_step, "seconds": seconds}))
        print(f"{folder.name}: {found.best} in {seconds:.0f} s", flush=True)
    mrr: float = json.loads(done.read_text())["mrr"]
    return mrr


def link(source: Path, target: Path, patterns: Sequence[str]) -> None:
    """What runs of one seed share is made once: candidates, and states of items."""
    target.mkdir(parents=True, exist_ok=True)
    for pattern in patterns:
        for path in source.glob(pattern):
            if not (target / path.name).exists():
                (target / path.name).hardlink_to(path)


def settings(
    options: argparse.Namespace, variant: Variant, seed: int, rate: float
) -> LateInteractionSettings:
    change = variant.change
    head = dict(OPTIONS.get(variant.kind, {}))
    if change in ("reference", "no-skip"):
        head["variant"] = "none" if change == "no-skip" else change
    candidates = CandidateSettings(retriever=options.first)
    if change == "fixed":
        candidates = replace(candidates, fixed=1.0)
    if change == "uniform":
        candidates = replace(candidates, sampling="uniform")
    loss = {
        "no-kl": LossSettings(kl="none"),
        "kl-turned": LossSettings(kl="retriever-model"),
    }.get(change, LossSettings())
    return LateInteractionSettings(
        kind=variant.kind,
        encoder=options.encoder if variant.start == "in" else options.first,
        data=data_of(options),
        candidates=candidates,
        model={"options": head, **WINDOWS[options.set]},
        loss=loss,
        freeze="items",
        training=TrainingSettings(
            steps=options.steps or STEPS[options.set],
            batch=BATCH,
            learning_rate=rate,
            warmup=0.1,
            evaluations=2,
            threads=options.threads,
            seed=seed,
        ),
    )


def data_of(options: argparse.Namespace) -> DataSettings:
    if options.set == "wordnet":
        return replace(wordnet_data(options.data, STEPS["wordnet"] * BATCH), dev_queries=300)
    return DataSettings(folder=options.data, dev="dev", dev_queries=None)


if __name__ == "__main__":
    main()
