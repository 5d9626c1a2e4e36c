"""Reranking of given documents: what is scored, what follows, and what is refused."""

import re
import threading
import time

import numpy as np
import pytest
from tiny_models import save_hf

import crossknn as ck

RNG = np.random.default_rng(0)
N, D = 300, 8
VECTORS = RNG.standard_normal((N, D)).astype(np.float32)
TASTE = RNG.standard_normal(D).astype(np.float32)
EXACT = VECTORS @ TASTE
TEXTS = [f"document {i} about {'abcdefgh'[i % 8]}" for i in range(N)]


def scorer(pairs):
    return [float(EXACT[int(text.split()[1])]) for _, text in pairs]


def test_without_a_budget_all_are_scored():
    answer = ck.rerank("q", TEXTS, scorer=scorer, return_documents=True, top_k=5)
    order = np.argsort(-EXACT, kind="stable")[:5].tolist()
    assert answer == [
        {"corpus_id": i, "score": pytest.approx(EXACT[i]), "text": TEXTS[i]} for i in order
    ]
    assert answer.results.n_calls == N


@pytest.mark.parametrize("given", ["vectors", "embedding", "query", "texts"])
def test_scored_documents_come_first_and_then_the_others_by_approximate_score(given):
    documents = [{"text": text, "embedding": v} for text, v in zip(TEXTS, VECTORS, strict=True)]
    query = -TASTE  # misleading, and found out
    ways = {
        "vectors": (TEXTS, {"vectors": VECTORS}),
        "embedding": (documents, {}),
        "query": (documents, {"query_vector": query}),
        "texts": (TEXTS, {}),
    }
    documents, options = ways[given]
    answer = ck.rerank("q", documents, 60, scorer=scorer, **options)
    places = [entry["corpus_id"] for entry in answer]
    scores = [entry["score"] for entry in answer]
    assert sorted(places) == list(range(N))
    assert scores == sorted(scores, reverse=True)
    assert ["predicted" in entry for entry in answer] == [False] * 60 + [True] * (N - 60)
    assert scores[:60] == pytest.approx(EXACT[places[:60]].tolist())
    assert answer.results.n_calls == 60
    if given != "texts":
        best = set(np.argsort(-EXACT)[:10].tolist())
        assert len(best & {*places[:10]}) >= 9
        assert len(best & set(range(60))) <= 4
        assert np.corrcoef(EXACT[places[60:]], -np.arange(N - 60))[0, 1] > 0.7
    assert answer == ck.rerank("q", documents, 60, scorer=scorer, **options)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("text", ["", "the same", "and the"])
@pytest.mark.parametrize("vectors", [False, True])
def test_few_and_equal_and_empty_texts(n, text, vectors):
    carried = {"vectors": np.ones((n, 2)), "query_vector": np.ones(2)} if vectors else {}
    equal = lambda pairs: [1.0] * len(pairs)  # noqa: E731
    answer = ck.rerank("q", [{"id": "same", "text": text}] * n, 1, scorer=equal, **carried)
    assert sorted(entry["corpus_id"] for entry in answer) == list(range(n))
    assert sum("predicted" not in entry for entry in answer) == n  # equal texts share a score
    assert answer.results.n_calls == 1


def test_what_cannot_be_scored_is_last():
    def faulty(pairs):
        if any(text in TEXTS[3:5] for _, text in pairs):
            raise ValueError
        return scorer(pairs)

    answer = ck.rerank("q", TEXTS[:9], scorer=faulty)
    assert [entry["corpus_id"] for entry in answer[-2:]] == [3, 4]
    assert [entry.get("predicted") for entry in answer] == [None] * 7 + [True] * 2
    assert answer[-1]["score"] < answer[-2]["score"] < answer[-3]["score"]


def test_scores_say_the_order_where_predictions_exceed_what_was_scored():
    """Tools of evaluation order a run by its scores, in single precision, and ties by id."""
    order = lambda pairs: [-float(text.split()[1]) for _, text in pairs]  # noqa: E731
    texts = [f"document {n}" for n in range(40)]
    answer = ck.rerank("document", texts[::-1], 3, scorer=order, method="rerank(retriever=order)")
    scores = np.float32([entry["score"] for entry in answer])
    assert (np.diff(scores) < 0).all()


def test_a_deadline_counts_from_the_call(monkeypatch):
    build = ck.ItemIndex.build

    def slow(*given, **options):
        time.sleep(0.3)
        return build(*given, **options)

    monkeypatch.setattr(ck.ItemIndex, "build", slow)
    answer = ck.rerank("q", TEXTS, ck.Budget(deadline=0.2), scorer=scorer)
    assert answer.results.stopped_by == "deadline"
    assert answer.results.n_calls < N == len(answer)


def test_stopped_in_between_it_answers_with_the_best_so_far():
    cancel = threading.Event()

    def slow(pairs):
        cancel.set()
        return scorer(pairs)

    answer = ck.rerank("q", TEXTS, ck.Budget(deadline=60), scorer=slow, cancel=cancel)
    assert answer.results.stopped_by == "cancelled"
    scored = sum("predicted" not in entry for entry in answer)
    assert 0 < scored < N == len(answer)


def test_the_bundled_cross_encoder_is_the_default():
    documents = [{"title": "zipfile", "text": "Extract files from an archive."}, "Sort a list."]
    answer = ck.rerank("how do I unzip", documents, return_documents=True)
    assert answer[0]["corpus_id"] == 0
    assert answer[0]["text"] == "zipfile\nExtract files from an archive."
    assert answer == ck.rerank("how do I unzip", documents, scorer="bundled", return_documents=True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"query": ["q"]}, "the query is ['q']; give one text"),
        ({"query": ""}, "empty"),
        ({"documents": "text"}, "give a list of texts or mappings"),
        ({"documents": {"text": "a"}}, "give a list of texts or mappings"),
        ({"budget": ck.Budget(target_recall=0.9)}, "target_recall needs anchor queries"),
        ({"documents": ["a", 3]}, "entry 1 is a int"),
        ({"documents": ["a", {"body": "b"}]}, "entry 1"),
        ({"documents": ["a", {"text": "b", "embedding": [1.0]}]}, "document 0 has no 'embedding'"),
        ({"documents": [{"text": "b", "embedding": [np.nan]}]}, "NaN"),
        ({"vectors": np.ones((2, 3))}, "(2, 3)"),
        ({"vectors": np.ones((3, 3)), "query_vector": np.ones(2)}, "2 dimensions"),
        ({"query_vector": np.ones(2)}, "the documents have no vectors"),
        ({"top_k": 0}, "top_k"),
    ],
)
def test_bad_input_is_one_sentence(change, said):
    given = {"query": "q", "documents": ["a", "b", "c"], "budget": 2, "scorer": scorer}
    with pytest.raises(ck.InputError, match=re.escape(said)) as error:
        ck.rerank(**given | change)
    assert "\n" not in str(error.value)


@pytest.mark.torch
def test_it_answers_as_sentence_transformers_does(tmp_path):
    library = pytest.importorskip("sentence_transformers")
    from torch.nn import Identity

    folder = save_hf(tmp_path, "BertForSequenceClassification", num_labels=1)
    texts = ["seal", "old crab in the sand", "tern", "red oak", "elm"]
    for options in ({}, {"top_k": 2}, {"return_documents": True}):
        theirs = library.CrossEncoder(str(folder), device="cpu").rank(
            "the red oak", texts, activation_fn=Identity(), **options
        )
        ours = ck.rerank("the red oak", texts, scorer=str(folder), **options)
        for mine, other in zip(ours, theirs, strict=True):
            assert mine == {**other, "score": pytest.approx(float(other["score"]), abs=1e-4)}
            assert [*mine] == [*other]


def test_documents_are_ordered_by_their_best_passage():
    filler = "Nothing of interest stands here. " * 60
    texts = ["a needle", f"  {filler}Here is a needle with thread. {filler}", filler.upper(), ""]
    documents = [*texts[:2], {"title": "Title", "text": texts[2]}, texts[3]]
    needles = lambda pairs: [float(sum(w in t for w in ("needle", "thread"))) for _, t in pairs]  # noqa: E731
    given = {"scorer": needles, "return_documents": True}
    best, *others = ck.rerank("q", documents, passages=50, **given)
    assert (best["corpus_id"], best["score"], best["text"]) == (1, 2.0, texts[1])
    passage = best["text"][best["start"] : best["end"]]
    assert "needle with thread" in passage
    assert len(passage) < 400
    assert [other["corpus_id"] for other in others] == [0, 2, 3]
    assert [(other["start"], other["end"]) for other in others[::2]] == [(0, 8), (0, 0)]
    assert others[1]["text"] == f"Title\n{texts[2]}".strip()
    few = ck.rerank("q", documents, 2, passages=50, method="rerank(retriever=order)", **given)
    assert few.results.n_calls == 2
    assert [entry.get("predicted", False) for entry in few] == [False, False, True, True]
    plain = ck.rerank("q", documents, **given)
    assert not {"start", "end"} & {key for entry in plain for key in entry}
    vectors = {"vectors": np.eye(4)[:, :3], "query_vector": [0, 1, 0]}
    near = ck.rerank(
        "q", documents, 1, passages=50, method="rerank(retriever=vectors)", **given, **vectors
    )
    assert near[0]["corpus_id"] == 1
    assert ck.rerank("q", documents, passages=True, scorer=needles)[0]["corpus_id"] == 1
