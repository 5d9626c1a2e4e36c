"""What is drawn by chance: its distribution over many seeds against the reference's."""

import numpy as np
import pytest
from synthetic import matrix

from crossknn.methods import parse_method
from crossknn.search.loop import Search
from references import cur
from references.problem import Batch, Problem

DRAWS = 2000
SIZE = 4


def observed_problem(data):
    """Test query 0 of a matrix after a first batch by the dual encoder."""
    row = data.n_anchors
    retriever = (data.dense_items @ data.dense_queries[row]).astype(np.float64)
    problem = Problem(retriever=retriever, anchor_scores=data.scores[:row].astype(np.float64))
    items = np.argsort(-retriever, kind="stable")[:SIZE]
    return problem, [Batch(items, data.scores[row][items].astype(np.float64))]


def second_batches(data):
    """What many seeds score second, (draws, SIZE), in the order of picking."""
    index, queries, scores = data.rows(0, 1)
    picked = []
    for seed in range(DRAWS):
        spec = "adacur(retriever=dense, rounds=3, sample=softmax, center=none)"
        search = Search(parse_method(spec).plan(index, 3 * SIZE, seed), queries, index.n)
        for _ in range(2):
            pairs = search.ask()
            search.tell(pairs, scores[pairs.query, pairs.item])
        picked.append(search.picks().items[0, SIZE : 2 * SIZE])
    return np.array(picked)


def assert_shares_same(found, expected, n):
    """Shares of draws that items are in, (draws, size) each: five standard errors apart at most."""
    one, other = (np.bincount(np.ravel(d), minlength=n) / len(d) for d in (found, expected))
    errors = np.sqrt(other * (1 - other) * (1 / len(found) + 1 / len(expected)))
    assert (np.abs(one - other) <= 5 * errors + 2e-3).all()


def assert_same(counts, expected):
    """Chi-square, with the cells that expect few drawn together; fixed seeds: it cannot flicker."""
    few = expected < 5
    seen = np.append(counts[~few], counts[few].sum())
    due = np.append(expected[~few], expected[few].sum())
    there = due > 0
    assert seen[~there].sum() == 0
    if there.sum() < 2:
        return
    from scipy.stats import chisquare  # a second to import

    assert chisquare(seen[there], due[there] * seen.sum() / due.sum()).pvalue > 0.01


@pytest.mark.slow
def test_adacur_draws_as_the_reference_does():
    data = matrix(n=24, anchors=10, tests=2, seed=5)
    problem, batches = observed_problem(data)
    picked = second_batches(data)
    retriever = np.bincount(picked[:, 0], minlength=24)
    scored, logits = batches[0].items, cur.logits(problem, batches)
    assert_same(retriever, DRAWS * cur.masked_softmax(logits, scored))
    rng = np.random.default_rng(0)
    drawn = [cur.draw(logits, scored, SIZE, rng) for _ in range(4000)]
    assert_shares_same(picked, drawn, 24)
