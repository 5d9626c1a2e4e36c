"""BM25, TF-IDF and LSA against their definitions, written out densely."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossknn.errors import InputError
from crossknn.retrievers import lexical
from crossknn.retrievers.base import Retriever
from crossknn.retrievers.lexical import BM25, LSA, TFIDF
from crossknn.types import NO_ITEM, Queries

TEXTS = [
    "The cat sat on the mat.",
    "A cat and another cat, and a dog",
    "dogs bark at night",
    "Nothing in common here",
    "cat dog bird cat cat",
]


def bm25_by_definition(query, texts, k1=1.5, b=0.75):
    tokenize = lexical.words
    tokens = [tokenize(text) for text in texts]
    mean = sum(map(len, tokens)) / len(tokens)
    scores = np.zeros(len(texts))
    for word in tokenize(query):
        df = sum(word in t for t in tokens)
        idf = math.log(1 + (len(texts) - df + 0.5) / (df + 0.5))
        for i, t in enumerate(tokens):
            tf = t.count(word)
            scores[i] += idf * tf / (tf + k1 * (1 - b + b * len(t) / mean)) if tf else 0
    return scores


def tfidf_by_definition(query, texts):
    tokenize = lexical.words
    tokens = [tokenize(text) for text in texts]
    words = sorted({word for t in tokens for word in t})
    idf = [math.log((1 + len(texts)) / (1 + sum(w in t for t in tokens))) + 1 for w in words]

    def vector(text):
        counts = Counter(tokenize(text))
        v = np.array([(1 + math.log(counts[w])) * f if w in counts else 0.0
                      for w, f in zip(words, idf, strict=True)])  # fmt: skip
        return v / (np.linalg.norm(v) or 1)

    return np.array([vector(query) @ vector(text) for text in texts])


words = st.lists(st.sampled_from(["cat", "dog", "bird", "the", "x"]), max_size=8).map(" ".join)


@settings(deadline=None, max_examples=50)
@given(st.lists(words, min_size=1, max_size=8), words)
def test_scores_are_those_of_the_definitions(texts, query):
    texts = ["cat", *texts]
    queries = Queries([query])
    assert np.allclose(
        BM25.fit(texts).scores(queries)[0], bm25_by_definition(query, texts), atol=1e-5
    )
    assert np.allclose(
        TFIDF.fit(texts).scores(queries)[0], tfidf_by_definition(query, texts), atol=1e-5
    )


@pytest.mark.parametrize("model", [BM25, TFIDF])
def test_top_is_the_sorted_scores_with_ties_by_position_and_nothing_unmatched(model):
    stage = model.fit(TEXTS * 2)
    queries = Queries(["cat dog", "xyzzy", ""])
    assert isinstance(stage, Retriever)
    found, scores = stage.top(queries, 4), stage.scores(queries)
    expected = [i for i in np.argsort(-scores[0], kind="stable") if scores[0, i] > 0]
    assert found.items[0].tolist() == expected[:4]
    assert np.allclose(found.scores[0], scores[0, expected[:4]])
    assert (found.items[1:] == NO_ITEM).all()
    assert scores.dtype == np.float32
    allowed = np.isin(np.arange(10), expected[-2:])  # filters before the cut
    assert stage.top(queries, 2, allowed).items[0].tolist() == expected[-2:]


def test_texts_without_words():
    for query in ("cat", "!"):
        assert BM25.fit(["!", "?"]).top(Queries([query]), 5).items.size == 0
    for fit in (TFIDF.fit, LSA.fit):
        with pytest.raises(InputError, match="no text holds a word"):
            fit(["!", "the"])


def test_lsa_with_all_dimensions_is_tfidf_cosine():
    model, vectors = LSA.fit(TEXTS, dimensions=100)
    inner = model.encode_queries(TEXTS) @ vectors.T
    assert np.allclose(inner, TFIDF.fit(TEXTS).scores(Queries(TEXTS)), atol=1e-4)
    assert np.allclose(model.encode_queries(TEXTS), vectors, atol=1e-4)
    assert vectors.dtype == np.float32
    assert not model.encode_queries(["xyzzy"]).any()
    assert LSA.fit(TEXTS, dimensions=2)[1].shape == (5, 2)
    assert LSA.fit(["cat"], dimensions=2)[1].shape == (1, 1)
