"""Splits: disjoint, by seed, and those of the ANNCUR paper."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossknn.data.dataset import anncur_split, split
from crossknn.errors import InputError


@given(st.lists(st.integers(0, 20), min_size=1, max_size=4), st.integers(0, 30), st.integers(0, 99))
def test_parts_are_disjoint_and_have_their_sizes(sizes, rest, seed):
    n = sum(sizes) + rest
    named = {f"part{i}": size for i, size in enumerate(sizes)}
    parts = split(n, named, seed)
    together = np.concatenate(list(parts.values()))
    assert {name: len(part) for name, part in parts.items()} == named
    assert len(set(together.tolist())) == len(together)
    assert all(np.all(np.diff(part) > 0) for part in parts.values())
    assert together.size == 0 or (together.min() >= 0 and together.max() < n)
    assert all(np.array_equal(part, split(n, named, seed)[name]) for name, part in parts.items())


def test_parts_depend_on_the_seed_and_grow():
    small, large = (split(["x"] * 100, {"train": size}, seed=3)["train"] for size in (10, 40))
    assert set(small) < set(large)
    assert not np.array_equal(small, split(100, {"train": 10}, seed=4)["train"])


def test_every_query_is_as_likely():
    drawn = np.concatenate([split(10, {"a": 3, "b": 3}, seed)["b"] for seed in range(2000)])
    assert np.bincount(drawn, minlength=10).min() > 500


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match=r"train 7 \+ test 4\) are more than the 10 there are"):
        split(10, {"train": 7, "test": 4})
    with pytest.raises(InputError, match="'train' has the size -1"):
        split(10, {"train": -1})


def test_the_split_of_the_paper_is_that_of_its_code():
    """Numbers drawn by the loop of the authors' script with these arguments."""
    options = {"all_sizes": (50, 100, 20, 6), "n_splits": 2, "dev_share": 0.5}
    first, second = (anncur_split(60, 6, index=i, **options) for i in (0, 1))
    assert first["train"].tolist() == [4, 29, 48, 53, 57, 59]
    assert first["dev"].tolist() == [4, 29, 57]
    assert first["train_only"].tolist() == [48, 53, 59]
    assert second["train"].tolist() == [4, 14, 18, 22, 52, 57]
    assert second["dev"].tolist() == [22, 52, 57]
    assert sorted([*second["train"], *second["test"]]) == list(range(60))


def test_splits_the_paper_does_not_draw():
    with pytest.raises(InputError, match="n_train is 7; splits are drawn for 50, 100, 200, 500"):
        anncur_split(100, 7)
    with pytest.raises(InputError, match="n_train is 500, but there are 100 queries"):
        anncur_split(100, 500)
    with pytest.raises(InputError, match="there are splits 0 to 4"):
        anncur_split(100, 50, index=5)


@pytest.mark.parametrize("size", [0.8, 2.5, -1])
def test_a_size_that_is_no_number_of_queries_is_refused(size):
    with pytest.raises(InputError, match=f"the part 'train' has the size {size}; it must be a who"):
        split(10, {"train": size, "test": 2})
    assert len(split(10, {"train": np.int64(4)})["train"]) == 4
