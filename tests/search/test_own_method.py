"""The page `docs/how-to/own-method.md`: its code runs, and its method does what every method does."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from golden.cases import corpus, overlap

import crossknn as ck

PAGE = Path(__file__).parents[2] / "docs/how-to/own-method.md"


@pytest.fixture(scope="module")
def page():
    """The names that the page's code defines, and those that it needs."""
    names = {"index": ck.ItemIndex.build(corpus()[:60], encoder="bundled"), "scorer": overlap}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)[
        :2
    ]:  # test_pages runs all
        exec(block, names)
    return names


def test_the_page_searches_within_its_budget(page):
    results = page["results"]
    assert (results.n_calls, results.stopped_by, len(results[0])) == (25, "budget", 5)
    assert {hit.round for hit in results.trace[0]} == {1, 2, 3, 4, 5}


def test_it_finds_what_exact_search_finds_and_respects_a_filter(page):
    search = ck.Searcher(page["index"], page["scorer"], page["Rocchio"](rounds=3))
    exact = search.search("read the file", k=1, budget=30, method="exact")
    found = search.search("read the file", k=1, budget=8)
    assert found[0][0].id == exact[0][0].id
    allowed = page["index"].items.ids[::3]
    filtered = search.search("read the file", k=5, budget=5, filter=allowed)
    assert {hit.id for hit in filtered[0]} <= set(allowed)


def test_a_plan_beyond_the_budget_and_predictions_of_nan_are_refused(page):
    index, scorer, mine = page["index"], page["scorer"], page["Rocchio"]

    class Greedy(mine):
        name = "greedy-one"

        def plan(self, index, budget, seed):
            return replace(super().plan(index, budget, seed), batches=(2 * budget,))

    class Empty(page["MovedQueries"]):
        def predict(self, state, items=None):
            mean = super().predict(state, items).mean
            return ck.extend.Prediction(np.full_like(mean, np.nan))

    class Blind(mine):
        name = "blind"

        def plan(self, index, budget, seed):
            predictor = Empty(index, "dense", self.n_best)
            return replace(super().plan(index, budget, seed), predictor=predictor)

    for method, said in (
        (Greedy(), "the plan of 'greedy-one' scores 50 pairs of a query, more than the budget of"),
        (Blind(), r"Empty predicts NaN for .* items that may be scored"),
    ):
        with pytest.raises(ck.InputError, match=said):
            ck.Searcher(index, scorer, method).search("read the file", k=1, budget=25)
