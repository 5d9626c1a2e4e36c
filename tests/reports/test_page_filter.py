"""The filter of the service's page, which an address may bring: read in linear time."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from importlib.resources import files

import pytest

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="needs node")


def parsed(texts):
    """What the page's own function makes of each text: a filter, or the sentence of its refusal."""
    script = files("crossknn.service").joinpath("page/page.js").read_text(encoding="utf-8")
    start = script.index("function filterOf(")
    function = script[start : script.index("\n}\n", start) + 3]
    code = (
        "class Refused extends Error {}\n"
        + function
        + "const texts = JSON.parse(require('fs').readFileSync(0));\n"
        "const read = (t) => { try { return filterOf(t); } catch (e) { return e.message; } };\n"
        "console.log(JSON.stringify(texts.map(read)));"
    )
    done = subprocess.run(
        [NODE, "-e", code], input=json.dumps(texts), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_what_filters_say():
    """Conditions, texts in quotes, JSON, and what is no condition."""
    given = {
        "lang = en": {"lang": "en"},
        "year >= 2010": {"year": {"gte": 2010}},
        "year<2036": {"year": {"lt": 2036}},
        "lang != de": {"lang": {"not": "de"}},
        "open = true": {"open": True},
        'year = "2010"': {"year": "2010"},
        "a b = c = d": {"a b": "c = d"},
        "a = 1, b > 2": {"not": {"any": [{"not": {"a": 1}}, {"not": {"b": {"gt": 2}}}]}},
        '{"lang": ["en"]}': {"lang": ["en"]},
        "  ": None,
    }
    assert parsed(list(given)) == list(given.values())
    for said in parsed(["lang", "= en", "lang =", "lang = en,", "{lang"]):
        assert "write it as  lang = en, year >= 2020" in said


def test_long_filters_do_not_freeze_the_tab():
    """40,000 blanks, also from `?filter=`, kept the page busy for seconds, and 400,000 for ever."""
    blanks = " " * 400_000
    hard = [f"a{blanks}", f"a{blanks}b", f"a = b{blanks}c", f"a{'=' * 400_000}", "a =" * 100_000]
    began = time.monotonic()
    assert len(parsed([*hard, f"a{blanks}={blanks}b{blanks}"])) == 6
    assert time.monotonic() - began < 10
