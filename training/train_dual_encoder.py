"""Train the bundled dual encoder: three layers of the teacher, distilled on all training texts.
Resumable."""

from __future__ import annotations

import argparse
import copy
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from common import SEED, WORKERS, Log, dense_top, ndcg, pad, teacher_folder, token_batches
from pairs import Encoded, load
from torch import Tensor
from torch.nn import functional
from transformers import BertModel

from crossknn.models.interaction import MeanPooled, keep_layers, prune_vocabulary

LAYERS = (0, 2, 5)
LENGTH = 96
GROUP = 48  # texts of one step, two workers with half each
CONTRASTIVE = 0.05
TEMPERATURE = 0.05


def build(work: Path, attention: str = "sdpa") -> MeanPooled:
    encoder = BertModel.from_pretrained(
        teacher_folder(), add_pooling_layer=False, attn_implementation=attention
    )
    prune_vocabulary(encoder, torch.from_numpy(np.load(work / "kept_ids.npy")))
    keep_layers(encoder, LAYERS)
    return MeanPooled(encoder).eval()


def lengths_of(name: str) -> int:
    """Tokens the teacher read, special ones included, so that the student reads the same."""
    return {"scifact": 200, "medquad": 64}.get(name, LENGTH)


class Texts:
    """All training texts as ids with their teacher vectors, and the (query, relevant item) pairs
    among them."""

    def __init__(self, tasks: dict[str, Encoded], work: Path, cls: int, sep: int) -> None:
        self.ids: list[list[int]] = []
        self.pairs: list[tuple[int, int]] = []
        vectors = []
        for name in ("docs", "docs-later", "docs-dev", "scifact", "medquad"):
            encoded, length = tasks[name], lengths_of(name)
            first_item = len(self.ids)
            if name == "docs-later":
                first_item = -1  # the teacher has not read its items, docs with the first sentence
            else:
                self.ids.extend([cls, *ids[: length - 2], sep] for ids in encoded.items)
                vectors.append(np.load(work / f"teacher-{name}-items.npy"))
            first_query = len(self.ids)
            order = sorted(encoded.wrong)
            self.ids.extend([cls, *encoded.queries[q][: length - 2], sep] for q in order)
            vectors.append(np.load(work / f"teacher-{name}-queries.npy"))
            for place, query in enumerate(order):
                if first_item >= 0 and not encoded.task.dev[query]:
                    self.pairs.append(
                        (first_query + place, first_item + min(encoded.task.relevant[query]))
                    )
        self.vectors = torch.from_numpy(np.concatenate(vectors))


def forward(model: MeanPooled, rows: list[list[int]]) -> Tensor:
    """Unit vectors of ragged id rows, in their order: (b, d)."""
    batches = list(token_batches(np.array([len(row) for row in rows]), 2048))
    outputs = []
    for batch in batches:
        ids, mask = pad([rows[r] for r in batch]), pad([[1] * len(rows[r]) for r in batch])
        with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
            outputs.append(model(ids, mask, torch.zeros_like(ids)).float())
    return torch.cat(outputs)[torch.argsort(torch.from_numpy(np.concatenate(batches)))]


def part_loss(model: MeanPooled, texts: Texts, pairs: np.ndarray, others: np.ndarray) -> Tensor:
    """Distance to the teacher's vectors plus a contrastive term of queries against items of the
    part."""
    chosen = np.concatenate([pairs[:, 0], pairs[:, 1], others])
    vectors = forward(model, [texts.ids[c] for c in chosen])
    target = texts.vectors[torch.from_numpy(chosen)].float()
    distance = (1 - (vectors * target).sum(-1)).mean()
    relation = (vectors @ vectors.T - target @ target.T).square().mean()
    scores = vectors[: len(pairs)] @ vectors[len(pairs) :].T / TEMPERATURE
    contrast = functional.cross_entropy(scores, torch.arange(len(pairs)))
    return distance + 10 * relation + CONTRASTIVE * contrast


@torch.no_grad()
def evaluate(
    model: MeanPooled, tasks: dict[str, Encoded], cls: int, sep: int, work: Path
) -> dict[str, float]:
    """nDCG@10 over whole dev collections, student and teacher (scifact: dev queries among train
    ones)."""
    result = {}
    for name in ("docs-dev", "scifact"):
        encoded, length = tasks[name], lengths_of(name)
        order = sorted(encoded.wrong)
        dev = [place for place, q in enumerate(order) if encoded.task.dev[q]][:200]
        rows = [[cls, *encoded.queries[order[d]][: length - 2], sep] for d in dev]
        rows += [[cls, *ids[: length - 2], sep] for ids in encoded.items]
        parts = np.array_split(np.arange(len(rows)), 8)
        with ThreadPoolExecutor(WORKERS) as pool:
            chunks = [[rows[r] for r in part] for part in parts]
            found = pool.map(lambda chunk: _no_grad(model, chunk), chunks)
        vectors = torch.cat(list(found)).numpy()
        teacher = (
            np.load(work / f"teacher-{name}-queries.npy")[dev],
            np.load(work / f"teacher-{name}-items.npy"),
        )
        for who, (q, items) in {
            "": (vectors[: len(dev)], vectors[len(dev) :]),
            ":teacher": teacher,
        }.items():
            top = dense_top(items.astype(np.float32), q.astype(np.float32), 10)
            values = [
                ndcg(t.tolist(), encoded.task.relevant[order[d]])
                for t, d in zip(top, dev, strict=True)
            ]
            result[name + who] = round(float(np.mean(values)), 4)
    return result


def _no_grad(model: MeanPooled, rows: list[list[int]]) -> Tensor:
    with torch.no_grad():
        return forward(model, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=520)
    parser.add_argument("--rate", type=float, default=2e-4)
    arguments = parser.parse_args()
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    folder: Path = arguments.work / "dual-encoder"
    folder.mkdir(parents=True, exist_ok=True)
    log = Log(folder / "train.jsonl")
    tasks, tokenizer = load(arguments.work)
    cls, sep = tokenizer.token_to_id("[CLS]"), tokenizer.token_to_id("[SEP]")
    texts = Texts(tasks, arguments.work, cls, sep)
    log(stage="texts", texts=len(texts.ids), pairs=len(texts.pairs))
    model = build(arguments.work)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / 40, max(0.0, (arguments.steps - step) / arguments.steps)),
    )
    last, start = folder / "last.pt", 0
    if last.exists():
        state = torch.load(last, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
        start = state["step"]
    twins = []
    for _ in range(WORKERS):
        twin = copy.deepcopy(model)
        for own, shared in zip(twin.parameters(), model.parameters(), strict=True):
            own.data = shared.data
        twins.append(twin)
    pairs = np.array(texts.pairs)
    clock, recent = time.time(), []
    for step in range(start, arguments.steps):
        generator = np.random.default_rng([SEED, step])
        part_pairs = pairs[generator.integers(0, len(pairs), WORKERS * GROUP // 2)].reshape(
            WORKERS, -1, 2
        )
        part_others = generator.integers(0, len(texts.ids), WORKERS * GROUP // 2).reshape(
            WORKERS, -1
        )

        def work(
            place: int, pairs: np.ndarray = part_pairs, others: np.ndarray = part_others
        ) -> float:
            twins[place].zero_grad(set_to_none=True)
            loss = part_loss(twins[place], texts, pairs[place], others[place])
            loss.backward()
            return float(loss.detach())

        with ThreadPoolExecutor(WORKERS) as pool:
            recent.extend(pool.map(work, range(WORKERS)))
        for group in zip(model.parameters(), *(twin.parameters() for twin in twins), strict=True):
            group[0].grad = torch.stack([twin.grad for twin in group[1:]]).mean(0)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        done = step + 1
        if done % 20 == 0:
            log(
                step=done,
                loss=round(float(np.mean(recent)), 4),
                seconds_per_step=round((time.time() - clock) / (done - start), 2),
            )
            recent.clear()
        if done % 260 == 0 or done == arguments.steps:
            log(stage="dev", step=done, **evaluate(model, tasks, cls, sep, arguments.work))
        if done % 100 == 0 or done == arguments.steps:
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "schedule": schedule.state_dict(),
            }
            torch.save({**state, "step": done}, folder / "last.part")
            (folder / "last.part").replace(last)
    torch.save(model.state_dict(), folder / "best.pt")
    log(stage="done")


if __name__ == "__main__":
    main()
