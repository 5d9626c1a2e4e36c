"""What a run keeps: checkpoints in safetensors files, and arrays that it works out once.

Files are replaced in one step, so that a kill or a full disk leaves the one that was there.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from crossknn.errors import InputError
from crossknn.types import IntArray

logger = logging.getLogger(__name__)

BEST, LAST = "best.safetensors", "last.safetensors"
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


@dataclass
class State:
    """How far a run is, the best dev measures so far with their step, and the losses since the last
    line of the log."""

    step: int = 0
    best: dict[str, float] = field(default_factory=dict)
    best_step: int = 0
    recent: list[float] = field(default_factory=list)

    def consider(
        self, measures: dict[str, float], main: str, folder: Path, model: nn.Module
    ) -> None:
        """Keep the weights if they are the best so far by the measure `main`."""
        if not self.best or measures[main] > self.best[main]:
            self.best, self.best_step = measures, self.step
            _write(folder / BEST, weights(model), {})


def save(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.AdamW,
    state: State,
    signature: Mapping[str, str],
) -> None:
    """Write the last checkpoint: weights, the optimizer's moments and the place in the run."""
    tensors = {f"model.{name}": value for name, value in weights(model).items()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{key}.{name}"] = value
    _write(folder / LAST, tensors, {"state": json.dumps({**asdict(state), **signature})})


def load(
    folder: Path, model: nn.Module, optimizer: torch.optim.AdamW, signature: Mapping[str, str]
) -> State:
    """The state of the last checkpoint, its weights and moments put in place; a new state if none.

    Raises InputError if it is of another run, by the signature, or damaged.
    """
    path = folder / LAST
    if not path.exists():
        return State()
    try:
        opened = safe_open(path, "pt")
    except SafetensorError as error:
        raise InputError(f"the checkpoint {path} is damaged; remove it to begin again") from error
    with opened as file:
        about = json.loads(file.metadata()["state"])
        if any(about.get(name, value) != value for name, value in signature.items()):
            raise InputError(
                f"{folder} holds a run with other settings, data or model: train into another "
                f"folder, or remove {path}"
            )
        names = set(file.keys())
        _put(model, {n[6:]: file.get_tensor(n) for n in names if n.startswith("model.")})
        for name, parameter in model.named_parameters():
            for key in _MOMENTS if f"exp_avg.{name}" in names else ():
                device = "cpu" if key == "step" else parameter.device
                moment = file.get_tensor(f"{key}.{name}").to(device)
                optimizer.state[parameter][key] = moment
    return State(**{entry.name: about[entry.name] for entry in fields(State)})


def load_best(folder: Path, model: nn.Module) -> None:
    """The best checkpoint's weights, if there is one."""
    if (folder / BEST).exists():
        _put(model, load_file(folder / BEST))


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, each once even where modules share it."""
    return {n: t.detach() for n, t in (*model.named_parameters(), *model.named_buffers())}


def kept(path: Path, key: str, make: Callable[[], IntArray]) -> IntArray:
    """The array in `path`; made and written if there is none, or one made for another `key`, which
    stands behind the array in the file."""
    if path.exists():
        with path.open("rb") as file:
            found: IntArray = np.load(file)
            if not file.peek() or str(np.load(file)) == key:
                return found
        logger.info("%s is for other data or settings: it is made again", path)
    found = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    try:
        with part.open("wb") as file:
            np.save(file, found)
            np.save(file, np.array(key))
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return found


def digest_of(*texts: str, arrays: Iterable[np.ndarray] = ()) -> str:
    """A short hash of texts and arrays, for signatures."""
    found = hashlib.blake2b(digest_size=8)
    for text in texts:
        found.update(text.encode("utf-8", "surrogatepass") + b"\0")
    for array in arrays:
        found.update(array.tobytes() + b"\0")
    return found.hexdigest()


def _put(model: nn.Module, values: dict[str, Tensor]) -> None:
    for name, tensor in weights(model).items():
        tensor.copy_(values[name])


def _write(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """All or nothing: a full disk (OSError) or a kill leaves the file that was there."""
    part = path.with_suffix(".part")
    try:
        save_file({name: value.contiguous() for name, value in tensors.items()}, part, metadata)
        part.replace(path)
    except BaseException as error:
        part.unlink(missing_ok=True)
        number = re.search(r"os error (\d+)", str(error))
        if not isinstance(error, SafetensorError) or number is None:
            raise
        # which is what becomes of an OSError there
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
