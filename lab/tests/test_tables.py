"""Tables of the documentation say what the results say."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks/tables.py"
PAGES = runpy.run_path(str(SCRIPT))["pages"]()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_the_figures_of_its_results(page):
    assert page.read_text() == PAGES[page], "run  python lab/benchmarks/tables.py"
