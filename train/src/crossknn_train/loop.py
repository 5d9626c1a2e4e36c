"""The training loop of all models: deterministic, and resumable even after a kill.

All randomness in step s depends on the seed and s alone, and a checkpoint holds the weights, the
optimizer's moments and the best weights so far. So a run that was killed and resumed ends with the
same weights.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from crossknn.errors import InputError, TrainingError
from crossknn.files import (
    is_file,
    make_folder,
    new_file,
    open_file,
    parse_json,
    read_npz,
    remove_parts,
    write_file,
)
from crossknn.types import Progress
from crossknn_train.settings import TrainingSettings

CHECKPOINT, LOG = "checkpoint.safetensors", "log.jsonl"
CLIP = 1.0
"""Gradients are clipped to this norm."""

_SECONDS_BETWEEN_CHECKPOINTS = 60.0

Measures: TypeAlias = dict[str, float]
Autocast: TypeAlias = Callable[[], AbstractContextManager[Any]]


class Task(ABC):
    """A training task: the model, its data and its loss. Checkpoints are compared by the measure
    `main` (higher is better); `signature` are the data and options of a run that is resumed."""

    main: str
    model: Any
    ids: Sequence[str]
    signature: str

    @abstractmethod
    def begin_epoch(self, epoch: int, folder: Path) -> None:
        """Prepare an epoch; called before its first step, and again when a run resumes within the
        epoch."""

    @abstractmethod
    def draw(self, rows: Sequence[int], epoch: int) -> Sequence[NDArray[Any]]:
        """Draw the arrays (b, ...) that `loss` needs for the queries `rows` (b,) in an epoch."""

    @abstractmethod
    def loss(self, rows: Sequence[int], *drawn: Any, **none: Any) -> Tensor:
        """The mean loss () of the queries `rows` (b,), given the arrays from `draw`."""

    @abstractmethod
    def evaluate(self) -> Measures:
        """Compute measures on dev queries."""


@dataclass
class State:
    """The state of a run: number of steps done, the best dev measures, their step and weights, and
    the seconds since the run was started or last resumed."""

    signature: str
    step: int = 0
    best: Measures = field(default_factory=dict)
    best_step: int = 0
    log_size: int = 0
    seconds: float = 0.0
    best_weights: dict[str, Tensor] = field(default_factory=dict)


def fit(
    task: Task, settings: TrainingSettings, folder: Path, *, progress: Progress | None = None
) -> State:
    """Train to the last step, from the checkpoint in `folder` if it has one, and load the best
    weights into the model. TrainingError names the batch whose loss is NaN or infinite."""
    model, began = task.model, time.perf_counter()
    per_epoch = steps_per_epoch(len(task.ids), settings)
    total = settings.steps or settings.epochs * per_epoch
    folder.parent.mkdir(parents=True, exist_ok=True)
    make_folder(folder)
    every = max(1, min(per_epoch, total) // settings.evaluations)
    for module in model.modules():
        if settings.dropout is not None and isinstance(module, nn.Dropout):
            module.p = settings.dropout
    run = _Steps(task, settings)
    fixed = settings.model_dump_json(exclude={"accumulate", "evaluations", "precision"})
    signature = digest_of(fixed, task.signature, model.fingerprint)
    remove_parts(folder)
    state = _load(folder / CHECKPOINT, model, run.optimizer, signature)
    with open_file(folder, LOG, "ab") as log:
        log.truncate(state.log_size)  # lines that a killed run wrote after its checkpoint
    saved, first = time.monotonic(), state.step
    for step in range(first, total):
        if step == first or step % per_epoch == 0:
            with run.autocast():
                task.begin_epoch(step // per_epoch, folder)
        rate = settings.learning_rate * schedule(step, total, settings.warmup)
        for group in run.optimizer.param_groups:
            group["lr"] = rate
        value = run.make(step)
        state.step, is_last = step + 1, step + 1 == total
        lines: list[dict[str, Any]] = [{"step": state.step, "loss": value, "learning_rate": rate}]
        # The last step always evaluates, so skip an evaluation shortly before it.
        if is_last or (state.step % every == 0 and total - state.step >= every // 2):
            measures = evaluate(task, run.autocast)
            lines.append({"step": state.step, "dev": measures})
            if not state.best or measures[task.main] > state.best[task.main]:
                state.best, state.best_step = measures, state.step
                own = model.state_dict().items()
                state.best_weights = {name: value.to("cpu", copy=True) for name, value in own}
        with open_file(folder, LOG, "ab") as log:
            log.seek(0, os.SEEK_END)
            log.writelines(f"{json.dumps(line)}\n".encode() for line in lines)
            state.log_size = log.tell()
        if is_last or time.monotonic() - saved > _SECONDS_BETWEEN_CHECKPOINTS:
            _save(folder / CHECKPOINT, model, run.optimizer, state)
            saved = time.monotonic()
        if progress:
            progress(state.step, total)
    model.load_state_dict(state.best_weights)
    state.seconds = time.perf_counter() - began
    return state


class _Steps:
    """Runs the steps with AdamW, without weight decay for biases and norms."""

    def __init__(self, task: Task, settings: TrainingSettings) -> None:
        self.task, self.settings = task, settings
        self.autocast = autocast_of(task.model, settings)
        trained = [parameter for parameter in task.model.parameters() if parameter.requires_grad]
        groups = [
            {"params": [p for p in trained if p.ndim >= 2], "weight_decay": 0.01},
            {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=settings.learning_rate, fused=True)

    def make(self, step: int) -> float:
        task, settings = self.task, self.settings
        rows = batch_rows(len(task.ids), settings, step)
        torch.manual_seed(settings.seed * 1_000_003 + step)
        task.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        value = 0.0
        with self.autocast():
            drawn = task.draw(rows, step // steps_per_epoch(len(task.ids), settings))
            for chosen in np.array_split(np.arange(len(rows)), settings.accumulate):
                loss = task.loss([rows[c] for c in chosen], *(array[chosen] for array in drawn))
                loss = loss * (len(chosen) / len(rows))
                value += float(loss.detach())
                loss.backward()
        norm = float(nn.utils.clip_grad_norm_(task.model.parameters(), CLIP))
        if not (math.isfinite(value) and math.isfinite(norm)):
            names = ", ".join(task.ids[row] for row in rows[:8])
            raise TrainingError(
                f"the loss of step {step} is not a number, in the batch of the queries {names}: "
                "train into a new folder with a lower learning_rate, or in float32"
            )
        self.optimizer.step()
        return value


def evaluate(task: Task, autocast: Autocast) -> Measures:
    """Compute the task's dev measures, without dropout and gradients."""
    task.model.eval()
    with torch.inference_mode(), autocast():
        return task.evaluate()


def steps_per_epoch(n_queries: int, settings: TrainingSettings) -> int:
    if n_queries < settings.batch:
        raise InputError(
            f"there are {n_queries} train queries, fewer than one batch of {settings.batch}: "
            "lower the batch"
        )
    return n_queries // settings.batch


def schedule(step: int, total: int, warmup: float) -> float:
    """Return the factor of the learning rate at a step: a linear rise, then a linear fall to
    zero."""
    rise = max(1, round(total * warmup))
    return min((step + 1) / rise, (total - step) / max(1, total - rise))


def batch_rows(n_queries: int, settings: TrainingSettings, step: int) -> list[int]:
    """Return the queries of a step: in each epoch, the queries in a random order that depends on
    the seed, cut into batches."""
    epoch, place = divmod(step, steps_per_epoch(n_queries, settings))
    generator = torch.Generator().manual_seed(settings.seed * 7_919 + epoch)
    order = torch.randperm(n_queries, generator=generator)
    return order[place * settings.batch : (place + 1) * settings.batch].tolist()


def autocast_of(model: nn.Module, settings: TrainingSettings) -> Autocast:
    """Return the autocast of the settings; "auto" is bfloat16 if the device supports it."""
    device, half = next(model.parameters()).device.type, settings.precision == "bfloat16"
    if settings.precision == "auto" and device == "cuda":
        half = torch.cuda.is_bf16_supported()
    elif settings.precision == "auto" and (flags := Path("/proc/cpuinfo")).is_file():
        half = re.search("avx512_bf16|amx_bf16", flags.read_text(encoding="utf-8")) is not None
    return partial(torch.autocast, device, torch.bfloat16) if half else nullcontext


# ------------------------------------------------------------------------- files in the folder


def _save(path: Path, model: nn.Module, optimizer: torch.optim.AdamW, state: State) -> None:
    about = dict(vars(state))
    groups = {"model": model.state_dict(), "best": about.pop("best_weights")}
    groups |= {f"moments{p}": of for p, of in optimizer.state_dict()["state"].items()}
    tensors = {
        f"{group}.{name}": value.clone().contiguous()
        for group, of in groups.items()
        for name, value in of.items()
    }
    write_file(path.parent, path.name, save(tensors, {"state": json.dumps(about)}))


def _load(path: Path, model: nn.Module, optimizer: torch.optim.AdamW, signature: str) -> State:
    if not is_file(path.parent, path.name):
        return State(signature)
    groups: dict[str, dict[str, Tensor]] = {"best": {}}
    try:
        with safe_open(path, "pt") as file:
            about = parse_json(file.metadata()["state"])
            for name in file.keys():  # noqa: SIM118
                group, _, inner = name.partition(".")
                groups.setdefault(group, {})[inner] = file.get_tensor(name)
    except (SafetensorError, ValueError, TypeError, LookupError) as error:
        raise InputError(f"the checkpoint {path} is damaged; remove it to begin again") from error
    state = State(**about, best_weights=groups.pop("best"))
    if state.signature != signature:
        raise InputError(
            f"{path.parent} holds a run with other settings, data or model: train into another "
            f"folder, or remove {path}"
        )
    model.load_state_dict(groups.pop("model"))
    moments = {int(group.removeprefix("moments")): of for group, of in groups.items()}
    optimizer.load_state_dict(optimizer.state_dict() | {"state": moments})
    return state


def kept(
    folder: Path, name: str, key: str, make: Callable[[], Sequence[NDArray[Any]]]
) -> list[NDArray[Any]]:
    """Read arrays from a file in the folder; make the file first if none has this name and
    `key`."""
    file = f"{name}-{digest_of(key)}.npz"
    if not is_file(folder, file):
        with new_file(folder, file) as made:
            np.savez(made, *make())
    return list(read_npz(folder, file).values())


def digest_of(*texts: str) -> str:
    """Compute a short hash of texts, for signatures."""
    whole = "\0".join([*texts, ""]).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(whole, digest_size=8).hexdigest()
