"""Train the cross-encoder of six layers and the one of three on one GPU, in under ten minutes.

    python train.py WORK OUT [--seconds 520]

WORK has what prepare.py wrote. OUT gets the weights that were trained, in float16 files of less than
16 MiB each, and log.jsonl; weights.py makes model folders of them. All texts and weights are on the
GPU, and a batch is gathered there.

1. Each query gets items that are near it by the dual encoder and by BM25, within its source.
2. Six layers: softmax over one right item and 15 wrong ones, with the score 0 as a further candidate,
   and the divergence from the dual encoder's scores beside it.
3. Three layers learn the scores of the mean of the start and the six layers (`SHARE`).

Axes: b pairs or texts, t tokens, q queries, c candidates of a query.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from crossknn_train.models.backbone import in_heads, join_heads, layers_of
from crossknn_train.models.cross_encoder import CrossEncoderConfig, CrossEncoderModel
from crossknn_train.models.gated import FASTER

SEED = 13
LENGTHS = 64, 192
"""Most tokens of a query and of an item, [CLS] and [SEP] included; 256 together."""
NEAR, MATCHING, CHANCE = 6, 5, 4
"""Wrong candidates of a query: near by the dual encoder, by BM25, and by chance from its source."""
POOL, RIGHT = 48, 6
ALIKE = 0.9
"""An item whose cosine to the right one is higher is no wrong candidate: it may be right as well."""
TEACHER = 0.2
SHARES = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
KEPT = (0, 2, 5)
RATE = 1e-4
TOKENS = 300_000
"""Most tokens of a batch."""
STAGES = 0.66, 0.24
"""Shares of the time that six layers and three layers take."""


class Texts:
    """Token ids of many texts in one row, on the device."""

    def __init__(self, tokenizer: Any, texts: list[str], most: int, device: str) -> None:
        first, last = (tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]"))
        encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        rows = [np.array([first, *e.ids[: most - 2], last], dtype=np.int32) for e in encoded]
        self.sizes = torch.tensor([len(row) for row in rows])  # not on the device: no waiting
        self.lengths = self.sizes.to(device)
        self.starts = self.lengths.cumsum(0) - self.lengths
        self.ids = torch.from_numpy(np.concatenate(rows)).to(device)

    def __getitem__(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Ids (b, t) and mask (b, t) of texts (b,), named by a tensor on the CPU."""
        width = int(self.sizes[rows].max())
        rows = rows.to(self.ids.device, non_blocking=True)
        lengths = self.lengths[rows]
        place = torch.arange(width, device=rows.device)
        mask = place < lengths[:, None]
        at = (self.starts[rows][:, None] + place).clamp(max=len(self.ids) - 1)
        return self.ids[at].long() * mask, mask


class Fast(nn.Module):
    """The computations of `GatedReading` and the head, for a batch whose two texts are padded
    apart, without arrays of (t, t) in the layers."""

    def __init__(self, model: CrossEncoderModel) -> None:
        super().__init__()
        self.model = model

    def states(self, *texts: tuple[Tensor, Tensor]) -> Tensor:
        """The last layer's states (b, t, d) of one text, or of two side by side."""
        encoder, gates = self.model.encoder, self.model.head.reading.gates * FASTER
        states = torch.cat([_embedded(encoder, ids) for ids, _ in texts], dim=1)
        sizes = [ids.shape[1] for ids, _ in texts]
        for layer, gate in zip(layers_of(encoder), gates, strict=True):
            attention = layer.attention.self
            heads = attention.num_attention_heads
            read = [
                in_heads(linear(states), heads).split(sizes, dim=2)
                for linear in (attention.query, attention.key, attention.value)
            ]
            masks = [mask for _, mask in texts]
            parts = [*zip(*read, masks, strict=True)]  # (query, key, value, mask) of each text
            attended = [_attend(*part) for part in parts]
            if len(parts) == 2:
                others = _attend(parts[0][0], *parts[1][1:]), _attend(parts[1][0], *parts[0][1:])
                gate = gate[:, None, None].to(states.dtype)
                attended = [
                    a + (gate * b).to(a.dtype) for a, b in zip(attended, others, strict=True)
                ]
            result = layer.attention.output(join_heads(torch.cat(attended, dim=2)), states)
            states = layer.output(layer.intermediate(result), result)
        return states.float()

    def forward(self, query: tuple[Tensor, Tensor], item: tuple[Tensor, Tensor]) -> Tensor:
        """Scores (b,) of pairs."""
        states = self.states(query, item)
        ids, mask = (torch.cat(parts, dim=1) for parts in zip(query, item, strict=True))
        # Without the padding between the texts, so that the head's windows begin where they will.
        begin, size = query[1].sum(1, keepdim=True), mask.sum(1, keepdim=True)
        place = torch.arange(ids.shape[1], device=ids.device).expand(len(ids), -1)
        at = torch.where(place < begin, place, place - begin + query[0].shape[1])
        at = at.clamp(max=ids.shape[1] - 1)
        kept = place < size
        states = states.gather(1, at[:, :, None].expand(-1, -1, states.shape[2]))
        kinds = ((place >= begin) & kept).long()
        scores: Tensor = self.model.head(states, ids.gather(1, at) * kept, kept.long(), kinds)
        return scores

    def vectors(self, texts: Texts, at_once: int = 2_048) -> Tensor:
        """Unit mean states of all texts, by the dual encoder."""
        order, device = texts.sizes.argsort(), texts.ids.device
        out = torch.empty(len(order), self.model.encoder.config.hidden_size, device=device)
        with torch.inference_mode(), computing(device):
            for rows in order.split(at_once):
                ids, mask = texts[rows]
                states = self.states((ids, mask))
                means = (states * mask[:, :, None]).sum(1)
                out[rows.to(device)] = functional.normalize(means, dim=-1)
        return out


def _embedded(encoder: Any, ids: Tensor) -> Tensor:
    place = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    return encoder.embeddings(
        input_ids=ids, token_type_ids=torch.zeros_like(ids), position_ids=place
    )


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    seen = mask[:, None, None, :].expand(-1, query.shape[1], query.shape[2], -1)
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=seen)


def computing(device: Any) -> Any:
    return torch.autocast(torch.device(device).type, dtype=torch.bfloat16)


class Pairs:
    """All queries and items of all sources, with the wrong candidates of each query."""

    def __init__(self, path: Path, tokenizer: Any, device: str) -> None:
        queries, texts, of = [], [], []
        right, wrong = [], []
        self.ranges, self.names = [], []
        with lzma.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                source = json.loads(line)
                first = len(texts)
                self.names.append(source["source"])
                texts += source["texts"]
                self.ranges.append((first, len(texts), len(queries)))
                for query, good, bad in source["queries"]:
                    queries.append(query)
                    right.append([first + place for place in good[:RIGHT]])
                    wrong.append([first + place for place in bad[:CHANCE]])
                    of.append(len(self.names) - 1)
        say(queries=len(queries), texts=len(texts), sources=len(self.names))
        self.device = device
        self.right, self.wrong = _square(right, RIGHT, device), _square(wrong, CHANCE, device)
        ranges = torch.tensor(self.ranges, device=device)[torch.tensor(of, device=device)]
        self.first, self.size = ranges[:, 0], ranges[:, 1] - ranges[:, 0]
        shuffled = torch.randperm(len(queries))
        self.held_out, self.trained = shuffled.tensor_split([min(1_000, len(queries) // 10)])
        self.queries = Texts(tokenizer, queries, LENGTHS[0], device)
        self.texts = Texts(tokenizer, texts, LENGTHS[1], device)
        say(tokens=len(self.texts.ids) + len(self.queries.ids))

    def mine(self, model: Fast) -> None:
        """Find the nearest items of each query by both retrievers, without its right ones."""
        device, count = self.device, len(self.right)
        self.query_vectors, self.item_vectors = (
            model.vectors(t) for t in (self.queries, self.texts)
        )
        say(encoded=True)
        self.near = torch.zeros(count, POOL, dtype=torch.long, device=device)
        self.matching = torch.zeros_like(self.near)
        ends = [after for *_, after in self.ranges[1:]] + [count]
        for (first, last, start), end in zip(self.ranges, ends, strict=True):
            if end == start:
                continue
            own = self.item_vectors[first:last]
            words = Words(self.texts, first, last)
            for rows in torch.arange(start, end, device=device).split(512):
                banned = own @ self.item_vectors[self.right[rows, 0]].T > ALIKE  # (n, q)
                right = self.right[rows]
                right = torch.where(right < 0, right[:, :1], right) - first
                banned.scatter_(0, right.T, True)
                for pool, scores in (
                    (self.near, own @ self.query_vectors[rows].T),
                    (self.matching, words.scores(self.queries, rows.cpu())),
                ):
                    found = scores.masked_fill(banned, -1.0).topk(min(POOL, last - first), dim=0)
                    # Too few items: chance fills up.
                    chance = torch.randint(last - first, (POOL, len(rows)), device=device)
                    chance[: len(found.indices)] = torch.where(
                        found.values > -1, found.indices, chance[: len(found.indices)]
                    )
                    pool[rows] = first + chance.T

    def draw(self) -> Tensor:
        """Candidates (q, 1 + wrong ones) of all queries; -1 where one is there twice, or right."""
        count, device = len(self.right), self.device
        drawn = torch.rand(self.right.shape, device=device).masked_fill(self.right < 0, -1.0)
        one = self.right.gather(1, drawn.argmax(1, keepdim=True))

        def some(pool: Tensor, number: int) -> Tensor:
            order = torch.rand(pool.shape, device=device).argsort(1)[:, :number]
            return pool.gather(1, order)

        chance = torch.rand(count, CHANCE, device=device) * self.size[:, None]
        chance = self.first[:, None] + chance.long()
        chance = torch.where(self.wrong < 0, chance, self.wrong)
        lists = torch.cat(
            [one, some(self.near, NEAR), some(self.matching, MATCHING), chance], dim=1
        )
        twice = torch.tril(lists[:, :, None] == lists[:, None, :], diagonal=-1).any(2)
        also = (lists[:, :, None] == self.right[:, None, :]).any(2)
        also[:, 0] = False
        return lists.masked_fill(twice | also, -1).cpu()

    def batches(self, lists: Tensor, rng: np.random.Generator) -> Iterator[Tensor]:
        """Rows (q,) of batches, of queries with about equal lengths."""
        sizes = self.queries.sizes * lists.shape[1] + self.texts.sizes[lists.clamp(min=0)].sum(1)
        lengths, made = sizes.numpy(), []
        order = rng.permutation(self.trained.numpy())
        for part in np.array_split(order, max(1, len(order) // 30_000)):
            part = part[np.argsort(lengths[part], kind="stable")]
            ends = np.cumsum(lengths[part]) // TOKENS
            made += np.split(part, np.flatnonzero(np.diff(ends)) + 1)
        for place in rng.permutation(len(made)):
            yield torch.from_numpy(made[place])

    def scores(self, model: Fast, rows: Tensor, lists: Tensor) -> Tensor:
        """Scores (q, c) on the device of rows and candidates on the CPU, -inf where there is no
        candidate. Pairs of about equal lengths are computed together."""
        queries = rows.repeat_interleave(lists.shape[1])
        items = lists.clamp(min=0).flatten()
        order = self.texts.sizes[items].argsort()
        parts = [model(self.queries[queries[p]], self.texts[items[p]]) for p in order.chunk(4)]
        scores = torch.cat(parts).float()[order.argsort().to(self.device)].view(lists.shape)
        return scores.masked_fill(lists.to(self.device) < 0, float("-inf"))

    def taught(self, rows: Tensor, lists: Tensor) -> Tensor:
        """20 times the dual encoder's cosines (q, c), -inf where there is no candidate."""
        items = self.item_vectors[lists.clamp(min=0)]
        cosines = (items * self.query_vectors[rows][:, None]).sum(-1)
        return (20.0 * cosines).masked_fill(lists < 0, float("-inf"))


def _square(rows: list[list[int]], most: int, device: str) -> Tensor:
    """Rows of different lengths as (q, most), filled with -1."""
    filled = np.full((len(rows), most), -1, dtype=np.int64)
    for place, row in enumerate(rows):
        filled[place, : len(row)] = row
    return torch.from_numpy(filled).to(device)


class Words:
    """BM25 of the items of one source as a product of matrices (k1 1.2, b 0.75)."""

    def __init__(self, texts: Texts, first: int, last: int) -> None:
        rows = torch.arange(first, last)
        ids, mask = texts[rows]
        size = 30_522
        counts = torch.zeros(len(rows), size, device=ids.device)
        counts.scatter_add_(1, ids, mask.float())
        counts[:, [0, 101, 102]] = 0
        found = (counts > 0).sum(0)
        idf = torch.log1p((len(rows) - found + 0.5) / (found + 0.5))
        length = counts.sum(1, keepdim=True)
        norm = 1.2 * (0.25 + 0.75 * length / length.mean())
        self.table = (idf * counts / (counts + norm)).half()

    def scores(self, queries: Texts, rows: Tensor) -> Tensor:
        ids, mask = queries[rows]
        asked = torch.zeros(len(rows), self.table.shape[1], device=ids.device)
        asked.scatter_(1, ids, mask.float())
        return (self.table @ asked.T.to(self.table.dtype)).float()


class Dev:
    """Candidates of dev queries of other domains, and how good their order is."""

    def __init__(self, work: Path, tokenizer: Any, device: str) -> None:
        rows = []
        for path in sorted(work.glob("dev-*.jsonl.xz")):
            with lzma.open(path, "rt", encoding="utf-8") as lines:
                rows += [json.loads(line) for line in lines]
        self.rows = rows
        self.queries = Texts(tokenizer, [row["query"] for row in rows], LENGTHS[0], device)
        self.texts = Texts(tokenizer, [t for row in rows for t in row["texts"]], LENGTHS[1], device)
        sizes = [len(row["texts"]) for row in rows]
        self.each = torch.arange(len(rows)).repeat_interleave(torch.tensor(sizes))
        self.splits = np.cumsum(sizes)[:-1]

    def measure(self, model: Fast) -> dict[str, float]:
        """nDCG@10 (%) of each domain, and the mean over domains."""
        device = self.texts.ids.device
        found = torch.empty(len(self.each), device=device)
        with torch.inference_mode(), computing(device):
            lengths = self.queries.sizes[self.each] + self.texts.sizes
            for rows in lengths.argsort().split(1_024):
                found[rows.to(found.device)] = model(
                    self.queries[self.each[rows]], self.texts[rows]
                ).float()
        values: dict[str, list[float]] = {}
        scores = np.split(found.cpu().numpy(), self.splits)
        for row, score in zip(self.rows, scores, strict=True):
            grades = np.array(row["grades"], dtype=float)[np.argsort(-score, kind="stable")][:10]
            gain = (grades / np.log2(np.arange(2, len(grades) + 2))).sum()
            values.setdefault(row["domain"], []).append(100 * gain / row["ideal"])
        table = {name: round(float(np.mean(each)), 1) for name, each in values.items()}
        chosen = [table[name] for name in table if name.endswith(":dev")]
        return {"mean": round(float(np.mean(chosen)), 2)} | table


def learn(
    model: Fast,
    pairs: Pairs,
    loss: Callable[[Tensor, Tensor, Tensor], Tensor],
    seconds: float,
    watch: Callable[[int], None],
    epochs: int,
) -> None:
    """Train until `seconds` are over or `epochs` are done, with a rate that falls to zero then."""
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATE, weight_decay=0.01, fused=pairs.device != "cpu")
    rng, start, step = np.random.default_rng(SEED), time.monotonic(), 0
    part, queries, recent = 0, 0, []
    for epoch in range(epochs):
        lists = pairs.draw()
        for rows in pairs.batches(lists, rng):
            queries += len(rows)
            # Time decides, or the number of epochs, whichever ends first.
            spent = (time.monotonic() - start) / seconds
            done = max(spent, queries / (epochs * len(pairs.trained)))
            if done >= 1 and step:
                break
            rate = min(1.0, (step + 1) / 100) * (1 - done)
            for group in optimizer.param_groups:
                group["lr"] = RATE * max(rate, 0.01)
            with computing(pairs.device):
                scores = pairs.scores(model, rows, lists[rows])
            value = loss(scores, rows, lists[rows])
            value.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            recent.append(value.detach())
            if step % 100 == 0 or step == 10:
                mean = float(torch.stack(recent).mean())
                pace = round(queries * lists.shape[1] / (time.monotonic() - start))
                say(step=step, done=round(done, 3), epoch=epoch, loss=round(mean, 4), pairs_s=pace)
                recent = []
            if int(done * 4) > part:
                part = int(done * 4)
                watch(step)
        else:
            continue
        break
    say(steps=step, queries=queries, seconds=round(time.monotonic() - start))


def labelled(pairs: Pairs) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Softmax with the right item first, and 0 as a further candidate; without the right item, 0 is
    right. Beside it the divergence from the dual encoder."""

    def loss(scores: Tensor, rows: Tensor, lists: Tensor) -> Tensor:
        first = scores.new_zeros(len(rows), dtype=torch.long)
        more = torch.cat([scores, scores.new_zeros(len(rows), 1)], dim=1)
        none = functional.cross_entropy(more[:, 1:], first + more.shape[1] - 2)
        lists = lists.to(scores.device)
        taught = pairs.taught(rows.to(scores.device), lists).log_softmax(1)
        own = scores.log_softmax(1)
        apart = (taught.exp() * torch.where(lists < 0, 0.0, taught - own)).sum(1).mean()
        return functional.cross_entropy(more, first) + none / 2 + TEACHER * apart

    return loss


def distilled(pairs: Pairs, teacher: Fast) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Mean squared difference of the scores, of their differences within a query twice."""

    def loss(scores: Tensor, rows: Tensor, lists: Tensor) -> Tensor:
        with torch.inference_mode(), computing(pairs.device):
            taught = pairs.scores(teacher, rows, lists)
        present = (lists >= 0).to(scores.device)
        apart = torch.where(present, scores.where(present, 0.0) - taught.clone(), 0.0)
        mean = apart.sum(1, keepdim=True) / present.sum(1, keepdim=True)
        within = torch.where(present, apart - mean, 0.0)
        return (apart.square() + 2 * within.square()).sum() / present.sum()

    return loss


def opened(work: Path, device: str) -> CrossEncoderModel:
    """The model to start from, of the arrays that prepare.py wrote."""
    config = json.loads((work / "start" / "config.json").read_text())
    from tokenizers import Tokenizer
    from transformers import BertConfig, BertModel

    encoder = BertModel(BertConfig(**config), add_pooling_layer=False).float()
    tokenizer = Tokenizer.from_file(str(work / "start" / "tokenizer.json"))
    model = CrossEncoderModel([encoder], tokenizer, CrossEncoderConfig(head="interaction"))
    state = model.state_dict()
    with np.load(work / "start" / "weights.npz") as arrays:
        scales = {n.removesuffix(" scale"): arrays[n] for n in arrays if n.endswith(" scale")}
        given = {
            name: torch.from_numpy(np.asarray(arrays[name] * scales.get(name, 1), np.float32))
            for name in arrays
            if not name.endswith(" scale")
        }
    model.load_state_dict({name: given.get(name, value) for name, value in state.items()})
    lacking = [n for n in state if n not in given and "position_ids" not in n]
    assert not lacking, lacking
    for part in ("word", "position", "token_type"):
        getattr(model.encoder.embeddings, f"{part}_embeddings").requires_grad_(False)
    return model.to(device).eval()  # no dropout, in training either


def calibrate(model: Fast, pairs: Pairs) -> None:
    """Scale and shift the scores so that the logistic function of a score is the chance that an item
    is right, among the right and the nearest items of queries that did not train."""
    lists = torch.cat([pairs.right[:, :1], pairs.near[:, :24]], dim=1).cpu()
    with torch.inference_mode(), computing(pairs.device):
        parts = pairs.held_out.split(64)
        scores = [pairs.scores(model, rows, lists[rows]).double() for rows in parts]
    values = torch.cat(scores).clone()
    right = torch.zeros_like(values)
    right[:, 0] = 1
    line = torch.tensor([1.0, 0.0], dtype=torch.double, device=values.device, requires_grad=True)
    optimizer = torch.optim.LBFGS([line], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = functional.binary_cross_entropy_with_logits(line[0] * values + line[1], right)
        value.backward()
        return value

    optimizer.step(loss)
    slope, shift = line.tolist()
    first = float((values.argmax(1) == 0).double().mean())
    over = right[line[0] * values + line[1] > 0].mean().item()
    say(slope=round(slope, 3), shift=round(shift, 3), accuracy=round(first, 4), over_zero=over)
    head = model.model.head
    with torch.no_grad():
        for part in (head.cosine, head.mix, head.first.weight, head.bias):
            part.mul_(slope)
        head.bias.add_(shift / FASTER)


def shallow(model: CrossEncoderModel, work: Path, device: str) -> CrossEncoderModel:
    """A copy with the layers `KEPT`."""
    small = opened(work, device)
    small.load_state_dict(model.state_dict())
    layers, reading = layers_of(small.encoder), small.head.reading
    small.encoder.encoder.layer = nn.ModuleList(layers[depth] for depth in KEPT)
    small.encoder.config.num_hidden_layers = len(KEPT)
    reading.gates = nn.Parameter(reading.gates[list(KEPT)].detach().clone())
    return small


def mixed(start: dict[str, Tensor], trained: dict[str, Tensor], share: float) -> dict[str, Tensor]:
    return {
        name: start[name].lerp(value, share) if value.is_floating_point() else value
        for name, value in trained.items()
    }


def save(out: Path, name: str, state: dict[str, Tensor]) -> None:
    """Write all weights but the words', as float16, in files of at most 15 MiB."""
    part, size, number = {}, 0, 1

    def write() -> None:
        np.savez(out / f"{name}-{number}.npz", **part)

    for key, value in state.items():
        if not value.is_floating_point() or key.endswith("word_embeddings.weight"):
            continue
        array = value.cpu().numpy()
        array = array.astype(np.float32 if array.size < 50_000 else np.float16)
        if size + array.nbytes > 15 * 2**20:
            write()
            part, size, number = {}, 0, number + 1
        part[key] = array
        size += array.nbytes
    write()


BEGIN = time.monotonic()
LOG: Any = None


def say(**values: Any) -> None:
    line = json.dumps({"t": round(time.monotonic() - BEGIN, 1)} | values)
    print(line, flush=True)
    if LOG is not None:
        LOG.write(line + "\n")
        LOG.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=520)
    parser.add_argument("--epochs", type=int, default=3)
    given = parser.parse_args()
    global LOG
    given.out.mkdir(parents=True, exist_ok=True)
    LOG = (given.out / "log.jsonl").open("w")
    torch.manual_seed(SEED)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cuda.enable_cudnn_sdp(False)  # it plans anew for each shape
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = opened(given.work, device)
    tokenizer = model.tokenizer.fast
    fast = Fast(model)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    say(device=torch.cuda.get_device_name() if device == "cuda" else device)
    dev = Dev(given.work, tokenizer, device)
    say(share=0, **dev.measure(fast))
    pairs = Pairs(given.work / "pairs.jsonl.xz", tokenizer, device)
    pairs.mine(fast)
    say(mined=True)

    left = given.seconds - (time.monotonic() - BEGIN)
    learn(
        fast, pairs, labelled(pairs), left * STAGES[0],
        lambda step: say(step=step, **dev.measure(fast)), given.epochs,
    )  # fmt: skip
    trained = {name: value.clone() for name, value in model.state_dict().items()}
    save(given.out, "six", trained)
    best, share = -math.inf, 1.0
    for each in SHARES:
        model.load_state_dict(mixed(start, trained, each))
        found = dev.measure(fast)
        say(share=each, **found)
        if found["mean"] > best:
            best, share = found["mean"], each
    model.load_state_dict(mixed(start, trained, share))
    say(chosen=share)
    calibrate(fast, pairs)
    save(given.out, "head", {n: v for n, v in model.state_dict().items() if n.startswith("head.")})

    small = shallow(model, given.work, device)
    student = Fast(small)
    say(layers=3, step=0, **dev.measure(student))
    learn(
        student, pairs, distilled(pairs, fast), left * STAGES[1],
        lambda step: (say(layers=3, step=step, **dev.measure(student)), save(given.out, "three", small.state_dict())),
        given.epochs,
    )  # fmt: skip
    say(layers=3, **dev.measure(student))
    save(given.out, "three", small.state_dict())


if __name__ == "__main__":
    main()
