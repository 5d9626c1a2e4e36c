"""Inner products in any precision, without a copy of the items."""

import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_info, threadpool_limits

from crossknn import linalg
from crossknn.linalg import inner, one_thread
from crossknn.retrievers.base import ArrayStore, DenseRetriever
from crossknn.types import Queries


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 99), m=st.integers(0, 4), n=st.integers(0, 40), chunk=st.integers(1, 17))
def test_half_precision_gives_the_product_of_the_same_values(seed, m, n, chunk):
    rng = np.random.default_rng(seed)
    queries = rng.normal(size=(m, 6)).astype(np.float32)
    items = rng.normal(size=(n, 6)).astype(np.float16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linalg, "_CHUNK", chunk)
        found = inner(queries, items)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, queries @ items.astype(np.float32).T, rtol=1e-5, atol=1e-6)


def test_half_precision_is_never_copied_whole():
    items = np.ones((60_000, 64), np.float16)
    queries = np.ones((2, 64), np.float32)
    first = DenseRetriever(ArrayStore(items), lambda _: queries)
    tracemalloc.start()
    scores = first.scores(Queries(["a", "b"]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (scores == 64).all()
    assert peak < items.size * 4 / 2


def threads():
    return {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"}


def test_small_products_take_one_thread_until_all_have_left():
    with threadpool_limits(2, "blas"):
        first, second = one_thread(1000), one_thread(1000)
        with one_thread(1 << 30):
            assert threads() == {2}  # large ones gain from all
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert threads() == {1}
        second.__exit__(None, None, None)
        assert threads() == {2}


def test_every_thread_can_take_one_thread():
    def inside():
        with one_thread(1000):
            return threads()

    with (
        threadpool_limits(2, "blas"),
        ThreadPoolExecutor(1) as first,
        ThreadPoolExecutor(1) as other,
    ):
        for pool in (first, other, first):  # both threads stay alive
            assert pool.submit(inside).result() == {1}
            assert threads() == {2}
