"""A late-interaction model as an ONNX folder (see `crossknn.models.export`).

Axes: b texts or lists, c candidates, t states of a text, d dimensions.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from crossknn.errors import InputError
from crossknn.models.fingerprint import weights_hash
from crossknn.models.folder import (
    COMPARE_MODEL,
    INPUTS,
    ITEM_MODEL,
    MANIFEST,
    MODEL,
    PROBE,
    QUERY_MODEL,
    TOKENIZER,
    Graph,
    late_content,
    trace,
    write,
)
from crossknn.models.late_interaction.base import LateInteractionModel
from crossknn.models.tokens import Row, padded

_LISTED = 300
"""Candidates of the lists that the graph is checked on: more rows than CMC reads at once."""


class _Encode(nn.Module):  # type: ignore[misc]
    """Token arrays (b, t) three times -> states (b, t', d) and their mask (b, t')."""

    def __init__(self, model: LateInteractionModel, *, queries: bool) -> None:
        super().__init__()
        self.tower = model.query if queries else model.item
        self.head, self.queries = model.head, queries

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor
    ) -> tuple[Tensor, Tensor]:
        of = self.head.of_queries if self.queries else self.head.of_items
        found: tuple[Tensor, Tensor] = of(*self.tower(input_ids, attention_mask, token_type_ids))
        return found


def write_late_folder(model: LateInteractionModel, folder: Path, name: str, license: str) -> Path:
    """Trace towers and head, check them against torch, and write the folder, its manifest last.

    The item's graph is left out where it is the query's. Raises InputError if a graph disagrees
    with torch.
    """
    device, training = next(model.parameters()).device, model.training
    model.cpu().eval()
    for tower in (model.query, model.item):
        tower.encoder.set_attn_implementation("eager")
    folder.mkdir(parents=True, exist_ok=True)
    for file in (MANIFEST, MODEL, ITEM_MODEL):  # of a model that was here before
        (folder / file).unlink(missing_ok=True)
    with torch.inference_mode():
        graphs = _graphs(model)
    written: dict[str, bytes] = {}
    for file, graph in graphs.items():
        traced = trace(graph, folder / file, name)[0].SerializeToString(deterministic=True)
        if traced not in written.values():
            written[file] = traced
            write(folder / file, traced)
    model.fast_tokenizer.save(str(folder / TOKENIZER), pretty=False)
    config = model.config
    settings: dict[str, Any] = {
        "format": 1,
        "kind": "late-interaction",
        "head": config.kind,
        "joint": model.head.joint,
        "name": name,
        "precision": "float32",
        "max_length": config.window.max_length,
        "query_length": config.query_length,
        "item_length": config.item_length,
        "marked": config.marked,
        "dimensions": model.dimensions,
        "pad_token_id": model.tokenizer.padding,
        "weights": f"{config.kind}:{weights_hash(model)}",
        "license": license,
    }
    content = late_content(folder, settings)
    settings |= {"revision": content[:12], "content": content}
    write(folder / MANIFEST, (json.dumps(settings, indent=2) + "\n").encode())
    model.to(device).train(training)
    return folder


def _graphs(model: LateInteractionModel) -> dict[str, Graph]:
    """The towers and the head, with what they are traced and checked on."""
    made: dict[str, Graph] = {}
    states: dict[bool, tuple[Tensor, Tensor]] = {}
    for file, queries in ((QUERY_MODEL, True), (ITEM_MODEL, False)):
        module = _Encode(model, queries=queries).eval()
        probes = [_tokens(model, count, queries) for count in (2, len(PROBE))]
        states[queries] = module(*(torch.from_numpy(probes[1][key]) for key in INPUTS))
        made[file] = Graph(
            module=module,
            inputs={key: {0: "b", 1: "t"} for key in INPUTS},
            outputs={"states": {0: "b", 1: "t_out"}, "mask": {0: "b", 1: "t_out"}},
            probes=probes,
        )
    made[COMPARE_MODEL] = Graph(
        module=model.head.eval(),
        inputs={
            "query": {0: "b", 1: "t_q"},
            "query_mask": {0: "b", 1: "t_q"},
            "items": {0: "b", 1: "c", 2: "t_i"},
            "item_mask": {0: "b", 1: "c", 2: "t_i"},
        },
        outputs={"scores": {0: "b", 1: "c"}},
        probes=[_lists(states, count, listed) for count, listed in ((2, 5), (3, _LISTED))],
    )
    return made


def _tokens(model: LateInteractionModel, count: int, queries: bool) -> dict[str, Any]:
    """Token arrays of the first `count` probes."""
    texts = [pair[0 if queries else 1] for pair in PROBE[:count]]
    rows: list[Row] = []
    for row in model.encoding.texts(texts, queries=queries):
        if isinstance(row, InputError):
            raise row
        rows.append(row)
    return dict(padded(rows, model.tokenizer.padding, model.config.window.max_length))


def _lists(states: dict[bool, tuple[Tensor, Tensor]], count: int, listed: int) -> dict[str, Any]:
    """States of `count` queries and of `listed` items drawn for each, a tenth of them padding."""
    rng = np.random.default_rng(listed)
    query, query_mask = (t[:count].numpy() for t in states[True])
    values, mask = (t.numpy() for t in states[False])
    drawn = rng.integers(len(values), size=(count, listed))
    items = values[drawn] + 0.1 * rng.standard_normal((count, listed, *values.shape[1:]))
    item_mask = mask[drawn]
    item_mask[:, rng.permutation(listed)[: max(1, listed // 10)]] = False
    return {
        "query": query,
        "query_mask": query_mask,
        "items": (items * item_mask[..., None]).astype(np.float32),
        "item_mask": item_mask,
    }
