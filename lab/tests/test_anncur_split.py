"""The splits of the ANNCUR paper."""

import pytest

from crossknn.errors import InputError
from crossknn_lab.anncur_split import anncur_split


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
    for size in (7, 500):
        with pytest.raises(InputError, match=f"n_train is {size}; splits of these 100 queries"):
            anncur_split(100, size)
    with pytest.raises(InputError, match="there are splits 0 to 4"):
        anncur_split(100, 50, index=5)
