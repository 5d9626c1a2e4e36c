"""The training loop: one for all models. Resumable, deterministic, and safe to kill.

Everything random in step s depends on the seed and s alone, and a checkpoint holds the weights and
the optimizer's moments, so that a run that was killed and run again ends with the same weights.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from crossknn.errors import InputError, TrainingError
from crossknn.training import checkpoint
from crossknn.training.checkpoint import digest_of
from crossknn.training.settings import TrainingSettings
from crossknn.types import Progress

LOG = "log.jsonl"
_SECONDS_BETWEEN_CHECKPOINTS = 60.0
_STEPS_BETWEEN_LINES = 10
_FREE = ("accumulate", "evaluations", "precision", "device", "threads")
"""Settings that may change when a run goes on."""

Measures: TypeAlias = dict[str, float]
Autocast: TypeAlias = Callable[[], AbstractContextManager[Any]]


class Task(Protocol):
    """What is trained. `main` names the measure by which checkpoints are compared (higher wins).

    `signature` is what must be the same for a run to be resumed: data, negatives, the model's
    settings.
    """

    main: str

    @property
    def model(self) -> nn.Module: ...
    @property
    def n_queries(self) -> int: ...
    @property
    def signature(self) -> str: ...

    def begin_epoch(self, epoch: int, folder: Path) -> None:
        """Called before an epoch's first step, and again when a run is resumed inside it."""

    def losses(self, rows: list[int], parts: int, epoch: int, step: int) -> Iterator[Tensor]:
        """The loss of the queries `rows` (b,) in `parts` passes, whose sum is the step's loss."""

    def describe(self, rows: list[int]) -> str:
        """What a batch holds, for messages."""

    def evaluate(self) -> Measures: ...


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """What a run came to: steps done, the best dev measures and their step, seconds of this run."""

    steps: int
    best: Measures
    best_step: int
    seconds: float


def fit(
    task: Task,
    settings: TrainingSettings,
    folder: Path,
    *,
    progress: Progress | None = None,
    stop_after: int | None = None,
) -> Fitted:
    """Train until the last step, from the last checkpoint in `folder` if there is one.

    Leaves the best weights in the model. `stop_after` ends this run early, after so many steps
    of it.

    Raises:
        TrainingError: the loss is NaN or infinite; the message names the batch.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model, began = task.model, time.perf_counter()
    per_epoch = steps_per_epoch(task.n_queries, settings)
    total = total_steps(task.n_queries, settings)
    for module in model.modules():
        if settings.dropout is not None and isinstance(module, nn.Dropout):
            module.p = settings.dropout
    every = max(1, min(per_epoch, total) // settings.evaluations)
    optimizer, autocast = _optimizer(model, settings), autocast_of(model, settings)
    signature = _signature(task, settings)
    state = checkpoint.load(folder, model, optimizer, signature)
    log = _Log(folder / LOG, state.step)
    saved, epoch_begun = time.monotonic(), -1
    last = total if stop_after is None else min(total, state.step + stop_after)
    for step in range(state.step, last):
        epoch = step // per_epoch
        if epoch != epoch_begun:
            with autocast():
                task.begin_epoch(epoch, folder)
            epoch_begun = epoch
        rate = settings.learning_rate * schedule(step, total, settings.warmup)
        for group in optimizer.param_groups:
            group["lr"] = rate
        try:
            state.recent.append(_step(task, settings, optimizer, autocast, epoch, step))
        except TrainingError as error:
            kept = f"the best checkpoint is kept in {folder / checkpoint.BEST}"
            nothing = "there is no checkpoint yet"
            raise TrainingError(f"{error}; {kept if state.best else nothing}") from None
        state.step = step + 1
        if state.step % _STEPS_BETWEEN_LINES == 0 or state.step == total:
            log(step=state.step, loss=sum(state.recent) / len(state.recent), learning_rate=rate)
            state.recent.clear()
        # The last evaluation is at the end, not one at the end of the epoch and one just after.
        if state.step == total or (state.step % every == 0 and total - state.step >= every // 2):
            measures = evaluate(task, autocast)
            log(step=state.step, dev=measures)
            state.consider(measures, task.main, folder, model)
        if progress:
            progress(state.step, total)
        if time.monotonic() - saved > _SECONDS_BETWEEN_CHECKPOINTS or state.step in (last, total):
            checkpoint.save(folder, model, optimizer, state, signature)
            saved = time.monotonic()
    if state.best:
        checkpoint.load_best(folder, model)
    seconds = time.perf_counter() - began
    return Fitted(steps=state.step, best=state.best, best_step=state.best_step, seconds=seconds)


def _step(
    task: Task,
    settings: TrainingSettings,
    optimizer: torch.optim.AdamW,
    autocast: Autocast,
    epoch: int,
    step: int,
) -> float:
    """One step of the optimizer; the loss. TrainingError, before any weight moves, if it is NaN."""
    rows = batch_rows(task.n_queries, settings, step)
    torch.manual_seed(settings.seed * 1_000_003 + step)
    task.model.train()
    optimizer.zero_grad(set_to_none=True)
    value = 0.0
    with autocast():
        for loss in task.losses(rows, settings.accumulate, epoch, step):
            value += float(loss.detach())
            loss.backward()
    norm = float(nn.utils.clip_grad_norm_(task.model.parameters(), settings.clip))
    if not (math.isfinite(value) and math.isfinite(norm)):
        raise TrainingError(
            f"the loss of step {step} is not a number, in the batch of {task.describe(rows)}: "
            "train into a new folder with a lower learning_rate, or in float32"
        )
    optimizer.step()
    return value


def evaluate(task: Task, autocast: Autocast) -> Measures:
    """The task's dev measures, without dropout and gradients."""
    task.model.eval()
    with torch.inference_mode(), autocast():
        return task.evaluate()


def time_steps(task: Task, settings: TrainingSettings, steps: int) -> float:
    """Seconds of one step, the mean of `steps` real ones after a first; weights are spoiled."""
    optimizer, autocast = _optimizer(task.model, settings), autocast_of(task.model, settings)
    began = 0.0
    with TemporaryDirectory() as folder:
        task.begin_epoch(0, Path(folder))
    for step in range(steps + 1):
        _step(task, settings, optimizer, autocast, 0, step)
        if not step:
            began = time.perf_counter()
    return (time.perf_counter() - began) / steps


def total_steps(n_queries: int, settings: TrainingSettings) -> int:
    return settings.steps or settings.epochs * steps_per_epoch(n_queries, settings)


def steps_per_epoch(n_queries: int, settings: TrainingSettings) -> int:
    """Whole batches among the train queries. Raises InputError if there is none."""
    if n_queries < settings.batch:
        raise InputError(
            f"there are {n_queries} train queries, fewer than one batch of {settings.batch}"
        )
    return n_queries // settings.batch


def schedule(step: int, total: int, warmup: float) -> float:
    """The share of the learning rate at a step: a linear rise, then a linear fall to zero."""
    rise = max(1, round(total * warmup))
    return min((step + 1) / rise, (total - step) / max(1, total - rise))


def batch_rows(n_queries: int, settings: TrainingSettings, step: int) -> list[int]:
    """Queries of a step: a random order per epoch, cut into batches; the seed decides."""
    epoch, place = divmod(step, steps_per_epoch(n_queries, settings))
    generator = torch.Generator().manual_seed(settings.seed * 7_919 + epoch)
    order = torch.randperm(n_queries, generator=generator)
    found: list[int] = order[place * settings.batch : (place + 1) * settings.batch].tolist()
    return found


def autocast_of(model: nn.Module, settings: TrainingSettings) -> Autocast:
    device = next(model.parameters()).device.type
    if not uses_bfloat16(model, settings):
        return nullcontext
    return lambda: torch.autocast(device, dtype=torch.bfloat16)


def uses_bfloat16(model: nn.Module, settings: TrainingSettings) -> bool:
    """Whether it was asked for, or the device multiplies such matrices faster than float32 ones."""
    if settings.precision != "auto":
        return settings.precision == "bfloat16"
    device = next(model.parameters()).device.type
    if device == "cuda":
        return torch.cuda.is_bf16_supported()
    flags = Path("/proc/cpuinfo")
    text = flags.read_text(encoding="utf-8") if device == "cpu" and flags.is_file() else ""
    return "avx512_bf16" in text or "amx_bf16" in text


def _optimizer(model: nn.Module, settings: TrainingSettings) -> torch.optim.AdamW:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    plain = [parameter for parameter in trained if parameter.ndim < 2]
    decayed = [parameter for parameter in trained if parameter.ndim >= 2]
    return torch.optim.AdamW(
        [{"params": decayed}, {"params": plain, "weight_decay": 0.0}],
        lr=settings.learning_rate,
        weight_decay=settings.weight_decay,
        fused=True,
    )


def _signature(task: Task, settings: TrainingSettings) -> dict[str, str]:
    """What a checkpoint must agree with to be resumed."""
    shape = {name: list(p.shape) for name, p in task.model.named_parameters()}
    fixed = {name: value for name, value in asdict(settings).items() if name not in _FREE}
    text = json.dumps([shape, fixed, task.n_queries], sort_keys=True)
    return {"signature": digest_of(text), "task": digest_of(task.signature)}


class _Log:
    """JSON lines; those of steps after the checkpoint that a run resumes from are dropped."""

    def __init__(self, path: Path, step: int) -> None:
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        path.write_text("".join(f"{line}\n" for line in lines if _step_of(line) <= step), "utf-8")
        self._path, self._began = path, time.perf_counter()

    def __call__(self, **values: Any) -> None:
        values["seconds"] = round(time.perf_counter() - self._began, 2)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")


def _step_of(line: str) -> float:
    """The step of a line of the log; infinity if a kill left only its beginning."""
    try:
        return float(json.loads(line)["step"])
    except ValueError:
        return math.inf
