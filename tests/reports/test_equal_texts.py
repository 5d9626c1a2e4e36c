"""Equal texts cost one call, and share their score; all of them may be answered."""

import numpy as np
import pytest

import crossknn as ck

SAME, OTHERS = "sort a list of numbers", ["zip a file", "sort names", "lock a list", "open a port"]


class Counted:
    """Words in common, and every text that was scored."""

    def __init__(self):
        self.texts = []

    def __call__(self, pairs):
        self.texts += [text for _, text in pairs]
        return [len({*q.split()} & {*t.split()}) + len(t) / 100 for q, t in pairs]


@pytest.mark.parametrize("method", [None, "kriging", "rerank(retriever=bm25)", "exact", "axn"])
def test_rerank_spends_no_call_on_a_copy(method):
    scorer = Counted()
    found = ck.rerank("sort a list", [SAME] * 6 + OTHERS, 4, scorer=scorer, method=method)
    assert len(scorer.texts) == len({*scorer.texts}) == (5 if method == "exact" else 4)
    assert [hit["corpus_id"] for hit in found[:6]] == [0, 1, 2, 3, 4, 5]
    assert len({hit["score"] for hit in found[:6]}) == 1
    assert not any(hit.get("predicted") for hit in found[:6])
    assert sorted(hit["corpus_id"] for hit in found) == list(range(10))


def test_a_search_answers_all_copies_in_order_of_position():
    texts = [OTHERS[0], SAME, OTHERS[1], SAME, OTHERS[2], SAME, OTHERS[0]]
    items = [{"id": f"d{i}", "text": text} for i, text in enumerate(texts)]
    scorer = Counted()
    search = ck.Searcher(ck.ItemIndex.build(items), scorer).search
    found = search("sort a list", k=4, budget=4)
    assert [hit.id for hit in found[0][:3]] == ["d1", "d3", "d5"]
    assert found.n_calls == len({*scorer.texts}) == 4
    assert len(found[0]) == 4
    assert [hit.id for hit in search("sort a list", k=2, budget=2)[0]] == ["d1", "d3"]
    assert [hit.id for hit in search("zip", k=2, budget=4)[0]] == ["d0", "d6"]


def test_copies_that_a_filter_or_a_deletion_leaves_out_are_not_answered():
    items = [{"id": f"d{i}", "text": SAME, "lang": "en" if i % 2 else "de"} for i in range(6)]
    items += [{"id": "other", "text": OTHERS[0], "lang": "en"}]
    index = ck.ItemIndex.build(items)
    index.delete(["d1"])
    scorer = Counted()
    found = ck.Searcher(index, scorer).search("a list", k=5, budget=5, filter={"lang": "en"})
    assert [hit.id for hit in found[0]] == ["d3", "d5", "other"]
    assert len(scorer.texts) == 2


def test_titles_make_other_texts_and_added_items_join_their_copies():
    titled = (("a", "one"), ("b", "two"), ("c", "one"))
    index = ck.ItemIndex.build([{"id": i, "title": t, "text": SAME} for i, t in titled])
    index.add([{"id": "new", "title": "two", "text": SAME}])
    scorer = Counted()
    found = ck.Searcher(index, scorer).search("two", k=4, budget=4)
    assert len(scorer.texts) == 2
    assert [hit.id for hit in found[0]] == ["b", "new", "a", "c"]
    assert found[0][0].score == found[0][1].score


def test_a_score_as_a_cut_and_several_queries():
    index = ck.ItemIndex.build([SAME, OTHERS[0], SAME, OTHERS[3]])
    found = ck.Searcher(index, Counted()).search(["numbers", "zip"], budget=3, min_score=1.0)
    assert [[hit.position for hit in hits] for hits in found] == [[0, 2], [1]]


def test_predicted_copies_share_their_prediction_too():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(8, 4)).astype(np.float32)
    vectors[5] = vectors[4]
    texts = [f"text {i}" for i in range(8)]
    texts[5] = texts[4]
    index = ck.ItemIndex.build(texts, vectors=vectors, query_vectors=lambda q: vectors[:1], lsa=0)
    scorer = Counted()
    found = ck.Searcher(index, scorer, "rerank(retriever=vectors)").search("text", k=8, budget=2)
    places = [hit.position for hit in found[0]]
    assert sorted(places) == list(range(8))
    assert abs(places.index(4) - places.index(5)) == 1


def test_a_matrix_of_scores_has_one_for_each_item():
    index = ck.ItemIndex.build(["same", "same", "other"])
    scores = np.array([[1.0, 3.0, 2.0]], np.float32)
    found = ck.Searcher(index, scores, "exact").search("q", k=3, budget=3)
    assert [hit.score for hit in found[0]] == [3.0, 2.0, 1.0]
