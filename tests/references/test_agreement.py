"""Every method against an implementation written from its paper alone, query by query."""

import pytest
from threadpoolctl import threadpool_limits

from references import kriging
from references.agreement import MATRICES, assert_agrees

SPECS = """
rerank(retriever=dense)
rerank(retriever=hybrid(bm25, dense))
anncur(anchor_share=0.5, center=none)
anncur(anchor_share=0.2, retriever=dense, center=auto, rcond=0.01)
adacur(retriever=dense, rounds=R, center=none)
adacur(retriever=bm25, rounds=R, center=auto, rcond=0.03)
adacur(retriever=dense, rounds=R, anchor_share=0.5, center=none)
axn(vectors=dense, retriever=dense, rounds=R, blend=0.0, normalize=none)
axn(vectors=dense, retriever=dense, rounds=R, blend=0.0, normalize=anchors)
axn(vectors=dense, retriever=bm25, rounds=R, blend=0.3, normalize=first)
axn(vectors=dense, retriever=hybrid(bm25, dense), rounds=R, blend=0.5, normalize=anchors, rcond=0.1)
axn(vectors=dense, retriever=dense, rounds=R, ridge=0.3)
tour(vectors=dense, retriever=dense, rounds=R, loss=kl, lr=1.0, normalize=none)
tour(vectors=dense, retriever=dense, rounds=R, loss=kl, lr=3.0, normalize=anchors)
tour(vectors=dense, retriever=bm25, rounds=R, loss=mse, lr=0.1, normalize=none)
kriging(vectors=dense, retriever=dense, mean=hybrid(bm25, dense), rounds=R)
kriging(vectors=dense, retriever=hybrid(bm25, dense), mean=dense, rounds=R)
kriging(vectors=dense, retriever=dense, mean=hybrid(bm25, dense), rounds=R, use_anchors=false)
kriging(vectors=dense, retriever=bm25, mean=dense, rounds=R, use_anchors=false)
""".strip().splitlines()
LEARNED: dict[tuple[int, int, int], kriging.Lesson] = {}


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """Small matrices: threads of the linear algebra would wait for each other. What kriging's
    reference learns from the same anchors is learned once."""
    learn = kriging.learn

    def once(problem, rank):
        key = (id(problem.anchor_scores), len(problem.anchor_trends), rank)
        if key not in LEARNED:
            LEARNED[key] = learn(problem, rank)
        return LEARNED[key]

    monkeypatch.setattr(kriging, "learn", once)
    with threadpool_limits(1):
        yield


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("spec", SPECS)
def test_a_method_scores_what_its_reference_scores(name, spec):
    assert_agrees(name, spec)
