"""CMC beside the dual encoder that it starts from, on WordNet (CMC, tables 1, 3 and 12).

    python lab/benchmarks/cmc.py WORDNET DUAL WORK OUT [--only NAME ...] [--seeds 0 ...]

WORDNET is the data set (ZESHEL's layout), of which WORK/data links the train domains below; DUAL is a dual encoder of
crossknn-train trained on them. It is the first stage too: its 64 or 512 best items are the candidates, in training and
for test queries, so that CMC is compared with the encoder's own order. OUT (JSON lines) gets, for each variant and
seed, measures of dev queries (noun.state) while training, and the rank of the right item for every test query. A killed
run goes on where it stopped. Without WORK's models, OUT is printed as a table.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

import crossknn as ck
from crossknn.evaluation.measures import paired
from crossknn.types import FloatArray
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
WINDOW = {"marked": True, "query_length": 32, "item_length": 48}
SCALE, PAPER = 0.02, {"weight": 0.2, "kl": "model-retriever"}
SLOW = {"rate": 2e-5}
VARIANTS: dict[str, dict[str, Any]] = {
    "as the paper, towers frozen": {"freeze": "both", "loss": PAPER, "options": {}},
    "scaled, towers frozen": {"freeze": "both"},
    "scaled, query tower": {},
    "scaled, query tower, slow": SLOW,
    "scaled, query tower, slow, KL": {**SLOW, "loss": PAPER},
    "scaled, query tower, slow, uniform negatives": {**SLOW, "candidates": {"sampling": "uniform"}},
}


def settings(encoder: str, data: Path, given: dict[str, Any], seed: int) -> LateInteractionSettings:
    """Return the settings of a variant."""
    options = given.get("options", {"scale": SCALE})
    training = {"steps": 300, "batch": 16, "seed": seed, "learning_rate": given.get("rate", 1e-4)}
    return LateInteractionSettings.model_validate(
        {
            "kind": "cmc",
            "encoder": encoder,
            "data": {"folder": data, "dev_queries": 500},
            "model": {**WINDOW, "options": options},
            "candidates": {"retriever": encoder, **given.get("candidates", {})},
            "loss": given.get("loss", {"kl": "none"}),
            "freeze": given.get("freeze", "items"),
            "training": {**training, "warmup": 0.1, "evaluations": 4, "epochs": 1, "dropout": 0.0},
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


def ranks(
    task: LateInteractionTask, of: Corpora, encoder: Once, shared: Path
) -> dict[str, list[float]]:
    """Return the ranks of the right items among the encoder's candidates, by the encoder and by CMC;
    0 if it is not among them."""
    found = {}
    task.model.eval()
    states = kept_states(shared, "test-states", task.model, of.items, queries=False)
    task._stored = {False: (states, {text: place for place, text in enumerate(of.items)})}
    best = retrieved(of, "dual-encoder", DEPTHS[-1], encoder)[1].items
    for depth in DEPTHS:
        rows = range(len(of) if depth == DEPTHS[0] else min(len(of), WIDE))
        lists = best[rows.start : rows.stop, :depth]
        with torch.inference_mode():
            at_once = [range(s, min(s + 16, len(rows))) for s in range(0, len(rows), 16)]
            parts = [task.scores(of, [*r], lists[r.start : r.stop]) for r in at_once]
        order = np.argsort(-np.concatenate(parts), axis=1, kind="stable")
        ranked = np.take_along_axis(lists, order, axis=1)
        some = Corpora([data.take(rows) for data in of.datasets])
        for name, each in (("encoder", lists), ("cmc", ranked)):
            rank = some.first_ranks(each)
            found[f"{name} {depth}"] = np.where(np.isfinite(rank), rank, 0.0).tolist()
    return found


def run(options: argparse.Namespace, done: list[dict[str, Any]]) -> None:
    """Train and rank what is missing."""
    data, shared = options.work / "data", options.work / "shared"
    linked(options.wordnet, data)
    shared.mkdir(exist_ok=True)
    encoder = Once(ck.DualEncoder(options.dual))
    test = {
        name: [d for d in read_labelled(options.wordnet, "test") if d.name == name] for name in TEST
    }
    for seed in options.seeds:
        for name in options.only:
            if any((row["variant"], row["seed"]) == (name, seed) for row in done):
                continue
            of = settings(str(options.dual), data, VARIANTS[name], seed)
            torch.manual_seed(seed)
            config = LateInteractionConfig(head="cmc", **of.model)
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
            row: dict[str, Any] = {"variant": name, "seed": seed, "dev": dev}
            for domain, sets in test.items():
                of_domain = Corpora([each.sample(QUERIES, 0) for each in sets])
                row[domain] = ranks(task, of_domain, encoder, shared)
            done.append(row)
            options.out.write_text("\n".join(map(json.dumps, done)) + "\n")


def table(rows: list[dict[str, Any]]) -> None:
    """Print for each domain and variant R@k of CMC, and the difference of R@1 to the encoder's order."""
    heads = [f"R@1, R@4 over {depth} | R@1 - encoder" for depth in DEPTHS]
    print(f"| domain | variant | seeds | MRR on dev | {' | '.join(heads)} |")
    print("|---" * (4 + 2 * len(heads)) + "|")

    def at(found: list[list[float]], k: int) -> FloatArray:
        return np.array([[100.0 * (0 < rank <= k) for rank in one] for one in found]).mean(axis=0)

    for domain in TEST:
        for name in dict.fromkeys(row["variant"] for row in rows):
            mine = [row for row in rows if row["variant"] == name]
            dev = ", ".join(f"{100 * point['mrr']:.1f}" for point in mine[0]["dev"])
            cells = []
            for depth in DEPTHS:
                own = [row[domain][f"encoder {depth}"] for row in mine]
                cmc = [row[domain][f"cmc {depth}"] for row in mine]
                test = paired(at(cmc, 1) - at(own, 1))
                cells.append(f"{at(cmc, 1).mean():.1f}, {at(cmc, 4).mean():.1f}")
                cells.append(f"{test.difference:+.1f} [{test.low:+.1f}, {test.high:+.1f}]")
            print(f"| {domain} | {name} | {len(mine)} | {dev} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("wordnet", "dual", "work", "out"):
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
