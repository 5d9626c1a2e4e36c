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

CODES = {1, 2, 3, 4, 5, 6}
SECONDS = 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("hostile"))
        make_files()
        yield


def problem_of(arguments, capsys):
    """What is wrong with the answer to these arguments; None if nothing is."""
    began = time.perf_counter()
    try:
        code = run(arguments)
    except BaseException as error:
        capsys.readouterr()
        return f"raised {type(error).__name__}: {error}"[:200]
    said = capsys.readouterr().err.strip()
    if code not in CODES:
        return f"ended with {code}: {said[:100]}"
    last = said.splitlines()[-1] if said else ""
    if not last.startswith("crossknn: ") or "Traceback" in said:
        return f"said {said[-200:]!r}"
    if len(last) > 12_000 or "secret-word" in said or any(ord(c) < 32 for c in last):
        return f"said {last[:200]!r}"
    if time.perf_counter() - began > SECONDS:
        return "took too long"
    return None


@pytest.mark.slow
def test_the_command_line_says_one_sentence(folder, capsys):
    found = {str(a)[:300]: problem_of(a, capsys) for a in command_lines()}
    wrong = [f"{arguments}: {problem}" for arguments, problem in found.items() if problem]
    assert not wrong, "\n".join(wrong)
    assert len(found) >= 300


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
