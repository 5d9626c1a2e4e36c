"""CMC and its rivals between a dual encoder and a cross-encoder, measured on the test queries of
`wordnet` domains and of medquad (CMC, tables 1-4, 8, 11-13).

    python lab/benchmarks/late.py wordnet --data wordnet --retriever MiniLM --encoder DUAL --scorer CE \
        --work WORK [--only candidates scores ranks]
    python lab/benchmarks/late.py report --work WORK

Models come from `train_late.py` with the same WORK. Every part is kept in WORK/late-eval and made
once; `report` writes benchmarks/results/late.json. Latency is measured by `late_speed.py`.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bfloat16 import Bfloat16CrossEncoder
from train_late import KINDS

from crossknn.data.dataset import Labelled
from crossknn.data.reading import read_labelled
from crossknn.retrievers.base import DenseRetriever
from crossknn.retrievers.lexical import BM25
from crossknn.scorers import CrossEncoder, DualEncoder
from crossknn.scorers.base import Scorer
from crossknn.scorers.torch import TorchLateInteraction
from crossknn.training.corpora import reader
from crossknn.training.late_interaction import kept_states, weights_digest
from crossknn.training.run import RUN
from crossknn.types import NO_ITEM, Pairs, Queries, States

DOMAINS = {"wordnet": ("noun.act", "noun.artifact"), "medquad": ("medquad",)}
QUERIES = {"wordnet": 300, "medquad": 100}
DEPTH, DEPTHS = 512, (64, 128, 256, 512)
BM25_DEPTH = 64
CE = (16, 64)
AT = (1, 4, 8, 16, 32, 64)
SEED = 0
MODEL = re.compile(r"(?P<name>.+)-(?P<seed>\d+)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("set", choices=[*DOMAINS, "report"])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--retriever", help="the dual encoder of the retriever")
    parser.add_argument("--encoder", help="the dual encoder trained in the domain")
    parser.add_argument("--scorer", help="the cross-encoder, an ONNX folder")
    parser.add_argument("--bfloat16", action="store_true", help="of the cross-encoder")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=["candidates", "scores", "ranks"])
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    if options.set == "report":
        out = Path(__file__).parents[2] / "benchmarks/results" / "late.json"
        out.write_text(json.dumps(report(options.work), indent=1) + "\n")
        return
    for domain in DOMAINS[options.set]:
        part = Part(options, domain)
        for step in options.only:
            getattr(part, step)()


class Part:
    """The test queries (m) of a domain, and what is kept of them."""

    def __init__(self, options: argparse.Namespace, domain: str) -> None:
        self.options, self.domain = options, domain
        (corpus,) = (
            read_labelled(options.data, domains=[domain])
            if options.set == "wordnet"
            else read_labelled(options.data, "test")
        )
        self.corpus: Labelled = corpus.sample(QUERIES[options.set], SEED)
        self.folder = options.work / "late-eval"
        self.folder.mkdir(parents=True, exist_ok=True)

    def path(self, what: str) -> Path:
        return self.folder / f"{what}-{self.domain}.npz"

    def candidates(self) -> None:
        """The best items (m, c) by the retriever, by BM25, and by the encoder in the domain."""
        if self.path("candidates").exists():
            return
        queries = Queries(self.corpus.queries.texts)
        found = {"bm25": BM25.fit(self.corpus.items.texts).top(queries, BM25_DEPTH).items}
        stages: dict[str, DenseRetriever] = {}
        for name, source in (("first", self.options.first), ("own", self.options.encoder)):
            stage = stages[source] = stages.get(source) or self.stage(source)
            found[name] = stage.top(queries, DEPTH).items
            if name == "own":  # the dual encoder itself over the candidates of the others
                scores = stage.scores(queries)
                for other in ("first", "bm25"):
                    listed = np.take_along_axis(scores, np.maximum(found[other], 0), axis=1)
                    found[f"scores-own-{other}"] = np.where(found[other] < 0, -np.inf, listed)
        positives = self.corpus.positives
        for name in ("first", "bm25", "own"):
            right = [np.isin(row, p) for row, p in zip(found[name], positives, strict=True)]
            found[f"right-{name}"] = np.stack(right)
        np.savez(self.path("candidates"), **found)

    def stage(self, source: str) -> DenseRetriever:
        """A dual encoder as a retriever for the test queries."""
        encoder = reader(DualEncoder(source))
        vectors = encoder.encode_items(self.corpus.items.texts)
        asked = encoder.encode_queries(self.corpus.queries.texts)
        return DenseRetriever(vectors, lambda queries: asked)

    def scores(self) -> None:
        """The cross-encoder's scores of the candidates: (m, c) each, some columns at a time."""
        lists = np.load(self.path("candidates"))
        model = scorer(self.options)
        for name in ("bm25", "first"):
            path, items = self.path(f"scores-{name}"), lists[name]
            done = dict(np.load(path)) if path.exists() else {}
            values = done.get("scores", np.full(items.shape, np.nan, np.float32))
            seconds = float(done.get("seconds", 0))
            for end in (32, 64, *range(128, items.shape[1] + 1, 64)):
                missing = (items != NO_ITEM) & np.isnan(values)
                missing[:, end:] = False
                rows, columns = np.nonzero(missing)
                if not len(rows):
                    continue
                pairs, began = Pairs(rows, items[rows, columns]), time.perf_counter()
                for where, scores in model.score(
                    pairs, self.corpus.queries.texts, self.corpus.items.texts
                ):
                    values[rows[where], columns[where]] = scores
                seconds += time.perf_counter() - began
                np.savez(path, scores=values, seconds=seconds)
                print(f"{path.stem}: {end} of {items.shape[1]}, {seconds:.0f} s", flush=True)

    def ranks(self) -> None:
        """Scores of every trained model: over the first 64 to 512 candidates, and over BM25's; of
        other starts and changed models over 64 alone."""
        lists = np.load(self.path("candidates"))
        for folder in models(self.options.work, self.options.set):
            path = self.path(f"model-{folder.name}")
            if path.exists():
                continue
            model, began = TorchLateInteraction(folder), time.perf_counter()
            queries = model.encode_queries(self.corpus.queries.texts)
            used = np.unique(np.concatenate([lists[n].ravel() for n in ("first", "bm25")]))
            used = used[used != NO_ITEM]
            items = self.item_states(model, [self.corpus.items.texts[i] for i in used])
            found, plain = {}, MODEL.sub(r"\g<name>", folder.name) in KINDS
            for name, depths in (("first", DEPTHS if plain else CE[-1:]), ("bm25", (BM25_DEPTH,))):
                whole: np.ndarray | None = None
                for depth in reversed(depths):
                    if model.joint or whole is None:
                        listed = placed(lists[name][:, :depth], used)
                        whole = model.compare(queries, items, listed)
                    found[f"{name}-{depth}"] = whole[:, :depth]
            states = items.values.nbytes / len(items)
            np.savez(path, **found, bytes_per_item=states)
            print(f"{path.stem}: {time.perf_counter() - began:.0f} s", flush=True)

    def item_states(self, model: TorchLateInteraction, texts: list[str]) -> States:
        """Of models that share an item tower, which did not move, the tower runs once."""
        late, folder = model.model, self.folder / "towers" / weights_digest(model.model.item)
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{self.domain}-{late.head.item_reads}"
        tower = kept_states(folder, name, late, texts, queries=False)
        parts = []
        for start in range(0, len(texts), 256):
            values, mask = tower.padded(np.arange(start, min(start + 256, len(texts))))
            with torch.inference_mode():
                states, _ = late.head.of_items(torch.from_numpy(values), torch.from_numpy(mask))
            parts.append(states.numpy()[mask].astype(np.float16))
        return States(np.concatenate(parts), tower.starts)


def scorer(options: argparse.Namespace) -> Scorer:
    if options.bfloat16:
        return Bfloat16CrossEncoder(options.scorer, threads=options.threads)
    return CrossEncoder(options.scorer, threads=options.threads)


def models(work: Path, name: str) -> Iterator[Path]:
    """Trained models, by folder."""
    for card in sorted((work / f"late-{name}").glob("*/README.md")):
        if MODEL.fullmatch(card.parent.name) and "-rate-" not in card.parent.name:
            yield card.parent


def placed(items: np.ndarray, used: np.ndarray) -> np.ndarray:
    """Where items are among those that are used."""
    return np.where(items == NO_ITEM, NO_ITEM, np.searchsorted(used, np.maximum(items, used[0])))


def ranks(scores: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The place of the best right candidate, by scores (m, c) and which are right (m, c)."""
    order = np.argsort(-scores, axis=1, kind="stable")
    ranked = np.take_along_axis(right & np.isfinite(scores), order, axis=1)
    return np.where(ranked.any(1), ranked.argmax(1) + 1.0, np.inf)


def recall(found: np.ndarray) -> list[float]:
    """R@1 to R@64."""
    return [round(float((found <= k).mean()), 5) for k in AT]


def report(work: Path) -> dict[str, Any]:
    """Of every domain that has been measured."""
    found: dict[str, Any] = {}
    for name, domains in DOMAINS.items():
        for domain in domains:
            folder = work / "late-eval"
            if (folder / f"scores-bm25-{domain}.npz").exists():
                found[domain] = of_domain(folder, domain)
        made = {folder.name: trained(folder) for folder in models(work, name)}
        if made:
            found.setdefault("training", {})[name] = made
    return found


def of_domain(folder: Path, domain: str) -> dict[str, Any]:
    lists = np.load(folder / f"candidates-{domain}.npz")
    exact = {n: np.load(folder / f"scores-{n}-{domain}.npz")["scores"] for n in ("first", "bm25")}
    scored = ~np.isnan(exact["retriever"]) | (lists["retriever"] == NO_ITEM)
    depth = max(depth for depth in DEPTHS if scored[:, :depth].all())
    right = {name: lists[f"right-{name}"] for name in ("first", "bm25", "own")}
    by_rank = {
        name: -np.arange(mask.shape[1]) + np.zeros(mask.shape) for name, mask in right.items()
    }
    stages = {
        "retriever": recall(ranks(by_rank["retriever"], right["retriever"])),
        "own": recall(ranks(by_rank["own"], right["own"])),
        "own over first": recall(ranks(lists["scores-own-first"], right["retriever"])),
        "own over 64": recall(ranks(lists["scores-own-first"][:, :64], right["retriever"][:, :64])),
    }
    plain = {
        kept: pipeline(exact["retriever"], right["retriever"], by_rank["retriever"], kept)
        for kept in (*CE, depth)
    }
    bm25 = {
        "first": normalized(by_rank["bm25"], right["bm25"]),
        "own": normalized(lists["scores-own-bm25"], right["bm25"]),
        "cross-encoder": normalized(np.nan_to_num(exact["bm25"], nan=-np.inf), right["bm25"]),
    }
    rows: dict[str, Any] = {}
    for path in sorted(folder.glob(f"model-*-{domain}.npz")):
        made = MODEL.fullmatch(path.stem.removeprefix("model-").removesuffix(f"-{domain}"))
        assert made is not None
        scores = np.load(path)
        most = scores.get(f"first-{depth}")
        rows.setdefault(made["name"], {})[made["seed"]] = {
            "recall": {
                str(depth): recall(ranks(scores[f"first-{depth}"], right["retriever"][:, :depth]))
                for depth in DEPTHS
                if f"first-{depth}" in scores
            },
            "normalized": normalized(scores["first-64"], right["retriever"][:, :64]),
            "bm25": normalized(scores[f"bm25-{BM25_DEPTH}"], right["bm25"]),
            "cross-encoder": {
                str(kept): pipeline(exact["retriever"], right["retriever"], most, kept)
                for kept in CE
                if most is not None
            },
            "bytes_per_item": float(scores["bytes_per_item"]),
        }
    return {
        "queries": len(right["retriever"]),
        "depth": depth,
        "stages": stages,
        "cross-encoder": plain,
        "bm25": bm25,
        "bm25_recall": recall(ranks(by_rank["bm25"], right["bm25"])),
        "models": rows,
    }


def pipeline(
    exact: np.ndarray, right: np.ndarray, cheap: np.ndarray, kept: int
) -> dict[str, list[int] | float]:
    """The cross-encoder over the best `kept` by cheap scores: which queries are right (m,), and the
    share of those whose right item is among the kept."""
    order = np.argsort(-cheap, axis=1, kind="stable")[:, :kept]
    scores, there = (np.take_along_axis(values, order, axis=1) for values in (exact, right))
    hits = ranks(scores, there) == 1
    return {
        "right": hits.astype(int).tolist(),
        "normalized": round(float(hits[there.any(1)].mean()), 5),
    }


def normalized(scores: np.ndarray, right: np.ndarray) -> float:
    """Accuracy over the queries whose right item is among the candidates."""
    return round(float((ranks(scores, right)[right.any(1)] == 1).mean()), 5)


def trained(folder: Path) -> dict[str, Any]:
    """Dev measures, seconds, the rate that was chosen, and the options of the head."""
    content = json.loads((folder / RUN / "settings.json").read_text())
    settings = content["training"]
    dev = json.loads((folder / RUN / "dev.json").read_text())
    lines = (folder / RUN / "log.jsonl").read_text().splitlines()
    steps = [line for line in map(json.loads, lines) if "loss" in line]
    pace = [(b["seconds"] - a["seconds"]) / (b["step"] - a["step"]) for a, b in pairwise(steps)]
    return {
        **dev,
        "rate": settings["learning_rate"],
        "steps": settings["steps"],
        "options": content["model"].get("options", {}),
        "seconds_a_step": round(float(np.median(pace)), 3),
    }


if __name__ == "__main__":
    main()
