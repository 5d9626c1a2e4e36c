"""Trains as test_loop does, in one process per scenario, each of which kills itself hard.

Usage: kill_me.py ENCODER FOLDER, with FOLDER/scenarios.json: lists of kind, step and where, the
middle of a step or of writing a checkpoint. Runs go to FOLDER/0, FOLDER/1, ...
"""

import json
import os
import signal
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

import torch  # noqa: E402
from conftest import make_cross_task, make_dual_task  # noqa: E402
from test_loop import training  # noqa: E402

from crossknn.training import checkpoint, loop  # noqa: E402


def train(kind: str, step: int, where: str, encoder: Path, folder: Path) -> None:
    torch.set_num_threads(1)
    task = (make_cross_task if kind == "cross" else make_dual_task)(encoder)
    loop._SECONDS_BETWEEN_CHECKPOINTS = 0.0
    write, losses = checkpoint._write, task.losses

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    def dying_losses(rows, parts, epoch, now):
        if where == "step" and now == step:
            die()
        return losses(rows, parts, epoch, now)

    def dying_write(path, tensors, metadata):
        if where == "write" and f'"step": {step}' in metadata.get("state", ""):
            path.with_suffix(".part").write_bytes(b"half a checkpoint")
            die()
        write(path, tensors, metadata)

    task.losses, checkpoint._write = dying_losses, dying_write
    loop.fit(task, training(), folder)


if __name__ == "__main__":
    encoder, folder = map(Path, sys.argv[1:])
    ends = []
    for number, scenario in enumerate(json.loads((folder / "scenarios.json").read_text())):
        child = os.fork()
        if not child:
            train(*scenario, encoder, folder / str(number))
            os._exit(0)
        ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(json.dumps(ends))
