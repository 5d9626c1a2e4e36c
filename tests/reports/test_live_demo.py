"""`crossknn demo --live` says its time, answers soon, can be stopped, and goes on."""

import signal
import subprocess
import sys
import time

import pytest

from crossknn.cli.app import run
from crossknn.scores.store import ScoreStore


@pytest.mark.slow
def test_it_answers_within_a_minute_and_goes_on(tmp_path, monkeypatch, capsys):
    began = time.monotonic()
    command = [sys.executable, "-m", "crossknn", "demo", "--live"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, cwd=tmp_path, **pipes)
    shown = [process.stdout.readline() for _ in range(2)]
    assert time.monotonic() - began < 60
    assert shown[1].startswith("  1  "), shown
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130, said
    assert said.splitlines()[0].startswith("about "), said
    assert "Stop it with Ctrl-C at any time" in said.splitlines()[0]
    monkeypatch.chdir(tmp_path)
    store = ScoreStore("crossknn-demo/sample-scores.db")
    before = len(store)
    assert before >= 50
    assert run(["demo", "--live", "--budget", "10"]) == 0
    out = capsys.readouterr().out
    assert "diagnosis, R@20 of 60 judged queries: dense, kriging" in out
    assert out.count("10 cross-encoder calls") + out.count("0 cross-encoder calls") >= 3
    assert len(store) > before
