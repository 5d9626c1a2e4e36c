"""What holds for every method holds for the rivals."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from contracts.test_every_method import (  # noqa: F401
    pytest_generate_tests,
    test_a_full_budget_is_exact_search,
    test_a_query_does_not_depend_on_its_batch,
    test_permuting_the_items_permutes_the_answer,
    test_the_budget_is_spent_exactly_and_nothing_twice,
)
from contracts.test_every_method_on_text import (  # noqa: F401
    test_a_filter_that_allows_nothing_is_an_empty_answer,
    test_the_budget_is_spent_on_exact_scores_and_a_copy_answers_the_same,
)
from contracts.test_nothing_shared import (  # noqa: F401
    test_a_plan_reads_the_exact_scores_that_it_says,
)
from golden.cases import with_a_copy

from crossknn.spec import parse

SPECS = (
    "fixeditem(anchor_share=0.5)",
    "itemcur(anchor_share=0.5)",
    "feedback(retriever=dense)",
    "feedback(retriever=hybrid, retriever_share=0.3, rounds=2, b=0.5, normalize=first)",
    "refit(retriever=hybrid, steps=5)",
    "acurank(retriever=dense, batch=6)",
    "acurank(retriever=hybrid, batch=5, shortlist=15)",
    "reformir(retriever=hybrid, batch=6)",
    "reformir(retriever=bm25, reformulations=2, feedback=3, depth=10, batch=5)",
    "gar(retriever=dense, neighbours=4, batch=5)",
    "gar(retriever=hybrid, neighbours=6, batch=7, affinity=set)",
    "gar(retriever=dense, graph=scores, neighbours=4, batch=5)",
    "ladr(retriever=bm25, neighbours=4, depth=5, batch=5)",
    "ladr(retriever=dense, neighbours=4, mode=proactive)",
    "greedy(retriever=hybrid, neighbours=4, batch=5)",
    "feedback(retriever=dense, normalize=none)",
    "refit(retriever=dense, normalize=first)",
)
"""One spec at least of every rival and of every option that changes the flow."""


@pytest.fixture(params=["callable", "fitted"])
def setting(request):
    """No method sees which scorer there is: the bundled one has scored for the methods' contracts."""
    return with_a_copy(request.param)


def test_the_suite_covers_every_rival():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert {parse(spec).name for spec in SPECS} == {*project["entry-points"]["crossknn.methods"]}
