"""What an index has learned stays exact: for each cross-encoder its own, also after `add`."""

import numpy as np
import pytest
from faulty_server import Faulty, good
from library import Library

import crossknn as ck
from crossknn.cli.app import run
from crossknn.errors import InputError
from crossknn.fitting.anchors import collect_anchors
from crossknn.fitting.kriging import fit_prior
from crossknn.fitting.learning import FIRST_FIT, learn

WORDS = [f"word{w}" for w in range(30)]
BM25 = ("--method", "rerank(retriever=bm25)")


@pytest.fixture
def endpoint():
    server = Faulty(lambda body: [good(body)])
    yield server.url
    server.close()


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """An index folder that has learned from 30 searches with the bundled cross-encoder."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("swap")
    (folder / "items.txt").write_text("\n".join(" ".join(rng.choice(WORDS, 8)) for _ in range(60)))
    index, texts = str(folder / "i"), [" ".join(rng.choice(WORDS, 3)) for _ in range(FIRST_FIT)]
    assert run(["index", "build", str(folder / "items.txt"), index, "--encoder", "none"]) == 0
    search = ["search", index, *texts, *BM25, "--budget", "20"]
    assert run([*search, "--no-learn"]) == 0
    assert not ck.ItemIndex.load(index).artifacts
    assert run(search) == 0
    assert ck.ItemIndex.load(index).artifacts
    return index


def test_search_with_an_endpoint_after_thirty_searches(learned, endpoint, capsys):
    texts = [f"word1 word{q}" for q in range(FIRST_FIT)]
    named = ["--scorer", endpoint, "--endpoint-model", "theirs", "--budget", "20"]
    assert run(["search", learned, *texts[:2], *named]) == 0
    assert run(["search", learned, *texts[2:], *named, *BM25]) == 0
    assert "fitting the index to past searches" in capsys.readouterr().err
    index = ck.ItemIndex.load(learned)
    assert len(index.each("kriging")) == 2
    assert run(["search", learned, "word2 word3", "--budget", "20"]) == 0  # with the first again
    assert run(["search", learned, "word2", "--scorer", endpoint, "--budget", "9"]) == 0  # no name
    assert run(["fit", learned, "stored", *named[:4]]) == 0
    assert run(["index", "info", learned]) == 0
    assert "theirs" in capsys.readouterr().out


def test_serve_with_another_scorer(learned):
    from service.service_helpers import served

    with served({"i": ck.ItemIndex.load(learned)}, lambda pairs: [len(t) for _, t in pairs]) as at:
        answer = at.post("/search", json={"query": "word2 word3"})
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["results"][0]["hits"]) == 10


def test_what_was_learned_is_used_again_after_a_swap():
    library = Library()
    index = library.index()
    library.search(index, 0, FIRST_FIT, "rerank(retriever=vectors)")
    learn(index, library.scorer)
    before = library.search(index, 150, 155, "auto")
    other = ck.CallableScorer(lambda pairs: [-x for x in library.score(pairs)], "other")
    fresh = library.search(library.index(), 0, FIRST_FIT, "auto", scorer=other)
    assert library.search(index, 0, FIRST_FIT, "auto", scorer=other).hits == fresh.hits
    learn(index, other)
    assert library.search(index, 150, 155, "auto").hits == before.hits
    assert index.for_scorer(other.fingerprint).artifacts["kriging"].meta["queries"] == FIRST_FIT


def test_a_method_asked_for_by_name_that_cannot_run():
    """ADACUR reads the anchors' scores: with another's alone it says so, and auto runs."""
    library = Library()
    index = library.index()
    collect_anchors(index, library.scorer, library.texts(0, 12))
    other = ck.CallableScorer(lambda pairs: [-x for x in library.score(pairs)], "other")
    with pytest.raises(ck.InputError, match="'anchors' in the index was made with scores of the"):
        library.search(index, 20, 21, "adacur(retriever=vectors)", scorer=other)
    assert library.search(index, 20, 21, "auto", scorer=other).n_calls == 25
    collect_anchors(index, other, library.texts(0, 12))
    assert library.search(index, 20, 21, "adacur(retriever=vectors)", scorer=other).n_scored == 25
    assert library.search(index, 20, 21, "adacur(retriever=vectors)").n_scored == 25


def test_fusion_and_calibration_of_each(tmp_path):
    rng = np.random.default_rng(1)
    texts = [" ".join(rng.choice(WORDS, 6)) for _ in range(50)]
    ck.ItemIndex.build(texts, lsa=8).save(tmp_path / "i")
    asked = ck.QuerySet(*zip(*((f"q{q}", texts[q][:12]) for q in range(10)), strict=True))
    qrels = {f"q{q}": {str(ck.ItemIndex.load(tmp_path / "i").items.ids[q]): 1} for q in range(10)}
    scorers = [
        ck.CallableScorer(lambda p: [len({*q.split()} & {*t.split()}) for q, t in p], "one"),
        ck.CallableScorer(lambda p: [len(t) % 7 / 3 for _, t in p], "two"),
    ]
    for scorer in scorers:
        index = ck.ItemIndex.load(tmp_path / "i")  # as another process would
        ck.fit_fusion(index, scorer, asked)
        ck.fit_calibration(index, scorer, asked, qrels, budget=20)
    for name, scorer in zip(("one", "two"), scorers, strict=True):
        own = ck.Searcher(ck.ItemIndex.load(tmp_path / "i"), scorer)
        assert (
            own.of_scorer().artifacts["fusion"].meta["fingerprint"].startswith("callable:" + name)
        )
        assert own.search(texts[0], budget=20)[0][0].calibrated is not None
    third = ck.Searcher(ck.ItemIndex.load(tmp_path / "i"), lambda pairs: [0.0 for _ in pairs])
    assert third.fusion is None
    assert third.search(texts[0], budget=20)[0][0].calibrated is None


def test_vectors_fitted_to_each(tmp_path):
    library = Library()
    index = library.index()
    index.save(tmp_path / "i")
    other = ck.CallableScorer(lambda pairs: [-x for x in library.score(pairs)], "other")
    for scorer in (library.scorer, other):
        ck.fit(index, scorer, library.texts(0, 40), "als(sweeps=2)", per=30)
    again = ck.ItemIndex.load(tmp_path / "i", query_vectors=library.vectors_of)
    mine, theirs = (again.for_scorer(s.fingerprint).vectors["als"] for s in (library.scorer, other))
    assert not np.allclose(mine, theirs)
    assert again.for_scorer("a third").of_others == {"als"}


def test_functions_one_after_the_other():
    """A notebook tries ten functions without names in turn: none is given another's scores."""
    index = ck.ItemIndex.build(["a b", "b c", "c d"], lsa=0)
    for value in range(30):
        scorer = ck.StoredScorer(lambda pairs, v=value: [float(v)] * len(pairs), index.scores)
        found = ck.Searcher(index, scorer, "rerank").search("b", k=1, budget=3)
        assert (found[0][0].score, found.n_calls) == (float(value), 3)
        del scorer, found  # so that the next may have its place in memory


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


def test_anchors_have_no_predicted_scores_and_are_completed_by_the_new_items_alone(index):
    np.testing.assert_array_equal(index.anchors.scores, truth(index))
    ck.collect_anchors(index, ck.StoredScorer(SCORER, index.scores), QUERIES[:1])
    index.add(NEW)
    assert index.anchors is None
    assert index.added["artifacts/anchors"] == 6
    stored = index.artifacts["anchors"].arrays
    np.testing.assert_array_equal(stored["scores"], truth(index)[:, :72])
    assert "added" not in stored
    report = ck.collect_anchors(index, SCORER, QUERIES[:1])
    assert report.scored == 6 * len(QUERIES)
    np.testing.assert_array_equal(index.anchors.scores, truth(index))
    assert index.added == {}


TARGET = ck.Budget(per_query=20, target_recall=0.8)


@pytest.mark.parametrize(
    ("method", "budget"), [("anncur", 20), ("adacur", 20), ("kriging(k=3)", TARGET)]
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
