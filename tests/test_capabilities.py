"""Every capability of the changelog is where `docs/explanation/architecture.md` says: its files and commands."""

import re
from pathlib import Path

import pytest
import typer

from crossknn.cli.app import app

ROOT = Path(__file__).parent.parent
TABLE = (ROOT / "docs/explanation/architecture.md").read_text().split("## Capabilities")[1]
ROWS = re.findall(r"^\| (?!capability|---)(.+?) \| (.*?) \| ?(.*?) ?\|$", TABLE, re.MULTILINE)


def test_there_are_capabilities():
    assert len(ROWS) > 60


@pytest.mark.parametrize(("where", "command"), [row[1:] for row in ROWS], ids=[r[0] for r in ROWS])
def test_files_and_commands_exist(where, command):
    for path in re.findall(r"`(.+?)`", where):
        assert (ROOT / path).exists() or (ROOT / "src/crossknn" / path).exists(), path
    if command:
        program, *words = command.strip("`").split()
        other = {"crossknn-lab": "crossknn_lab.cli", "crossknn-train": "crossknn_train.cli"}
        own = pytest.importorskip(other[program]).app if program in other else app
        found = typer.main.get_command(own)
        for name in [word for word in words if not word.startswith("--")]:
            found = found.commands[name]
        options = {option for parameter in found.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options
