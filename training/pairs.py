"""Pairs of token ids for training and for evaluation with torch."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from common import pad, read_jsonl, token_batches
from sources import Task
from tokenizers import Tokenizer
from torch import Tensor, nn

MAX_QUERY = 48
LENGTH = {
    "docs": 112,
    "docs-later": 112,
    "docs-dev": 128,
    "scifact": 176,
    "medquad": 112,
    "wordnet": 96,
}


@dataclass
class Encoded:
    """A task as token ids without special tokens, and the mined candidates of its queries."""

    task: Task
    items: list[list[int]]
    queries: list[list[int]]
    positives: list[list[int]] | None
    wrong: dict[int, list[int]]
    top: dict[int, list[int]]


def load(work: Path) -> tuple[dict[str, Encoded], Tokenizer]:
    """All prepared tasks by name, and the pruned tokenizer."""
    tokenizer = Tokenizer.from_file(str(work / "tokenizer.json"))

    def encode(texts: list[str]) -> list[list[int]]:
        return [
            encoding.ids[:256]
            for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        ]

    found = {}
    for row in json.loads((work / "tasks.json").read_text(encoding="utf-8")):
        task = Task(**row)
        task.relevant = [set(positions) for positions in task.relevant]
        rows = list(read_jsonl(work / f"candidates-{task.name}.jsonl"))
        found[task.name] = Encoded(
            task,
            encode(task.items),
            encode(task.queries),
            encode(task.negatives_differ) if task.negatives_differ is not None else None,
            {row["query"]: row["wrong"] for row in rows},
            {row["query"]: row["top"] for row in rows if row["top"]},
        )
    return found, tokenizer


def assemble(
    query: list[int], item: list[int], length: int, cls: int, sep: int
) -> tuple[list[int], int]:
    """Ids of `[CLS] query [SEP] item [SEP]` with the item cut to fit, and where token type 1
    begins."""
    query = query[:MAX_QUERY]
    item = item[: max(1, length - 3 - len(query))]
    return [cls, *query, sep, *item, sep], len(query) + 2


def score_pairs(
    model: nn.Module,
    pairs: list[tuple[list[int], int]],
    tokens: int,
    pool: ThreadPoolExecutor | None = None,
) -> Tensor:
    """Outputs for assembled pairs, in their order: (b,) or (b, c). Pairs of like length are
    computed together."""
    lengths = np.array([len(ids) for ids, _ in pairs])
    batches = list(token_batches(lengths, tokens))
    grad = torch.is_grad_enabled()

    def one(rows: np.ndarray) -> Tensor:
        ids = pad([pairs[row][0] for row in rows])
        mask = pad([[1] * len(pairs[row][0]) for row in rows])
        kinds = pad(
            [[0] * pairs[row][1] + [1] * (len(pairs[row][0]) - pairs[row][1]) for row in rows]
        )
        with (
            torch.set_grad_enabled(grad),
            torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False),
        ):
            return model(ids, mask, kinds).float()

    scores = list(map(one, batches) if pool is None else pool.map(one, batches))
    order = torch.from_numpy(np.concatenate(batches))
    return torch.cat(scores)[torch.argsort(order)]
