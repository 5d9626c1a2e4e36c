"""What the towers of late-interaction models make of texts: computed in a step, or once for a run.

Axes: n texts, s states in all, t of one text, d dimensions.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from crossknn.models.late.model import LateInteractionModel
from crossknn.models.tokens import token_batches
from crossknn.scorers.torch import TOKENS_PER_RUN
from crossknn.training.checkpoint import digest_of
from crossknn.training.corpora import checked_rows
from crossknn.training.mined import kept
from crossknn.types import IntArray, States

logger = logging.getLogger(__name__)

_TEXTS_AT_ONCE = 1024


def tower_states(
    model: LateInteractionModel, texts: Sequence[str], *, queries: bool
) -> tuple[Tensor, Tensor]:
    """States (n, t, d) of texts and their mask (n, t), in passes of similar lengths, with gradients
    if they are on."""
    rows = checked_rows(model.encoding.texts(texts, queries=queries))
    lengths = np.array([len(row.ids) for row in rows])
    at_once = TOKENS_PER_RUN["cpu" if _device(model).type == "cpu" else "cuda"]
    batches = list(token_batches(lengths, at_once))
    found = [model.tower_states([rows[r] for r in batch], queries=queries) for batch in batches]
    width = max(mask.shape[1] for _, mask in found)
    values = torch.cat([functional.pad(v, (0, 0, 0, width - v.shape[1])) for v, _ in found])
    masks = torch.cat([functional.pad(mask, (0, width - mask.shape[1])) for _, mask in found])
    order = torch.from_numpy(np.argsort(np.concatenate(batches))).to(values.device)
    return values[order], masks[order]


def kept_states(
    folder: Path, name: str, model: LateInteractionModel, texts: Sequence[str], *, queries: bool
) -> States:
    """The states of n texts by a tower that does not move, float16, mapped from `folder`.

    Computed once, without dropout. They are written as they come: a run that was killed goes on
    after the last whole text. Those of another tower or of other texts are removed.
    """
    key = digest_of(f"{_tower_key(model, queries)}|{_digest(texts)}")
    path = folder / f"{name}-{key}.f16"
    for other in folder.glob(f"{name}-*.f16"):
        if other != path:
            logger.info("%s is of other texts or another tower: it is removed", other)
            other.unlink()
    starts = kept(folder / f"{name}.npy", key, lambda: _starts(model, texts, queries))
    was_training = model.training
    model.eval()
    with torch.no_grad(), path.open("ab") as file:
        width = tower_states(model, texts[:1], queries=queries)[0].shape[2]
        done = int(np.searchsorted(starts, path.stat().st_size // (2 * width), side="right")) - 1
        file.truncate(int(starts[done]) * 2 * width)
        for start in range(done, len(texts), _TEXTS_AT_ONCE):
            values, mask = tower_states(
                model, texts[start : start + _TEXTS_AT_ONCE], queries=queries
            )
            file.write(values[mask].half().cpu().numpy().tobytes())
            file.flush()
            logger.info("states of %d of %d %s", start + len(values), len(texts), name)
    model.train(was_training)
    shape = (int(starts[-1]), width)
    return States(np.memmap(path, dtype=np.float16, mode="r", shape=shape), starts)


def weights_digest(module: nn.Module) -> str:
    """Hash of every weight of a module."""
    found = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(module.state_dict().items()):
        found.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        found.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _starts(model: LateInteractionModel, texts: Sequence[str], queries: bool) -> IntArray:
    """Where the states of each text begin, (n + 1,): one of each, or one of each token."""
    if (model.head.query_reads if queries else model.head.item_reads) == "vector":
        return np.arange(len(texts) + 1)
    rows = checked_rows(model.encoding.texts(texts, queries=queries))
    return np.concatenate([[0], np.cumsum([len(row.ids) for row in rows])])


def _tower_key(model: LateInteractionModel, queries: bool) -> str:
    """What the states of a text depend on beside it."""
    tower, device = (model.query if queries else model.item), _device(model).type
    precision = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    settings = (model.config.pooling, model.config.marked, model.config.window, tower.reads)
    return f"{weights_digest(tower)}|{settings}|{precision}"


def _digest(texts: Sequence[str]) -> str:
    found = hashlib.blake2b(digest_size=16)
    for text in texts:
        found.update(text.encode("utf-8", "surrogatepass") + b"\0")
    return found.hexdigest()


def _device(model: LateInteractionModel) -> torch.device:
    return next(model.parameters()).device
