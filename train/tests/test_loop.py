"""The loop: its schedule, its batches, and that a run that was stopped ends as one that was not."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import make_task

from crossknn.errors import CrossknnError, InputError
from crossknn_train import loop
from crossknn_train.settings import TrainingSettings


@pytest.fixture(autouse=True)
def _often(monkeypatch):
    """A checkpoint after every step."""
    monkeypatch.setattr(loop, "_SECONDS_BETWEEN_CHECKPOINTS", 0.0)


def training(**changes):
    """12 queries in batches of 4: three steps an epoch, each with an evaluation; twelve in all."""
    settings = {"steps": 12, "batch": 4, "learning_rate": 2e-3, "warmup": 0.2, "evaluations": 3}
    return TrainingSettings(**(settings | {"precision": "float32"} | changes))


def stopped(task, folder, after):
    """A run that is interrupted after so many steps in all."""

    def stop(done, total):
        if done == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        loop.fit(task, training(), folder, progress=stop)


@given(st.integers(1, 300), st.floats(0, 0.99))
def test_the_schedule_rises_then_falls(total, warmup):
    rates = [loop.schedule(step, total, warmup) for step in range(total)]
    top = int(np.argmax(rates))
    assert (min(rates) > 0, max(rates)) == (True, 1)
    rise, fall = np.diff(rates[: top + 1]), np.diff(rates[top:])
    assert (rise > 0).all()
    assert (fall <= 0).all()
    np.testing.assert_allclose(rise, rise.mean() if len(rise) else 0)


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
        assert np.shape(rows) == (steps, batch)
        assert len({*np.ravel(rows)} & {*range(n)}) == steps * batch


@pytest.mark.parametrize(("kind", "saved"), [("cross", 0), ("dual", 4)])
def test_steps_after_the_last_checkpoint_are_made_again(
    dropping_bert, tmp_path, monkeypatch, kind, saved
):
    """Dropout, negatives, moments, the log and the best checkpoint: nothing tells the run apart.

    The log has lines of the lost steps, and a half of the next checkpoint is left.
    """
    if saved:
        stopped(make_task(kind, dropping_bert), tmp_path / "a", saved)
    with monkeypatch.context() as context:
        context.setattr(loop, "_SECONDS_BETWEEN_CHECKPOINTS", 60.0)
        stopped(make_task(kind, dropping_bert), tmp_path / "a", 7)
    (tmp_path / "a" / f"{loop.CHECKPOINT}.part").write_bytes(b"half a checkpoint")
    parts = loop.fit(make_task(kind, dropping_bert), training(), tmp_path / "a")
    whole = loop.fit(make_task(kind, dropping_bert), training(), tmp_path / "b")
    for name in (loop.LOG, loop.CHECKPOINT):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert not [*tmp_path.rglob("*.part")]
    assert (parts.step, parts.best, parts.best_step) == (12, whole.best, whole.best_step)
    lines = [json.loads(line) for line in (tmp_path / "a" / loop.LOG).read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 13))
    assert {"step": parts.best_step, "dev": parts.best} in lines


def test_a_loss_that_is_no_number_ends_the_run(bert, tmp_path):
    stopped(make_task("cross", bert), tmp_path, 5)
    before = (tmp_path / loop.CHECKPOINT).read_bytes()
    task = make_task("cross", bert)
    loss = task.loss
    task.loss = lambda *given: loss(*given) * float("nan")
    with pytest.raises(CrossknnError) as error:
        loop.fit(task, training(), tmp_path)
    names = ", ".join(f"woods/q{row}" for row in loop.batch_rows(12, training(), 5))
    sentence = f"the loss of step 5 is not a number, in the batch of the queries {names}: train"
    assert str(error.value).startswith(sentence)
    assert (tmp_path / loop.CHECKPOINT).read_bytes() == before


@pytest.mark.parametrize(
    ("settings", "of_task"),
    [
        ({"learning_rate": 1e-3}, {}),
        ({"seed": 1}, {}),
        ({}, {"negatives": {"depth": 5}}),
        ({}, {"seed": 1}),  # other first weights
    ],
)
def test_a_checkpoint_of_other_settings_data_or_start_is_refused(bert, tmp_path, settings, of_task):
    stopped(make_task("cross", bert), tmp_path, 1)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(InputError, match="holds a run with other settings, data or model"):
        loop.fit(make_task("cross", bert, **of_task), training(**settings), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    # Passes and precision may change: a run can go on on another machine.
    if not settings:
        more = training(accumulate=2, precision="bfloat16")
        assert loop.fit(make_task("cross", bert), more, tmp_path).step == 12
    (tmp_path / loop.CHECKPOINT).write_bytes(b"nothing")
    with pytest.raises(InputError, match="is damaged; remove it to begin again"):
        loop.fit(make_task("cross", bert), training(), tmp_path)
