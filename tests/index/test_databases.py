"""A search over items in a database, beside the same items in memory."""

import numpy as np
import pytest
from database_helpers import PAYLOADS, VECTORS, D, N

import crossknn as ck
from crossknn.types import NO_ITEM

pytestmark = pytest.mark.filterwarnings("ignore:Local mode performs exact")


def best(query, count, free):
    products = np.where(free, VECTORS @ query, -np.inf)
    order = np.argsort(-products, kind="stable")[:count]
    return order, products[order]


@pytest.mark.parametrize("allowed", [1.0, 0.9, 0.01, 0.0])
def test_top_is_that_of_all_inner_products(store, allowed):
    rng = np.random.default_rng(1)
    queries, mask = rng.normal(size=(3, D)).astype(np.float32), rng.random(N) < allowed
    exclude = np.array([best(query, 40, mask)[0][::3][:10] for query in queries])
    exclude = np.pad(exclude, ((0, 0), (0, 2)), constant_values=NO_ITEM)
    found = store.top(queries, 50, exclude, None if allowed == 1 else mask)
    for q, query in enumerate(queries):
        free = mask & ~np.isin(np.arange(N), exclude[q])
        items, products = best(query, min(50, free.sum()), free)
        kept = found.items[q] != NO_ITEM
        assert found.items[q][kept].tolist() == items.tolist()
        np.testing.assert_allclose(found.scores[q][kept], products, rtol=1e-4, atol=1e-4)


def test_what_is_read_is_what_was_put(store):
    asked = np.array([[N - 1, 5], [0, 5]])
    np.testing.assert_allclose(store.vectors(asked), VECTORS[asked], rtol=1e-6)
    np.testing.assert_allclose(np.asarray(store), VECTORS, rtol=1e-6)
    assert store.records([N - 1, 0]) == [PAYLOADS[N - 1], PAYLOADS[0]]
    assert [store.id(i) for i in (0, 1)] == [0, 3]
    last = store.id(N - 1)
    assert store.positions([4, last, 3]).tolist() == [NO_ITEM, N - 1, 1]


@pytest.mark.parametrize(
    ("spec", "whole"),
    [
        *(("axn(rounds=4)", 0), ("axn(blend=0.5)", 0), ("tour", 0), ("rerank", 0)),
        *(("kriging(rounds=4,shortlist=300)", 0), ("gp(shortlist=300)", 0)),
        *(("kriging(rounds=4)", N), ("gp", N), ("auto", N)),
    ],
)
def test_a_search_picks_the_same_items_as_one_in_memory(store, spec, whole, monkeypatch):
    monkeypatch.setattr(store, "whole", whole)
    rng = np.random.default_rng(3)
    asked = {f"query {i}": rng.normal(size=D).astype(np.float32) for i in range(3)}
    exact = {text: VECTORS @ (v + rng.normal(size=D) / 2) for text, v in asked.items()}

    def encode(texts):
        return np.array([asked[text] for text in texts])

    def score(pairs):
        return [float(exact[query][int(text.split()[1])]) for query, text in pairs]

    texts = [payload["body"] for payload in PAYLOADS]
    memory = ck.ItemIndex.build(texts, vectors=VECTORS, query_vectors=encode, bm25=False)
    over = ck.ItemIndex.over(store, "body", query_vectors=encode)
    found = [
        ck.Searcher(index, score, spec).search(
            [*asked], k=20, budget=60, trace=True, filter=allowed
        )
        for index, allowed in ((memory, np.arange(N) % 7 < 5), (over, {"part": {"lt": 5}}))
    ]
    for one, two in zip(found[0].trace, found[1].trace, strict=True):
        assert {hit.position for hit in one} == {hit.position for hit in two}
    assert [hit.text for hit in found[0][0]] == [hit.text for hit in found[1][0]]
    hit = found[1][0][0]
    place = hit.position
    assert (hit.id, hit.extra["tags"]) == (str(store.id(place)), [f"t{place % 3}"])
