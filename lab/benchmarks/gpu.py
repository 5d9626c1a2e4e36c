"""Pairs a second of cross-encoders on a GPU, and the latency of searches with them and with simulated scorers.

    python lab/benchmarks/gpu.py OUT [--tiny] [--models NAME ...] [--items 12000 1000000] [--simulated]

The models have the usual shapes and random weights, in bfloat16. OUT (JSON lines) gets the pairs of 128 tokens a second
by batch size, of `ck.CrossEncoder` and of sentence-transformers' `predict`, and their share of the measured peak of
matrix products; then the milliseconds of a query, encoded before, for reranking 100 pairs, `axn` and `auto`: the median
of queries searched after a first one, with the rounds that `auto` chose. Simulated scorers wait 60 ms for a batch of
up to 100 or 64 pairs, or 50 ms and 1 ms a pair. With --tiny, tiny models run on a CPU in a minute.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import crossknn as ck
from crossknn.types import Pairs

SHAPES: dict[str, dict[str, Any]] = {
    "MiniLM-L6": {"kind": "bert", "hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536},
    "BERT-base": {"kind": "bert"},
    "ModernBERT-base": {"kind": "modernbert"},
    "Qwen3-0.6B": {
        "kind": "qwen3", "hidden_size": 1024, "num_hidden_layers": 28, "intermediate_size": 3072,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    },
}  # fmt: skip
TINY = {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128}
WAITS = {"60 ms, 100 pairs": (0.06, 0.0, 100), "60 ms, 64 pairs": (0.06, 0.0, 64), "50 ms + 1": (0.05, 0.001, 100)}  # fmt: skip
METHODS = ("rerank", "axn(ridge=0.3)", "auto", "auto(rounds=20)")
BATCHES, WORDS = (32, 128, 512), 62


def model(shape: dict[str, Any], folder: Path, tiny: bool) -> tuple[Path, int]:
    """Save a model with random weights; return its folder and the number of its weights in layers."""
    import torch
    from transformers import (
        AutoConfig,
        AutoModelForSequenceClassification,
        PreTrainedTokenizerFast,
    )

    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    file = Path(ck.__file__).parent / "bundled/cross-encoder/tokenizer.json"
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(file), model_max_length=128, **names)
    options = {"vocab_size": len(tokenizer), "num_labels": 1, "pad_token_id": 0} | shape
    kind = options.pop("kind")
    if tiny:
        heads = [name for name in options if "heads" in name or name == "head_dim"]
        options |= TINY | {"num_attention_heads": 2} | dict.fromkeys(heads, 2)
    torch.manual_seed(0)
    made = AutoModelForSequenceClassification.from_config(AutoConfig.for_model(kind, **options))
    made.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    weights = sum(p.numel() for name, p in made.named_parameters() if "embed" not in name)
    return folder, weights


def rate(score: Callable[[list[tuple[str, str]]], object], pairs: list[tuple[str, str]]) -> float:
    """Pairs a second, of the second run."""
    score(pairs)
    began = time.perf_counter()
    score(pairs)
    return len(pairs) / (time.perf_counter() - began)


def scored(scorer: Any, pairs: list[tuple[str, str]]) -> None:
    """Score pairs by a scorer of ours."""
    queries, items = zip(*pairs, strict=True)
    each = np.arange(len(pairs))
    for _ in scorer.score(Pairs(each, each), queries, items):
        pass


def speeds(name: str, tiny: bool, pairs: list[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    """Yield pairs a second of a model by batch size, and milliseconds of searches with it."""
    import torch
    from sentence_transformers import CrossEncoder

    matrix = torch.rand(2**9 if tiny else 2**13, 2**9 if tiny else 2**13, dtype=torch.bfloat16)
    matrix = matrix.to("cuda" if torch.cuda.is_available() else "cpu")
    peak = rate(lambda _: [float((matrix @ matrix)[0, 0]) for _ in range(9)], [("", "")])
    peak *= 9 * 2 * len(matrix) ** 3
    with TemporaryDirectory() as temporary:
        folder, weights = model(SHAPES[name], Path(temporary), tiny)
        given = {"model_kwargs": {"dtype": torch.bfloat16}}
        theirs = CrossEncoder(str(folder), **given)
        for batch in BATCHES[: 1 if tiny else None]:
            ours = ck.CrossEncoder(folder, batch=batch, **given)
            rates = {
                "crossknn": rate(partial(scored, ours), pairs),
                "sentence-transformers": rate(partial(theirs.predict, batch_size=batch), pairs),
            }
            share = rates["crossknn"] * 128 * 2 * weights / peak
            yield {"model": name, "batch": batch, "pairs a second": rates, "share of peak": share}
        yield from latencies(name, ours)


def latencies(name: str, scorer: Any) -> Iterator[dict[str, Any]]:
    """Yield milliseconds and rounds of searches of each method over each index."""
    for index, queries in INDEXES.values():
        searcher = ck.Searcher(index, scorer)
        for method in METHODS:
            found = []
            for query in queries:
                began = time.perf_counter()
                results = searcher.search(query, method=method, budget=100)
                found.append((1000 * (time.perf_counter() - began), results.rounds))
            ms, rounds = np.median(found[len(found) // 3 :], axis=0)
            yield {
                "scorer": name,
                "items": len(index),
                "method": method,
                "ms": ms,
                "rounds": rounds,
            }


def waiting(fixed: float, each: float, batch: int) -> ck.CallableScorer:
    """A scorer that takes so many seconds for a batch and for a pair."""

    def score(pairs: list[tuple[str, str]]) -> list[float]:
        time.sleep(fixed + each * len(pairs))
        return [len({*query.split()} & {*text.split()}) + len(text) / 999 for query, text in pairs]

    return ck.CallableScorer(score, batch=batch)


INDEXES: dict[int, tuple[ck.ItemIndex, list[str]]] = {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--models", nargs="*", choices=SHAPES, default=[*SHAPES])
    parser.add_argument("--items", type=int, nargs="*", default=[12_000])
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    words = [f"w{number}" for number in range(5000)]
    text = lambda count: " ".join(rng.choice(words, count))  # noqa: E731
    for n in given.items:
        texts, vectors = [text(12) for _ in range(n)], rng.normal(size=(n, 384)).astype(np.float32)
        query_vectors = lambda asked: rng.normal(size=(len(asked), 384)).astype(np.float32)  # noqa: E731
        index = ck.ItemIndex.build(texts, vectors=vectors, query_vectors=query_vectors)
        INDEXES[n] = index, [text(5) for _ in range(3 if given.tiny else 9)]
    pairs = [(text(WORDS // 6), text(WORDS)) for _ in range(64 if given.tiny else 4096)]
    rows = [latencies(name, waiting(*of)) for name, of in WAITS.items()] if given.simulated else []
    rows += [] if given.simulated else [speeds(name, given.tiny, pairs) for name in given.models]
    for some in rows:
        for row in some:
            print(json.dumps(row), flush=True)
            with given.out.open("a") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
