"""`crossknn demo --live` says its time, answers soon, can be stopped, and goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from crossknn.scores.store import ScoreStore


def started(folder):
    return subprocess.Popen(
        [sys.executable, "-m", "crossknn", "demo", "--live"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def stopped(process):
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130, said
    return said


@pytest.mark.slow
def test_it_answers_within_a_minute_and_goes_on(tmp_path):
    began = time.monotonic()
    process = started(tmp_path)
    shown = [process.stdout.readline() for _ in range(2)]
    assert time.monotonic() - began < 60
    assert shown[1].startswith("  1  "), shown
    said = stopped(process)
    assert said.splitlines()[0].startswith("about "), said
    assert "Stop it with Ctrl-C at any time" in said.splitlines()[0]
    store = ScoreStore(tmp_path / "crossknn-demo" / "sample-scores.db")
    assert len(store) >= 50
    store.close()

    process = started(tmp_path)
    while not [*tmp_path.glob("crossknn-demo/*/docs.index/work-vectors/*.npz")]:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.1)
    stopped(process)
    assert [*tmp_path.glob("crossknn-demo/*/docs.index/work-vectors/*.npz")]
