"""The train and test queries of the ANNCUR paper, as its code draws them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crossknn.errors import InputError
from crossknn.types import IntArray

ANNCUR_SIZES = (50, 100, 200, 500, 1000, 2000)
"""The numbers of train queries for which the ANNCUR paper's code draws splits, in its order."""


def anncur_split(
    n: int,
    n_train: int,
    *,
    index: int = 0,
    seed: int = 0,
    dev_share: float = 0.1,
    all_sizes: Sequence[int] = ANNCUR_SIZES,
    n_splits: int = 5,
) -> dict[str, IntArray]:
    """The `index`-th split of n queries into `n_train` train and all other test queries.

    Drawn as in the authors' code for ANNCUR (Yadav et al. 2022, 3; iesl/anncur,
    `utils/split_zeshel_ment2ent_for_cur_exps.py`), where one generator draws `n_splits` splits of
    every size after the other, so that a split depends on those before it; sizes above n are passed
    over.

    Returns:
        Ascending positions: `train` (n_train,), `test`, and of the train queries `dev` (dev_share
        of them) and `train_only`.

    Raises:
        InputError: if n_train exceeds n or is not one of the sizes, or if there is no such split.
    """
    if n_train not in all_sizes or n_train > n:
        known = ", ".join(map(str, all_sizes))
        raise InputError(
            f"n_train is {n_train}; splits of these {n} queries are drawn for {known} (all_sizes), "
            "as far as there are so many"
        )
    if not 0 <= index < n_splits:
        raise InputError(f"index is {index}; there are splits 0 to {n_splits - 1}")
    rng = np.random.default_rng(seed)
    before = [size for size in all_sizes[: all_sizes.index(n_train)] if size <= n]
    for size in [size for size in before for _ in range(n_splits)] + [n_train] * (index + 1):
        train = np.sort(rng.choice(n, size=size, replace=False))
        dev = np.sort(rng.choice(train, size=int(size * dev_share), replace=False))
    test, train_only = np.setdiff1d(np.arange(n), train), np.setdiff1d(train, dev)
    return {"train": train, "test": test, "dev": dev, "train_only": train_only}
