"""Wrong input, some hundred kinds: one sentence each, never a traceback, and nothing hangs."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from hostile import calls, command_lines, make_files

from crossknn.cli.app import run
from crossknn.errors import CrossknnError

SECONDS = 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("hostile"))
        make_files()
        yield


@pytest.mark.slow
@pytest.mark.parametrize("arguments", list(command_lines()))
def test_the_command_line_says_one_sentence(folder, capsys, arguments):
    began, code = time.perf_counter(), run(arguments)
    said = capsys.readouterr().err.strip()
    last = said.splitlines()[-1]
    assert 1 <= code <= 6
    assert last.startswith("crossknn: ")
    assert not any(word in said for word in ("Traceback", "secret-word"))
    assert len(last) < 12_000
    assert not any(ord(c) < 32 for c in last)
    assert time.perf_counter() - began < SECONDS


def test_python_raises_one_error_with_a_sentence(folder):
    wrong, made = [], list(calls())
    for name, call in made:
        began = time.perf_counter()
        try:
            call()
        except CrossknnError as error:
            if not str(error).strip() or "\n" in str(error) or "secret-word" in str(error):
                wrong.append(f"{name}: said {str(error)[:200]!r}")
        except Exception as error:
            wrong.append(f"{name}: raised {type(error).__name__}: {str(error)[:150]}")
        else:
            wrong.append(f"{name}: raised nothing")
        if time.perf_counter() - began > SECONDS:
            wrong.append(f"{name}: took too long")
    assert not wrong, "\n".join(wrong)
    assert len(made) >= 300
