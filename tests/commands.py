"""Runs a command of `crossknn` or of `crossknn-lab`, whichever has it."""

from __future__ import annotations

from crossknn.cli import app
from crossknn_lab import cli as lab

LAB = frozenset(("analyze", "convert", "replay", "report", "reproduce", "sweep"))


def run(arguments: list[str]) -> int:
    """The exit code."""
    return (lab if arguments[0] in LAB else app).run(arguments)
