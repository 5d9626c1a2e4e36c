"""Methods of other packages: entry points of the group `crossknn.methods`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from crossknn import SpecError, parse_method, parse_methods
from crossknn.extend import Method
from crossknn.methods import PLUGINS, _plugins

MODULE = """
from dataclasses import dataclass
from crossknn.extend import Method, option

@dataclass(frozen=True, kw_only=True)
class Own(Method):
    name = "own-method"
    rounds: int = option(5, least=1)

    def plan(self, index, budget, seed):
        raise NotImplementedError

class Other(Own):
    pass
"""
POINTS = {
    "own-method": "own_methods:Own",
    "renamed": "own_methods:Own",
    "no-class": "own_methods:MODULE",
    "no-module": "own_methods_that_are_not_here:Own",
    "text": "json:__name__",
    "rerank": "own_methods_that_are_not_here:Own",
}


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A distribution as pip leaves it: a module, and its metadata beside it."""
    (tmp_path / "own_methods.py").write_text(MODULE)
    metadata = tmp_path / "own_methods-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: own-methods\nVersion: 1.0\n")
    points = "\n".join(f"{name} = {value}" for name, value in POINTS.items())
    (metadata / "entry_points.txt").write_text(f"[{PLUGINS}]\n{points}\n")
    monkeypatch.syspath_prepend(tmp_path)
    _plugins.cache_clear()
    yield tmp_path
    sys.modules.pop("own_methods", None)
    _plugins.cache_clear()


def test_a_spec_finds_the_method_of_an_installed_package(installed):
    method = parse_method("own-method(rounds=3)")
    assert isinstance(method, Method)
    assert (str(method), method.rounds) == ("own-method(rounds=3)", 3)
    assert list(parse_methods("axn, own-method")) == ["axn", "own-method"]


def test_its_options_are_checked_as_ours_are(installed):
    with pytest.raises(SpecError, match="has no option 'round': did you mean rounds"):
        parse_method("own-method(round=3)")
    with pytest.raises(SpecError, match="rounds must be 1 or more"):
        parse_method("own-method(rounds=0)")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "renamed",
            "own_methods:Own must be a subclass of crossknn.extend.Method whose name is 'renamed'",
        ),
        ("no-class", "'no-class' .* cannot be loaded: AttributeError: .*MODULE"),
        ("no-module", "'no-module' .* cannot be loaded: ModuleNotFoundError: No module named"),
        ("text", "'text': json:__name__ must be a subclass of crossknn.extend.Method"),
        ("own-methods", "unknown method 'own-methods': did you mean own-method"),
    ],
)
def test_a_bad_plug_in_is_one_sentence(installed, name, said):
    with pytest.raises(SpecError, match=said) as error:
        parse_method(name)
    assert "\n" not in str(error.value)


def test_a_built_in_method_cannot_be_replaced_and_costs_no_look_at_packages(installed):
    code = """
import crossknn.methods, importlib.metadata
def refuse(**_): raise AssertionError("entry points were read")
crossknn.methods.entry_points = refuse
for spec in ("auto", "rerank", "axn(rounds=2)", "cmc"):
    crossknn.methods.parse_method(spec)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
