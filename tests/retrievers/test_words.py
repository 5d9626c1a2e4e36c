"""BM25 and LSA against their definitions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossknn.errors import InputError
from crossknn.retrievers.base import Retriever
from crossknn.retrievers.lexical import BM25, LSA, tfidf_of
from crossknn.retrievers.words import UNICODE
from crossknn.retrievers.words import words as words_of
from crossknn.types import NO_ITEM, Queries

TEXTS = [
    "The cat sat on the mat.",
    "A cat and another cat, and a dog",
    "dogs bark at night",
    "Nothing in common here",
    "cat dog bird cat cat",
]


def definition(query, texts, k1=1.5, b=0.75):
    """BM25 of a query with n texts (n,)."""
    split, n = [words_of(text) for text in (*texts, query)], len(texts)
    terms = sorted({word for words in split[:n] for word in words})
    counts = np.array([[words.count(term) for term in terms] for words in split])
    tf, asked = counts[:n], counts[n]
    df, lengths = (tf > 0).sum(axis=0), tf.sum(axis=1, keepdims=True)
    idf = np.log(1 + (n - df + 0.5) / (df + 0.5))
    return (idf * tf / (tf + k1 * (1 - b + b * lengths / lengths.mean()))) @ asked


words = st.lists(st.sampled_from(["cat", "dog", "bird", "the", "x"]), max_size=8).map(" ".join)


@settings(deadline=None, max_examples=50)
@given(st.lists(words, min_size=1, max_size=8), words)
def test_scores_are_those_of_the_definition(texts, query):
    texts = ["cat", *texts]
    scores = BM25.fit(texts).scores(Queries([query]))[0]
    np.testing.assert_allclose(scores, definition(query, texts), atol=1e-5)


def test_top_is_the_sorted_scores_with_ties_by_position_and_nothing_unmatched():
    stage = BM25.fit(TEXTS * 2)
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
    with pytest.raises(InputError, match="none of the texts contains a word"):
        LSA.fit(["!", "the"])


@pytest.mark.parametrize("n", [30, 300])  # fewer and more texts than words
def test_weights_and_their_decomposition_are_scikit_learns(n):
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.utils.extmath import randomized_svd

    rng = np.random.default_rng(n)
    texts = [" ".join(f"w{w}" for w in rng.zipf(1.5, 12) if w < 200) for _ in range(n)] + ["the"]
    theirs = TfidfVectorizer(analyzer=words_of, sublinear_tf=True)
    weights = theirs.fit_transform(texts)
    vocabulary, idf, ours = tfidf_of(texts, UNICODE)
    model, vectors = LSA.fit(texts, dimensions=16)
    assert vocabulary.terms == theirs.get_feature_names_out().tolist()
    np.testing.assert_allclose(idf, theirs.idf_, rtol=1e-6)
    np.testing.assert_allclose(ours.todense(), weights.todense(), rtol=1e-6)
    left, values, right = randomized_svd(weights, 16, n_iter=5, random_state=0)
    expected = (left * values)[:-1]
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(vectors[:-1], expected, atol=1e-3)
    assert not vectors[-1].any()  # a text without a word
    np.testing.assert_allclose(model.components, right.T, atol=1e-3)


def test_lsa_with_all_dimensions_is_tfidf_cosine():
    model, vectors = LSA.fit(TEXTS, dimensions=100)
    inner = model.encode_queries(TEXTS) @ vectors.T
    weights = tfidf_of(TEXTS, UNICODE)[2]
    assert np.allclose(inner, (weights @ weights.T).todense(), atol=1e-4)
    assert np.allclose(model.encode_queries(TEXTS), vectors, atol=1e-4)
    assert vectors.dtype == np.float32
    assert not model.encode_queries(["xyzzy"]).any()
    assert LSA.fit(TEXTS, dimensions=2)[1].shape == (5, 2)
    assert LSA.fit(["cat"], dimensions=2)[1].shape == (1, 1)
