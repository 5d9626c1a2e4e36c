"""Rivals that move the query's vector, in the limit; and what rivals refuse."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synthetic import aligned_matrix, matrix, run

from crossknn.errors import InputError


@pytest.mark.parametrize(
    ("spec", "other"),
    [
        ("feedback(retriever=dense, c=0)", "rerank(retriever=dense)"),
        ("refit(retriever=dense, lr=1e-9)", "rerank(retriever=dense)"),
        (
            "refit(retriever=dense, retriever_share=0.5, rounds=1, steps=1, lr=0.7, normalize=none)",
            "tour(retriever=dense, rounds=2, loss=kl, lr=0.7)",
        ),
    ],
)
def test_feedback_in_the_limit(spec, other):
    items, expected = (run(s, matrix(), 20).picks().items for s in (spec, other))
    assert items.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("fixeditem", "fixeditem needs item x item scores"),
        ("itemcur", "itemcur needs item x item scores"),
        ("feedback(retriever=bm25, vectors=cur)", "feedback.* needs query vectors, but .* 'cur'"),
        ("refit(retriever=bm25, vectors=cur)", "refit.* needs query vectors, but .* 'cur'"),
        ("feedback(b=-1)", "b must be 0 or more"),
        ("feedback(retriever_share=1.5)", "retriever_share must lie between 0 and 1"),
        ("refit(lr=0)", "lr must be above 0"),
        ("refit(steps=0)", "steps must be 1 or more"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_scored(spec, words):
    with pytest.raises(InputError, match=words):
        run(spec, replace(aligned_matrix(), artifacts={}), 10)
