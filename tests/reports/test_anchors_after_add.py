"""Anchors are exact or they are not anchors: after `add` they are stale until collected again."""

import numpy as np
import pytest

import crossknn as ck
from crossknn.errors import InputError
from crossknn.fitting.kriging import fit_prior

TOPICS = ("archives", "threads", "files", "strings", "queues", "dates")
TEXTS = [f"part {i} on {TOPICS[i % 6]} and {TOPICS[i // 6 % 6]}" for i in range(72)]
QUERIES = [f"about {one} or {two}" for one in TOPICS for two in TOPICS[:2]]
NEW = [{"id": f"n{i}", "text": f"a new part on {TOPICS[i % 6]}"} for i in range(6)]


def exact(pairs):
    return [3.0 * len({*q.split()} & {*t.split()}) + len(t) / 50 for q, t in pairs]


SCORER = ck.CallableScorer(exact, "exact")


@pytest.fixture(params=["memory", "folder"])
def index(request, tmp_path):
    made = ck.ItemIndex.build([{"id": f"d{i}", "text": text} for i, text in enumerate(TEXTS)])
    ck.collect_anchors(made, SCORER, QUERIES)
    if request.param == "folder":
        made.save(tmp_path / "index")
        made = ck.ItemIndex.load(tmp_path / "index")
    return made


def truth(index, queries=QUERIES):
    return np.array([exact([(q, t) for t in index.items.texts]) for q in queries], np.float32)


def test_anchors_have_no_predicted_scores(index):
    np.testing.assert_array_equal(index.anchors.scores, truth(index))
    index.add(NEW)
    assert index.anchors is None
    assert index.added["artifacts/anchors"] == 6
    stored = index.artifacts["anchors"].arrays
    np.testing.assert_array_equal(stored["scores"], truth(index)[:, :72])
    assert "added" not in stored


def test_collecting_again_scores_the_new_items_alone(index):
    ck.collect_anchors(index, ck.StoredScorer(SCORER, index.scores), QUERIES[:1])
    index.add(NEW)
    report = ck.collect_anchors(index, SCORER, QUERIES[:1])
    assert report.scored == 6 * len(QUERIES)
    np.testing.assert_array_equal(index.anchors.scores, truth(index))
    assert index.added == {}


@pytest.mark.parametrize(
    ("method", "budget"),
    [
        ("anncur", 20),
        ("adacur", 20),
        ("kriging(k=3)", ck.Budget(per_query=20, target_recall=0.8)),
    ],
)
def test_what_needs_anchors_says_that_they_are_stale(index, method, budget):
    search = ck.Searcher(index, SCORER, method).search
    assert len(search("about files", k=3, budget=budget)[0]) == 3
    index.add(NEW)
    with pytest.raises(InputError, match=r"lack 6 items added later.*crossknn collect INDEX"):
        search("about files", k=3, budget=budget)
    with pytest.raises(InputError, match="lack 6 items added later"):
        fit_prior(index)
    ck.collect_anchors(index, SCORER, QUERIES[:1])
    assert len(search("about files", k=3, budget=budget)[0]) == 3


def test_the_default_method_goes_on_meanwhile(index):
    search = ck.Searcher(index, SCORER).search
    before = search("about queues", k=5, budget=30)
    index.add([*NEW, {"id": "best", "text": "about queues or queues"}])
    found = search("about queues", k=5, budget=30)
    assert found[0][0].id == "best"
    assert found.n_scored == before.n_scored == 30
    assert [hit.score for hit in found[0]] == np.float32(
        exact([("about queues", hit.text) for hit in found[0]])
    ).tolist()
    assert index.added == {"artifacts/anchors": 7, "artifacts/kriging": 7}
    assert ck.Kriging().prior(index) is not None


def test_deleting_what_was_added_makes_them_whole_again(index):
    index.add(NEW)
    index.delete([item["id"] for item in NEW] + ["d3"])
    assert index.anchors is None
    index.compact()
    np.testing.assert_array_equal(index.anchors.scores, truth(index))
