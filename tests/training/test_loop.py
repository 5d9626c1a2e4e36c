"""The loop: its schedule, its batches, and that a run that was stopped ends as one that was not."""

from __future__ import annotations

import errno
import itertools
import json
import resource
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from tiny_models import make_task

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from crossknn.errors import CrossknnError, InputError  # noqa: E402
from crossknn.training import checkpoint, loop  # noqa: E402
from crossknn.training.settings import TrainingSettings  # noqa: E402

pytestmark = pytest.mark.torch


def training(**changes):
    """12 queries in batches of 4: three steps an epoch, each with an evaluation; twelve in all."""
    settings = {
        "steps": 12,
        "batch": 4,
        "learning_rate": 2e-3,
        "warmup": 0.2,
        "evaluations": 3,
        "precision": "float32",
        "threads": 1,
    }
    return TrainingSettings(**(settings | changes))


def weights_of(path):
    with safe_open(path, "np") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def log_of(folder):
    """Lines of the log without their times."""
    lines = map(json.loads, (folder / loop.LOG).read_text().splitlines())
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]


def same_run(first, second):
    """Both folders hold the same last and best weights, moments, measures and log."""
    for name in (checkpoint.LAST, checkpoint.BEST):
        left, right = weights_of(first / name), weights_of(second / name)
        assert set(left) == set(right)
        for key in left:
            np.testing.assert_array_equal(left[key], right[key], err_msg=f"{name}: {key}")
    assert log_of(first) == log_of(second)
    with (
        safe_open(first / checkpoint.LAST, "np") as a,
        safe_open(second / checkpoint.LAST, "np") as b,
    ):
        assert json.loads(a.metadata()["state"]) == json.loads(b.metadata()["state"])
    assert not [*first.glob("*.part"), *second.glob("*.part")]


# Schedule and batches


@given(st.integers(1, 300), st.floats(0, 0.99))
def test_the_schedule_rises_then_falls(total, warmup):
    rates = [loop.schedule(step, total, warmup) for step in range(total)]
    top = int(np.argmax(rates))
    assert all(0 < rate <= 1 for rate in rates)
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert max(rates) == 1
    steps = np.diff(rates[: top + 1])
    assert np.allclose(steps, steps[:1] if len(steps) else 0)


@given(st.integers(1, 40), st.integers(1, 10), st.integers(0, 5))
def test_an_epoch_has_every_query_once(n, batch, seed):
    """But for the few that do not fill a batch, which are others in every epoch."""
    if batch > n:
        with pytest.raises(InputError, match="fewer than one batch"):
            loop.batch_rows(n, training(batch=batch), 0)
        return
    settings, steps = training(batch=batch, seed=seed), n // batch
    for epoch in range(3):
        rows = [loop.batch_rows(n, settings, epoch * steps + step) for step in range(steps)]
        assert [len(row) for row in rows] == [batch] * steps
        flat = list(itertools.chain.from_iterable(rows))
        assert len(set(flat)) == len(flat)
        assert set(flat) <= set(range(n))
        if n % batch == 0:
            assert set(flat) == set(range(n))


# The same again


@pytest.mark.parametrize("stops", [[5], [1, 2, 3], [3, 3], [10, 1]])
@pytest.mark.parametrize("kind", ["cross", "dual"])
def test_a_run_in_parts_is_the_run(dropping_bert, tmp_path, kind, stops):
    """Dropout, negatives, moments, the log and the best checkpoint: nothing tells them apart."""
    whole = loop.fit(make_task(kind, dropping_bert), training(), tmp_path / "a")
    for stop in stops:
        task = make_task(kind, dropping_bert)
        loop.fit(task, training(), tmp_path / "b", stop_after=stop)
    task = make_task(kind, dropping_bert)
    parts = loop.fit(task, training(), tmp_path / "b")
    same_run(tmp_path / "a", tmp_path / "b")
    assert (parts.steps, parts.best, parts.best_step) == (12, whole.best, whole.best_step)
    best = weights_of(tmp_path / "b" / checkpoint.BEST)
    for name, value in checkpoint.weights(task.model).items():  # the model holds the best weights
        np.testing.assert_array_equal(value.numpy(), best[name])


@pytest.mark.parametrize(
    ("kind", "step", "half"), [("cross", 5, False), ("dual", 7, False), ("cross", 6, True)]
)
def test_a_run_that_was_killed_is_the_run(dropping_bert, tmp_path, monkeypatch, kind, step, half):
    """In the middle of a step, or of writing a checkpoint, of which a half is left."""
    monkeypatch.setattr(loop, "_SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    task = make_task(kind, dropping_bert)
    losses = task.losses

    def dying(rows, parts, epoch, now):
        if now == step:
            raise KeyboardInterrupt
        return losses(rows, parts, epoch, now)

    task.losses = dying
    with pytest.raises(KeyboardInterrupt):
        loop.fit(task, training(), tmp_path / "a")
    if half:
        (tmp_path / "a" / checkpoint.LAST).with_suffix(".part").write_bytes(b"half a checkpoint")
    for name in ("a", "b"):
        loop.fit(make_task(kind, dropping_bert), training(), tmp_path / name)
    same_run(tmp_path / "a", tmp_path / "b")


# What goes wrong


@pytest.mark.parametrize("kind", ["cross", "dual"])
def test_a_loss_that_is_no_number_ends_the_run(bert, tmp_path, kind):
    task = make_task(kind, bert)
    loop.fit(task, training(), tmp_path, stop_after=4)
    best, last = (weights_of(tmp_path / name) for name in (checkpoint.BEST, checkpoint.LAST))
    task = make_task(kind, bert)
    rows = loop.batch_rows(12, training(), 5)
    losses = task.losses

    def spoil(batch, parts, epoch, step):
        if step == 5:
            with torch.no_grad():
                next(task.model.parameters()).fill_(float("nan"))
        return losses(batch, parts, epoch, step)

    task.losses = spoil
    with pytest.raises(loop.TrainingError) as error:
        loop.fit(task, training(), tmp_path)
    message = str(error.value)
    assert "the loss of step 5 is not a number" in message
    assert ", ".join(f"woods/q{row}" for row in rows) in message
    assert f"the best checkpoint is kept in {tmp_path / checkpoint.BEST}" in message
    assert isinstance(error.value, CrossknnError)
    for name, before in ((checkpoint.BEST, best), (checkpoint.LAST, last)):
        after = weights_of(tmp_path / name)
        assert all(np.isfinite(value).all() for value in after.values())
        if name == checkpoint.LAST:
            assert all((after[key] == before[key]).all() for key in before)
    loop.fit(make_task(kind, bert), training(), tmp_path)  # goes on from there


@contextmanager
def no_room(size):
    """No file of this process may become longer than `size` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("name", [checkpoint.LAST, checkpoint.BEST])
def test_a_disk_without_room_leaves_the_checkpoint_before(bert, tmp_path, name):
    loop.fit(make_task("cross", bert), training(), tmp_path, stop_after=4)
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.safetensors")}
    sizes = {name: len(content) for name, content in before.items()}
    assert sizes[checkpoint.BEST] < sizes[checkpoint.LAST] / 2
    # Room for all files but the last checkpoint's; or for neither, which only matters to best
    # where there is a new one.
    room = sizes[checkpoint.BEST] + 10_000 if name == checkpoint.LAST else 10_000
    task = make_task("cross", bert)
    if name == checkpoint.BEST:
        (tmp_path / checkpoint.LAST).unlink()
        del before[checkpoint.LAST]
    with no_room(room), pytest.raises(OSError, match="File too large") as error:
        loop.fit(task, training(), tmp_path)
    assert (error.value.errno, error.value.filename) == (errno.EFBIG, str(tmp_path / name))
    assert {path.name for path in tmp_path.iterdir()} <= {
        "log.jsonl",
        "dev.npy",
        "negatives.npy",
        *sizes,
    }
    after = {path.name: path.read_bytes() for path in tmp_path.glob("*.safetensors")}
    if name == checkpoint.LAST:
        after[checkpoint.BEST] = before[checkpoint.BEST]  # there was room for better ones
    assert after == before
    loop.fit(make_task("cross", bert), training(), tmp_path)  # with room it goes on
    loop.fit(make_task("cross", bert), training(), tmp_path / "a")
    same_run(tmp_path, tmp_path / "a")


@pytest.mark.parametrize(
    "change",
    [{"learning_rate": 1e-3}, {"batch": 3}, {"steps": 11}, {"warmup": 0.1}, {"seed": 1}],
    ids=str,
)
def test_a_checkpoint_of_other_settings_is_refused(bert, tmp_path, change):
    loop.fit(make_task("cross", bert), training(), tmp_path, stop_after=1)
    refused(make_task("cross", bert), training(**change), tmp_path)


def refused(task, settings, folder):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(InputError) as error:
        loop.fit(task, settings, folder)
    assert str(error.value) == (
        f"{folder} holds a run with other settings, data or model: train into another folder, or "
        f"remove {folder / checkpoint.LAST}"
    )
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_what_may_change_between_parts_of_a_run(bert, tmp_path):
    """Passes, precision, threads and device: a run can go on on another machine."""
    loop.fit(make_task("cross", bert), training(), tmp_path, stop_after=2)
    settings = training(accumulate=2, precision="bfloat16")
    assert loop.fit(make_task("cross", bert), settings, tmp_path).steps == 12
