"""CMC and its rivals beside the dual encoder that they start from, on WordNet (CMC, tables 1-4, 8, 10, 12 and 13).

    python lab/benchmarks/cmc.py WORDNET DUAL BASE SCORER WORK OUT [--only NAME ...] [--seeds 0 ...]

WORDNET is the data set (ZESHEL's layout), of which WORK/data links the train domains below; DUAL is a dual encoder of
crossknn-train trained on them from the encoder BASE. It is the first stage too: its 64 or 512 best items are the
candidates, in training and for test queries, so that a model is compared with the encoder's own order. SCORER is a
cross-encoder, which also ranks the 16 best of each model. OUT (JSON lines) gets, for each variant and seed, measures
of dev queries (noun.state) while training, and the rank of the right item for every test query. A killed run goes on
where it stopped. Without the folder WORK, OUT is printed as tables.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

import crossknn as ck
from crossknn.evaluation.measures import paired
from crossknn.scorers.base import Scorer
from crossknn.types import FloatArray, IntArray, Pairs
from crossknn_train import loop
from crossknn_train.corpora import Corpora, Once, read_corpora, retrieved
from crossknn_train.late_interaction import LateInteractionTask, kept_states
from crossknn_train.models.late import LateInteractionConfig, LateInteractionModel
from crossknn_train.reading import read_labelled
from crossknn_train.settings import LateInteractionSettings

TRAIN = """adv.all noun.attribute noun.event noun.group noun.time verb.body verb.change verb.cognition
verb.communication verb.contact verb.creation verb.emotion verb.motion verb.perception verb.possession verb.social
verb.stative""".split()  # noqa: SIM905
DEV, TEST, QUERIES = "noun.state", ("noun.act", "noun.artifact"), 600
DEPTHS, WIDE = (64, 512), 300
"""Numbers of candidates; over the larger one, fewer queries."""
ENCODER = "dual encoder"
CALLS = 16
"""Number of candidates that the cross-encoder scores after another model."""
WINDOW = {"marked": True, "query_length": 32, "item_length": 48}
SCALE, PAPER = 0.02, {"weight": 0.2, "kl": "model-retriever"}
SLOW = {"rate": 2e-5}
FEW = {"candidates": {"count": 15}, "batch": 4, "depths": DEPTHS[:1]}
VARIANTS: dict[str, dict[str, Any]] = {
    "as the paper, towers frozen": {"freeze": "both", "loss": PAPER, "options": {}},
    "scaled, towers frozen": {"freeze": "both"},
    "scaled, query tower": {},
    "scaled, query tower, slow": SLOW,
    "scaled, query tower, slow, KL": {**SLOW, "loss": PAPER},
    "scaled, query tower, slow, uniform negatives": {**SLOW, "candidates": {"sampling": "uniform"}},
    "scaled, query tower, slow, fixed negatives": {**SLOW, "candidates": {"fixed": 1.0}},
    "query tower, slow, no extra skip": {**SLOW, "options": {"variant": "none"}},
    "scaled, query tower, slow, from BASE": {**SLOW, "encoder": "base"},
    "Poly-encoder": {"kind": "poly"},
    "Poly-encoder, slow": {"kind": "poly", **SLOW},
    "MixEncoder": {"kind": "mixencoder"},
    "MixEncoder, slow": {"kind": "mixencoder", **SLOW},
    "Sum-of-max": {"kind": "som"},
    "Sum-of-max, slow": {"kind": "som", **SLOW},
    "Deformer, slow": {"kind": "deformer", **SLOW, **FEW},
}


def settings(given: argparse.Namespace, name: str, seed: int) -> LateInteractionSettings:
    """Return the settings of a variant."""
    of, dual = VARIANTS[name], str(given.dual)
    kind = of.get("kind", "cmc")
    own = of.get("options", {"scale": SCALE} if kind == "cmc" else {})
    training = {"batch": of.get("batch", 16), "learning_rate": of.get("rate", 1e-4), "seed": seed}
    fixed = {"steps": 300, "warmup": 0.1, "evaluations": 4, "epochs": 1, "dropout": 0.0}
    return LateInteractionSettings.model_validate(
        {
            "kind": kind,
            "encoder": str(given.base) if of.get("encoder") == "base" else dual,
            "data": {"folder": given.work / "data", "dev_queries": 500},
            "model": {**WINDOW, "options": own},
            "candidates": {"retriever": dual, **of.get("candidates", {})},
            "loss": of.get("loss", {"kl": "none"}),
            "freeze": of.get("freeze", "items"),
            "training": training | fixed,
        }
    )


def linked(wordnet: Path, data: Path) -> None:
    """Link the domains for training into a folder of their own."""
    for split, names in (("train", TRAIN), ("valid", [DEV])):
        for name in names:
            mentions = f"processed/{split}_worlds/{name}_mentions.jsonl"
            for part in (f"documents/{name}.json", mentions):
                (data / part).parent.mkdir(parents=True, exist_ok=True)
                if not (data / part).exists():
                    (data / part).symlink_to((wordnet / part).resolve())


def rank_of(of: Corpora, ranked: IntArray) -> list[float]:
    """Return the ranks of the right items in lists (m, c), 0 if it is not there."""
    rank = of.first_ranks(ranked)
    return np.where(np.isfinite(rank), rank, 0.0).tolist()


def ordered(lists: IntArray, scores: FloatArray) -> IntArray:
    """Return lists (m, c) of items by their scores (m, c), best first."""
    return np.take_along_axis(lists, np.argsort(-scores, axis=1, kind="stable"), axis=1)


@dataclass
class Domain:
    """Test queries of a domain, the dual encoder's best items (m, c), and the cross-encoder with its
    scores so far."""

    of: Corpora
    best: IntArray
    scorer: Scorer
    exact: dict[tuple[int, int], float] = field(default_factory=dict)

    def part(self, depth: int) -> tuple[Corpora, IntArray]:
        """Return the queries whose best `depth` items are ranked, and these items."""
        count = min(len(self.of), QUERIES if depth == DEPTHS[0] else WIDE)
        some = Corpora([data.take(range(count)) for data in self.of.datasets])
        return some, self.best[:count, :depth]

    def scored(self, lists: IntArray) -> list[float]:
        """Return the ranks of the right items after the cross-encoder has scored lists (m, c)."""
        pairs = [(q, i) for q, row in enumerate(lists.tolist()) for i in row]
        new = [pair for pair in pairs if pair not in self.exact]
        if new:
            found = self.scorer.score(Pairs(*np.array(new).T), self.of.queries, self.of.items)
            for places, scores in found:
                self.exact |= zip([new[p] for p in places], scores.tolist(), strict=True)
        scores = np.reshape([self.exact[pair] for pair in pairs], lists.shape)
        return rank_of(self.part(DEPTHS[-1])[0], ordered(lists, scores))

    def by_encoder(self) -> dict[str, list[float]]:
        """Return ranks by the dual encoder, and by the cross-encoder over its best."""
        own = {f"{depth}": rank_of(*self.part(depth)) for depth in DEPTHS}
        best = self.part(DEPTHS[-1])[1]
        return own | {f"scored {c}": self.scored(best[:, :c]) for c in (CALLS, DEPTHS[0])}

    def by_model(
        self, task: LateInteractionTask, depths: Sequence[int], shared: Path
    ) -> dict[str, list[float]]:
        """Return ranks by a model, and by the cross-encoder over its best of the longer lists."""
        task.model.eval()
        items, found = self.of.items, {}
        states = kept_states(shared, "test-states", task.model, items, queries=False)
        task._stored = {False: (states, {text: place for place, text in enumerate(items)})}
        for depth in depths:
            some, lists = self.part(depth)
            starts = range(0, len(lists), 16)
            with torch.inference_mode():
                rows = [range(start, min(start + 16, len(lists))) for start in starts]
                parts = [task.scores(self.of, [*r], lists[r.start : r.stop]) for r in rows]
            ranked = ordered(lists, np.concatenate(parts))
            found[f"{depth}"] = rank_of(some, ranked)
            if depth == DEPTHS[-1]:
                found[f"scored {CALLS}"] = self.scored(ranked[:, :CALLS])
        return found


def run(options: argparse.Namespace, done: list[dict[str, Any]]) -> None:
    """Train and rank what is missing."""
    data, shared = options.work / "data", options.work / "shared"
    linked(options.wordnet, data)
    shared.mkdir(exist_ok=True)
    encoder, scorer = Once(ck.DualEncoder(options.dual)), ck.CrossEncoder(options.scorer)
    domains = {}
    for each in read_labelled(options.wordnet, "test"):
        if each.name in TEST:
            of = Corpora([each.sample(QUERIES, 0)])
            best = retrieved(of, "dual-encoder", DEPTHS[-1], encoder)[1].items
            domains[each.name] = Domain(of, best, scorer)

    def keep(name: str, seed: int, row: dict[str, Any]) -> None:
        done.append({"variant": name, "seed": seed, **row})
        options.out.write_text("\n".join(map(json.dumps, done)) + "\n")

    if not done:
        keep(ENCODER, 0, {"dev": [], **{name: of.by_encoder() for name, of in domains.items()}})
    for seed, name in product(options.seeds, options.only):
        if any((row["variant"], row["seed"]) == (name, seed) for row in done):
            continue
        of = settings(options, name, seed)
        torch.manual_seed(seed)
        config = LateInteractionConfig(head=of.kind, **of.model)
        model = LateInteractionModel.new(of.encoder, config)
        task = LateInteractionTask(model, *read_corpora(of), of, encoder)
        folder = options.work / f"{name}-{seed}"
        folder.mkdir(exist_ok=True)
        for path in shared.iterdir():  # states of frozen towers are the same for all variants
            if not (folder / path.name).exists():
                (folder / path.name).hardlink_to(path)
        loop.fit(task, of.training, folder)
        for path in folder.glob("*-states-*"):
            if not (shared / path.name).exists():
                (shared / path.name).hardlink_to(path)
        log = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
        dev = [{"step": line["step"], **line["dev"]} for line in log if "dev" in line]
        depths = VARIANTS[name].get("depths", DEPTHS)
        found = {place: each.by_model(task, depths, shared) for place, each in domains.items()}
        keep(name, seed, {"dev": dev, **found})


def at(rows: list[dict[str, Any]], domain: str, what: str, k: int) -> FloatArray:
    """Return for each query the share of seeds, in percent, whose first k hold the right item."""
    ranks = np.array([row[domain][what] for row in rows])
    return 100 * ((ranks > 0) & (ranks <= k)).mean(axis=0)


def table(rows: list[dict[str, Any]]) -> None:
    """Print for each domain and variant how often the right item is among the first, and the
    differences to the dual encoder's order, and to the cross-encoder over its best 64."""
    few, wide = map(str, DEPTHS)
    heads = f"R@1 over {few} | - encoder | R@1 over {wide} | - encoder | R@16, R@64"
    print(f"| domain | variant | seeds | MRR on dev | {heads} | scored {CALLS} | - scored {few} |")
    print("|---" * 11 + "|")
    for domain, name in product(TEST, dict.fromkeys(row["variant"] for row in rows)):
        mine, own = ([row for row in rows if row["variant"] == each] for each in (name, ENCODER))
        curves = [f"{100 * point['mrr']:.1f}" for point in mine[0]["dev"]]
        cells = [domain, name, str(len(mine)), ", ".join(curves)]
        compared = ((few, few), (wide, wide), (f"scored {CALLS}", f"scored {few}"))
        for what, other in compared:
            if what not in mine[0][domain]:
                cells += ["", ""]
                continue
            found = at(mine, domain, what, 1)
            test = paired(found - at(own, domain, other, 1))
            interval = f"{test.difference:+.1f} [{test.low:+.1f}, {test.high:+.1f}]"
            cells += [f"{found.mean():.1f}", interval]
            if what == wide:
                cells.append(", ".join(f"{at(mine, domain, wide, k).mean():.1f}" for k in (16, 64)))
        print(f"| {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("wordnet", "dual", "base", "scorer", "work", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--only", nargs="*", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    options = parser.parse_args()
    done = [*map(json.loads, options.out.open())] if options.out.exists() else []
    if options.work.is_dir():
        run(options, done)
    table(done)


if __name__ == "__main__":
    main()
