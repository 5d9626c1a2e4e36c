"""Measure the models of `train_wordnet.py`: linking accuracy over the dual encoder's top 64
(ANNCUR, table 3a), and score matrices of `noun.act` (table 3b).

    python lab/benchmarks/evaluate_wordnet.py accuracy --model emb-de --data wordnet --work WORK
    python lab/benchmarks/evaluate_wordnet.py matrix --model emb-de --data wordnet --work WORK
    python lab/benchmarks/evaluate_wordnet.py report --data wordnet --work WORK

Every part is kept in WORK and made once; a matrix may be of fewer items (`--items`), in bfloat16
(`--bfloat16`: half the hours, with OpenVINO) and beside it in float32 of fewer queries
(`--queries`): the report compares the two.

`report` writes benchmarks/results/wordnet_models.json from the parts that are there.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from domain_matrix import sample_of_items, write
from scipy.stats import spearmanr

from crossknn.data.dataset import Labelled
from crossknn.data.marks import unmarked
from crossknn.data.reading import read_labelled
from crossknn.evaluation.measures import bootstrap
from crossknn.evaluation.replay import replay
from crossknn.fitting.matrix import MatrixFile
from crossknn.index.item_index import ItemIndex
from crossknn.index.stored import StoredMatrix
from crossknn.methods import methods
from crossknn.models.backbone import open_backbone
from crossknn.models.cross_encoder import CrossEncoderConfig, CrossEncoderModel
from crossknn.models.export import export_model
from crossknn.retrievers.base import DenseRetriever
from crossknn.scorers import DualEncoder, OnnxCrossEncoder
from crossknn.training.corpora import candidates
from crossknn.types import Pairs
from crossknn_lab.score_matrix import components, effective_rank, rank

DOMAINS = {
    "dev": ("noun.state", "noun.communication"),
    "test": ("noun.act", "noun.artifact", "adj.all"),
}
TRAINED = ("emb-de", "cls-de", "emb-tfidf", "cls-tfidf", "emb-random", "cls-random")
SHARED = "shared"  # the small [EMB]-CE of the shared folder, to be beaten
MATRIX_DOMAIN, MATRIX_QUERIES = "noun.act", 200
MATRIX = re.compile(r"matrix-(?P<model>.+)-(?P<items>\d+)-(?P<queries>\d+)(?P<bf16>-bf16)?\.npz")
METHODS = """
rerank(retriever=dense)
anncur(anchors=0.5)
anncur(anchors=0.5, retriever=dense)
adacur(retriever=dense, rounds=5)
axn(retriever=dense, rounds=5, blend=0.0)
axn(retriever=dense, rounds=5, blend=0.5)
axn(retriever=dense, rounds=10, ridge=0.3)
"""
BUDGETS, KS = (50, 100, 200), (1, 10, 100)
SEED = 0


def sample(data: Path, domain: str, mentions: int) -> Labelled:
    (found,) = read_labelled(data, domains=[domain])
    return found.sample(mentions, SEED)


def scorer(options: argparse.Namespace, name: str) -> OnnxCrossEncoder:
    """The model as float32 ONNX, exported once; run in bfloat16 if so asked."""
    folder = options.work / "eval" / f"onnx-{name}"
    if not (folder / "crossknn.json").exists():
        model = shared_model(options.shared_model) if name == SHARED else options.work / name
        export_model(model, folder, name=name)
    if options.bfloat16:
        from bfloat16 import Bfloat16CrossEncoder

        return Bfloat16CrossEncoder(folder, threads=options.threads)
    return OnnxCrossEncoder(folder, threads=options.threads)


def shared_model(folder: Path) -> CrossEncoderModel:
    """The shared model with its own window (its README: ten words of context, items of 36)."""
    config = CrossEncoderConfig(
        head="emb", marked=True, max_length=80, query_length=30, item_length=37, scale=0.1
    )
    return CrossEncoderModel(*open_backbone(folder, marked=True), config)


def candidates_of(options: argparse.Namespace, corpus: Labelled, encoder: str) -> np.ndarray:
    """The 64 nearest items of each mention by the trained or the off-the-shelf dual encoder."""
    path = options.work / "eval" / f"candidates-{encoder}-{corpus.name}-{len(corpus)}.npy"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        own = encoder == "trained"
        opened = DualEncoder(options.work / "dual-encoder" if own else options.encoder)
        read = (lambda texts: texts) if own else (lambda texts: [unmarked(t) for t in texts])
        items = opened.encode_items(read(list(corpus.items.texts)))
        stage = DenseRetriever(items, lambda queries: opened.encode_queries(read(queries.texts)))
        np.save(path, candidates(corpus, stage, 64))
    return np.load(path)


def accuracy(options: argparse.Namespace) -> None:
    """Scores (m, 64) of each domain's candidates; for `noun.act` also of the other encoder's."""
    model = scorer(options, options.model)
    for split, domains in DOMAINS.items():
        for domain in set(domains) & set(options.domains):
            corpus = sample(options.data, domain, options.mentions)
            kinds = ["trained"]
            if domain == MATRIX_DOMAIN and options.model in ("emb-de", SHARED):
                kinds.append("off-the-shelf")
            for kind in kinds:
                path = options.work / "eval" / f"scores-{options.model}-{kind}-{domain}.npz"
                if path.exists():
                    continue
                found = candidates_of(options, corpus, kind)
                pairs = Pairs(np.repeat(np.arange(len(corpus)), found.shape[1]), found.ravel())
                scores, began = np.full(len(pairs), np.nan, np.float32), time.perf_counter()
                for where, values in model.score(pairs, corpus.queries.texts, corpus.items.texts):
                    scores[where] = values
                seconds = time.perf_counter() - began
                np.savez(path, scores=scores.reshape(found.shape), items=found, gold=corpus.gold)
                print(f"{options.model} {split} {domain} {kind}: {seconds:.0f} s", file=sys.stderr)


def matrix(options: argparse.Namespace) -> None:
    """The first `--queries` of 200 mentions of `noun.act` against `--items` of its items.

    The gold items of all 200 are among them.
    """
    corpus = sample(options.data, MATRIX_DOMAIN, MATRIX_QUERIES)
    items = sample_of_items(corpus, options.items)
    mentions = corpus.take(range(options.queries))
    shape = f"{len(items)}-{options.queries}{'-bf16' if options.bfloat16 else ''}"
    path = options.work / "eval" / f"matrix-{options.model}-{shape}.npz"
    if path.exists():
        return
    index = ItemIndex.build(items, encoder=DualEncoder(options.work / "dual-encoder"), seed=SEED)
    file = MatrixFile(path, index, scorer(options, options.model), dtype="float32")
    write(file, mentions, len(mentions) // 2, path.name)


def report(options: argparse.Namespace) -> None:
    work = options.work / "eval"
    result: dict[str, Any] = {"accuracy": {}, "against_shared": {}, "matrices": {}, "training": {}}
    right: dict[tuple[str, str, str], np.ndarray] = {}
    for path in sorted(work.glob("scores-*.npz")):
        name, kind, domain = split_name(path.stem.removeprefix("scores-"))
        with np.load(path) as found:
            best = found["items"][np.arange(len(found["gold"])), found["scores"].argmax(1)]
            right[name, kind, domain] = hits = best == found["gold"]
            there = (found["items"] == found["gold"][:, None]).any(1)
            first = found["items"][:, 0] == found["gold"]
        row = {"n": len(hits), "accuracy": interval(hits), "normalised": interval(hits[there])}
        result["accuracy"].setdefault(kind, {}).setdefault(domain, {})[name] = row
        result["accuracy"][kind][domain]["dual encoder"] = {
            "n": len(first),
            "accuracy": interval(first),
            "normalised": interval(first[there]),
            "at_64": float(there.mean()),
        }
    for (name, kind, domain), hits in right.items():
        if name == "emb-de" and (SHARED, kind, domain) in right:
            gain = hits.astype(float) - right[SHARED, kind, domain]
            result["against_shared"].setdefault(kind, {})[domain] = interval(gain)
    for kind in result["against_shared"]:
        gains = [
            right["emb-de", kind, domain].astype(float) - right[SHARED, kind, domain]
            for domain in result["against_shared"][kind]
        ]
        result["against_shared"][kind]["all"] = interval(np.concatenate(gains))
    files: dict[str, dict[int, Path]] = {}
    for path in sorted(work.glob("matrix-*.npz")):
        if made := MATRIX.fullmatch(path.name):
            files.setdefault(made["model"], {})[int(made["queries"])] = path
    for name, of_queries in files.items():
        path = of_queries.pop(max(of_queries))
        result["matrices"][name] = of_matrix(path)
        for exact in of_queries.values():
            result["matrices"][name]["float32"] = rounding(path, exact)
    for name in (*TRAINED, "dual-encoder"):
        settings = options.work / name / "run" / "settings.json"
        log = options.work / name / "run" / "log.jsonl"
        if log.exists():
            lines = [json.loads(line) for line in log.read_text().splitlines()]
            result["training"][name] = {
                "settings": json.loads(settings.read_text()) if settings.exists() else None,
                "dev": [line for line in lines if "dev" in line],
                "seconds": lines[-1]["seconds"],
            }
    text = json.dumps(result, indent=1, default=str)
    for private, public in (
        (str(options.work), "work"),
        (str(options.data), "wordnet"),
        (options.encoder, "all-MiniLM-L6-v2"),
    ):
        text = text.replace(private, public)
    options.out.write_text(text + "\n")


def of_matrix(path: Path) -> dict[str, Any]:
    stored = StoredMatrix.load(path)
    with np.load(path) as file:
        scores = file["scores"].astype(np.float32)
    rows = replay(stored, methods(METHODS), BUDGETS, KS, seed=SEED)
    return {
        "shape": list(scores.shape),
        "rank": rank(scores),
        "effective_rank": round(effective_rank(scores, center=True), 1),
        "components_90": components(scores, 0.9, center=True),
        "components_99": components(scores, 0.99, center=True),
        "mean": round(float(scores.mean()), 3),
        "std": round(float(scores.std()), 3),
        "recall": [row.as_dict() for row in rows],
    }


def rounding(path: Path, exact: Path) -> dict[str, Any]:
    """How far scores in bfloat16 are from those in float32, of the queries that have both."""
    with np.load(path) as file, np.load(exact) as right:
        wanted = right["scores"].astype(np.float32)
        rows = [list(file["query_ids"]).index(query) for query in right["query_ids"]]
        found = file["scores"][rows].astype(np.float32)
    return {
        "queries": len(wanted),
        "rms_over_std": round(float(np.sqrt(((found - wanted) ** 2).mean()) / wanted.std()), 5),
        "largest_over_std": round(float(np.abs(found - wanted).max() / wanted.std()), 5),
        "spearman_least": round(
            min(spearmanr(*pair).statistic for pair in zip(found, wanted, strict=True)), 5
        ),
        "effective_rank": [
            round(effective_rank(values, center=True), 2) for values in (found, wanted)
        ],
    }


def split_name(text: str) -> tuple[str, str, str]:
    for kind in ("trained", "off-the-shelf"):
        name, found, domain = text.partition(f"-{kind}-")
        if found:
            return name, kind, domain
    raise SystemExit(f"a file of another script: {text}")


def interval(values: np.ndarray) -> list[float]:
    found = bootstrap(np.asarray(values, float), seed=SEED)
    return [round(found.mean, 4), round(found.low, 4), round(found.high, 4)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("accuracy", "matrix", "report"))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--model", choices=(*TRAINED, SHARED), default=TRAINED[0])
    parser.add_argument("--shared-model", type=Path)
    parser.add_argument("--encoder", default="sentence-transformers/all-MiniLM-L6-v2")
    everywhere = [domain for domains in DOMAINS.values() for domain in domains]
    parser.add_argument("--domains", nargs="*", choices=everywhere, default=everywhere)
    parser.add_argument("--mentions", type=int, default=150)
    parser.add_argument("--items", type=int, default=6567)
    parser.add_argument("--queries", type=int, default=MATRIX_QUERIES)
    parser.add_argument("--bfloat16", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(__file__).parents[2] / "benchmarks/results" / "wordnet_models.json",
    )
    options = parser.parse_args()
    {"accuracy": accuracy, "matrix": matrix, "report": report}[options.part](options)


if __name__ == "__main__":
    main()
