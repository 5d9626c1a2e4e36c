"""Random parts of the queries (or items) by a seed, ours and those of the ANNCUR paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from numbers import Integral

import numpy as np

from crossknn.errors import InputError
from crossknn.types import IntArray

ANNCUR_SIZES = (50, 100, 200, 500, 1000, 2000)
"""The numbers of train queries for which the paper's code draws splits, in its order."""


def split(of: int | Sized, sizes: Mapping[str, int], seed: int = 0) -> dict[str, IntArray]:
    """Disjoint random parts: name -> positions (size,), ascending; what is left over is in none.

    `of` is how many there are, or the ids themselves. A part depends on the seed, on the sizes
    before it and on its own; a smaller first part lies within a larger one.

    Raises `InputError` for a size that is negative or no whole number, and if the sizes exceed what
    there is.
    """
    n = of if isinstance(of, int) else len(of)
    for name, size in sizes.items():
        if not isinstance(size, Integral) or size < 0:
            raise InputError(
                f"the part {name!r} has the size {size}; it must be a whole number, 0 or more"
            )
    if sum(sizes.values()) > n:
        asked = " + ".join(f"{name} {size}" for name, size in sizes.items())
        raise InputError(f"the parts ({asked}) are more than the {n} there are: make them smaller")
    order = np.random.default_rng(seed).permutation(n)
    ends = np.cumsum(list(sizes.values()), dtype=np.int64)
    parts = np.split(order, ends)[: len(sizes)]
    return {name: np.sort(part) for name, part in zip(sizes, parts, strict=True)}


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

    Returns ascending positions: `train` (n_train,), `test`, and of the train queries `dev`
    (dev_share of them) and `train_only`. Drawn as in the authors' code for ANNCUR (Yadav et al.
    2022, 3; iesl/anncur, `utils/split_zeshel_ment2ent_for_cur_exps.py`), where one generator draws
    `n_splits` splits of every size after the other, so that a split depends on those before it;
    sizes above n are passed over.

    Raises `InputError` if n_train exceeds n or is not one of the sizes, or if there is no such
    split.
    """
    if n_train not in all_sizes:
        known = ", ".join(map(str, all_sizes))
        raise InputError(f"n_train is {n_train}; splits are drawn for {known} (all_sizes)")
    if n_train > n:
        raise InputError(f"n_train is {n_train}, but there are {n} queries")
    if not 0 <= index < n_splits or not 0 <= dev_share < 1:
        raise InputError(
            f"index is {index} and dev_share {dev_share}: there are splits 0 to {n_splits - 1}, "
            "and a share lies between 0 and 1"
        )
    rng = np.random.default_rng(seed)
    for size in all_sizes:
        if size > n:
            continue
        for drawn in range(n_splits):
            train = np.sort(rng.choice(n, size=size, replace=False))
            dev = np.sort(rng.choice(train, size=int(size * dev_share), replace=False))
            if (size, drawn) == (n_train, index):
                return {
                    "train": train,
                    "test": np.setdiff1d(np.arange(n), train),
                    "dev": dev,
                    "train_only": np.setdiff1d(train, dev),
                }
    raise AssertionError("a checked split was not drawn")
