"""The filter of the service's page, which an address may bring: read in linear time."""

import json
import shutil
import subprocess
import time
from importlib.resources import files

import pytest

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="needs node")
BLANKS = " " * 400_000


def parsed(texts):
    """What the page's own function makes of each text: a filter, or the sentence of its refusal."""
    script = files("crossknn.service").joinpath("page/page.js").read_text(encoding="utf-8")
    start = script.index("function filterOf(")
    code = (
        "class Refused extends Error {}\n"
        + script[start : script.index("\n}\n", start) + 3]
        + "const texts = JSON.parse(require('fs').readFileSync(0));\n"
        "const read = (t) => { try { return filterOf(t); } catch (e) { return e.message; } };\n"
        "console.log(JSON.stringify(texts.map(read)));"
    )
    how = {"capture_output": True, "text": True, "timeout": 60, "check": True}
    return json.loads(subprocess.run([NODE, "-e", code], input=json.dumps(texts), **how).stdout)


def test_filters_are_read_and_long_ones_do_not_freeze_the_tab():
    """40,000 blanks, also from `?filter=`, kept the page busy for seconds, and 400,000 for ever."""
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
    refused = ["lang", "= en", "lang =", "lang = en,", "{lang"]
    hard = [f"a{BLANKS}", f"a{BLANKS}b", f"a = b{BLANKS}c", f"a{'=' * 400_000}", "a =" * 100_000]
    began = time.monotonic()
    found = parsed([*given, *refused, *hard, f"a{BLANKS}={BLANKS}b{BLANKS}"])
    assert time.monotonic() - began < 10
    assert found[: len(given)] == list(given.values())
    for said in found[len(given) :][: len(refused)]:
        assert "write it as  lang = en, year >= 2020" in said
