"""Train the bundled cross-encoder. Resumes from its last checkpoint; the same seed gives the same
order of examples."""

from __future__ import annotations

import argparse
import copy
import queue
import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from common import SEED, WORKERS, Log, ndcg, teacher_folder
from pairs import LENGTH, Encoded, assemble, load, score_pairs
from torch import Tensor
from torch.nn import functional
from transformers import BertModel

from crossknn.data.docstrings import first_sentence, is_held_out
from crossknn.models.interaction import CHANNELS, InteractionCrossEncoder, prune_vocabulary

MIXTURE = {"docs": 7_000, "docs-later": 2_600, "scifact": 1_300, "medquad": 1_000, "wordnet": 2_000}
NEGATIVES = 6
STEP = 8
DEV = {"docs-dev": (100, 20), "scifact": (80, 20), "medquad": (30, 15)}  # queries, candidates
Example = tuple[str, int, int]  # task, query, seed


def build(
    work: Path, tokenizer_ids: tuple[int, ...], attention: str = "sdpa"
) -> InteractionCrossEncoder:
    encoder = BertModel.from_pretrained(
        teacher_folder(), add_pooling_layer=False, attn_implementation=attention
    )
    prune_vocabulary(encoder, torch.from_numpy(np.load(work / "kept_ids.npy")))
    kinds = encoder.embeddings.token_type_embeddings.weight.data
    kinds[1] = kinds[0]  # the teacher was trained with type 0 only
    model = InteractionCrossEncoder(
        encoder, tokenizer_ids, torch.from_numpy(np.load(work / "idf.npy"))
    )
    encoder.embeddings.word_embeddings.requires_grad_(False)  # the texts are too few to move them
    return model.eval()  # no dropout: one short pass


def plan(tasks: dict[str, Encoded], scale: float) -> list[list[Example]]:
    """Steps of 8 examples in a fixed random order."""
    generator = random.Random(SEED)
    examples: list[Example] = []
    for name, count in MIXTURE.items():
        task = tasks[name]
        queries = [
            q for q in task.wrong if not task.task.dev[q] and len(task.wrong[q]) >= NEGATIVES
        ]
        if name == "docs":  # prepared texts may be older than the splitting rule
            queries = [
                q for q in queries if not is_held_out(first_sentence(task.task.queries[q])[0])
            ]
        wanted = int(count * scale)
        chosen: list[int] = []
        while len(chosen) < wanted:
            chosen.extend(generator.sample(queries, min(len(queries), wanted - len(chosen))))
        examples.extend((name, q, generator.randrange(2**31)) for q in chosen)
    generator.shuffle(examples)
    return [examples[start : start + STEP] for start in range(0, len(examples), STEP)]


def example_pairs(
    tasks: dict[str, Encoded], example: Example, cls: int, sep: int
) -> list[tuple[list[int], int]]:
    """The positive's pair, then 6 negatives': three of the first ten wrong candidates, three of the
    others."""
    name, query, seed = example
    task, generator = tasks[name], random.Random(seed)
    wrong = task.wrong[query]
    hard = generator.sample(wrong[:10], min(3, len(wrong[:10])))
    rest = [item for item in wrong if item not in hard]
    negatives = hard + generator.sample(rest, min(NEGATIVES - len(hard), len(rest)))
    positive = generator.choice(sorted(task.task.relevant[query]))
    right = task.positives[query] if task.positives is not None else task.items[positive]
    ids = task.queries[query]
    return [
        assemble(ids, item, LENGTH[name], cls, sep)
        for item in (right, *(task.items[n] for n in negatives))
    ]


@torch.no_grad()
def evaluate(
    model: torch.nn.Module, tasks: dict[str, Encoded], cls: int, sep: int
) -> dict[str, float]:
    """nDCG@10 of reranking the hybrid's first candidates, per dev task."""
    result = {}
    for name, (n_queries, count) in DEV.items():
        task = tasks[name]
        pairs, rows = [], []
        for query in sorted(task.top)[:: max(1, len(task.top) // n_queries)][:n_queries]:
            candidates = task.top[query][:count]
            rows.append((query, candidates))
            pairs.extend(
                assemble(task.queries[query], task.items[c], LENGTH[name], cls, sep)
                for c in candidates
            )
        with ThreadPoolExecutor(WORKERS) as pool:
            scores = score_pairs(model, pairs, 2048, pool).numpy()
        columns = (
            {"": scores}
            if scores.ndim == 1
            else {f":{c}": scores[:, i] for i, c in enumerate(CHANNELS)}
        )
        for suffix, values in columns.items():
            found, start = [], 0
            for query, candidates in rows:
                order = np.argsort(-values[start : start + len(candidates)], kind="stable")
                found.append(ndcg([candidates[o] for o in order], task.task.relevant[query]))
                start += len(candidates)
            result[name + suffix] = round(float(np.mean(found)), 4)
        result[f"{name}:first"] = round(
            float(np.mean([ndcg(c, task.task.relevant[q]) for q, c in rows])), 4
        )
        if scores.ndim == 1:
            result[f"{name}:spread"] = round(float(scores.std()), 2)
    return result


class Channels(torch.nn.Module):
    """The channels alone, for fitting their mixture."""

    def __init__(self, model: InteractionCrossEncoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor, kinds: Tensor) -> Tensor:
        return self.model.channels(self.model.states(ids, mask, kinds), ids, mask, kinds)


def fit_mixture(
    model: InteractionCrossEncoder,
    tasks: dict[str, Encoded],
    steps: list[list[Example]],
    cls: int,
    sep: int,
) -> float:
    """Start the mixture where it separates 640 training examples best; the encoder stays as it is.
    Returns the loss."""
    examples = [example for step in steps[: 640 // STEP] for example in step]
    with torch.no_grad(), ThreadPoolExecutor(WORKERS) as pool:
        pairs = [pair for example in examples for pair in example_pairs(tasks, example, cls, sep)]
        values = score_pairs(Channels(model), pairs, 2048, pool)
    values = values.reshape(len(examples), NEGATIVES + 1, len(CHANNELS))
    weights = model.mix.data.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([weights], max_iter=200)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (
            functional.cross_entropy(values @ weights, torch.zeros(len(examples), dtype=torch.long))
            + 1e-4 * weights.square().sum()
        )
        loss.backward()
        return loss

    loss = float(optimizer.step(closure))
    model.mix.data.copy_(weights.data)
    return loss


def shared_copy(model: InteractionCrossEncoder) -> InteractionCrossEncoder:
    """A copy with the same parameter storage and its own gradients."""
    twin = copy.deepcopy(model)
    for own, shared in zip(twin.parameters(), model.parameters(), strict=True):
        own.data = shared.data
    return twin


def gradients(
    model: InteractionCrossEncoder,
    replicas: list[InteractionCrossEncoder],
    tasks: dict[str, Encoded],
    step: list[Example],
    cls: int,
    sep: int,
) -> tuple[float, int]:
    """Put the gradient of the mean softmax cross-entropy of one step into `model`; returns the loss
    and the tokens read.

    Two examples at a time are handed to whichever worker is free, so the rounding of the sum may
    differ between runs.
    """
    rows = sorted(
        (example_pairs(tasks, example, cls, sep) for example in step),
        key=lambda pairs: -max(len(ids) for ids, _ in pairs),
    )
    size = 2
    todo: queue.SimpleQueue[list[list[tuple[list[int], int]]]] = queue.SimpleQueue()
    for start in range(0, len(rows), size):
        todo.put(rows[start : start + size])

    def work(twin: InteractionCrossEncoder) -> float:
        total = 0.0
        twin.zero_grad(set_to_none=True)
        while True:
            try:
                part = todo.get_nowait()
            except queue.Empty:
                return total
            scores = score_pairs(twin, [pair for pairs in part for pair in pairs], 2048).reshape(
                len(part), -1
            )
            loss = functional.cross_entropy(
                scores, torch.zeros(len(part), dtype=torch.long), reduction="sum"
            ) / len(step)
            loss.backward()
            total += float(loss.detach())

    with ThreadPoolExecutor(len(replicas)) as pool:
        loss = sum(pool.map(work, replicas))
    for parameters in zip(
        model.parameters(), *(twin.parameters() for twin in replicas), strict=True
    ):
        grads = [twin.grad for twin in parameters[1:] if twin.grad is not None]
        if grads:
            parameters[0].grad = torch.stack(grads).sum(0) if len(grads) > 1 else grads[0]
    return loss, sum(len(ids) for pairs in rows for ids, _ in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the examples to use")
    parser.add_argument("--rate", type=float, default=5e-5)
    parser.add_argument("--head-rate", type=float, default=2e-3)
    parser.add_argument("--evaluations", type=int, default=4)
    parser.add_argument(
        "--steps", type=int, default=1000, help="stop there; the rates fall to zero"
    )
    parser.add_argument(
        "--init-only", action="store_true", help="measure and save the untrained model"
    )
    arguments = parser.parse_args()
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    folder: Path = arguments.work / "cross-encoder"
    folder.mkdir(parents=True, exist_ok=True)
    log = Log(folder / "train.jsonl")
    tasks, tokenizer = load(arguments.work)
    cls, sep, padding = (tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]", "[PAD]"))
    model = build(arguments.work, (cls, sep, padding))
    steps = plan(tasks, arguments.scale)
    steps = steps[: arguments.steps]
    log(stage="plan", steps=len(steps))
    last = folder / "last.pt"
    start, best = 0, -1.0
    head = [p for name, p in model.named_parameters() if not name.startswith("encoder.")]
    body = [p for name, p in model.named_parameters() if name.startswith("encoder.")]
    optimizer = torch.optim.AdamW(
        [
            {"params": body, "lr": arguments.rate},
            {"params": head, "lr": arguments.head_rate, "weight_decay": 0.0},
        ],
        weight_decay=0.01,
    )
    warm = max(1, len(steps) // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / warm, max(0.0, (len(steps) - step) / (len(steps) - warm))),
    )
    if last.exists() and not arguments.init_only:
        state = torch.load(last, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
        start, best = state["step"], state["best"]
        log(stage="resumed", step=start)
    else:
        if arguments.init_only:
            log(stage="channels", **evaluate(Channels(model), tasks, cls, sep))
        loss = fit_mixture(model, tasks, steps, cls, sep)
        measured = evaluate(model, tasks, cls, sep)
        log(
            stage="init",
            loss=round(loss, 4),
            mix=[round(v, 3) for v in model.mix.tolist()],
            **measured,
        )
        torch.save(model.state_dict(), folder / "init.pt")
        if arguments.init_only:
            return
    every = max(1, len(steps) // arguments.evaluations)
    recent: list[float] = []
    clock, tokens = time.time(), 0
    replicas = [shared_copy(model) for _ in range(WORKERS)]
    for step in range(start, len(steps)):
        optimizer.zero_grad(set_to_none=True)
        loss, count = gradients(model, replicas, tasks, steps[step], cls, sep)
        tokens += count
        torch.nn.utils.clip_grad_norm_(body, 1.0)
        optimizer.step()
        schedule.step()
        recent.append(loss)
        done = step + 1
        if done % 20 == 0:
            log(
                step=done,
                loss=round(float(np.mean(recent)), 4),
                tokens_per_second=int(tokens / (time.time() - clock)),
            )
            recent.clear()
        if done % every == 0 or done == len(steps):
            measured = evaluate(model, tasks, cls, sep)
            value = 2 * measured["docs-dev"] + measured["scifact"] + 0.5 * measured["medquad"]
            log(
                stage="dev",
                step=done,
                value=round(value, 4),
                mix=[round(v, 3) for v in model.mix.tolist()],
                k1=round(float(model.k1), 3),
                b=round(float(torch.sigmoid(model.b)), 3),
                **measured,
            )
            if value > best:
                best = value
                torch.save(model.state_dict(), folder / "best.pt")
        if done % 100 == 0 or done == len(steps):
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "schedule": schedule.state_dict(),
            }
            torch.save({**state, "step": done, "best": best}, folder / "last.part")
            (folder / "last.part").replace(last)
    log(stage="done")


if __name__ == "__main__":
    main()
