"""The covariance of kriging from sparse exact scores: a factor model with missing entries.

Searches leave exact scores of few items behind, and of those that looked good: averages of them
are too high for items that are scored only where they fit, and two items are seen together for a
reason. A model of all scores (see `factor_steps`) is fitted to the seen ones by likelihood. What is
unseen may be ignored there if what decided on it is in the model (Rubin 1976: missing at random):
a search chooses by the retriever's scores, which are columns of the model, and by the scores it
has n_scored, which are among the entries. So every query's log should be there as a whole, with the
cheap scores that it was searched by. Left out are choices by what the model does not hold: a log of
another retriever, or only the best answers of a search.

The steps, each a sweep of expectation maximisation over the queries:

1. The vectors' directions have a learned covariance in place of the identity; items have a mean
   that is linear in their vector, and an offset of their own, shrunk by what offsets are like.
2. Loadings have a part of their own as well, shrunk in the same way.

Both are repeated while a tenth of the entries, held out, is predicted better: with few scores an
item, the second is not done at all. Then all of it is done again with all entries.

Axes: q queries, e entries, n items, d dimensions, f weights, r factors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from crossknn.errors import InputError
from crossknn.index.covariance import RANK, Covariance
from crossknn.index.factor_rows import Rows, rows_of
from crossknn.index.factor_steps import LEAST, ContentStep, ItemStep, Model, Step
from crossknn.index.sparse import SparseScores
from crossknn.types import FloatArray, IntArray, Progress

SWEEPS = 6
"""Over the queries, at most: for the content, and then for the items."""

HELD_OUT = 0.1
"""Share of the entries on which the number of sweeps is chosen."""

FEW = (2, 0)
"""Sweeps where no entry can be held out."""

GAIN = 0.999
"""A sweep is worth another if it leaves at most so much of the error."""

_BLOCK = 8_192


def covariance_of(
    scores: SparseScores,
    cheap: Sequence[FloatArray],
    vectors: FloatArray,
    *,
    rank: int = RANK,
    anchors: tuple[FloatArray, Sequence[FloatArray]] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Covariance:
    """What `Covariance.of` gives, from the entries of sparse `scores` in its place.

    `cheap` are the scores of each retriever at the entries, (e,) each, in their order; `vectors`
    (n, d) those of the items by a dual encoder, of any length; `anchors` are more queries, with all
    items scored: exact scores (a, n) and cheap ones, (a, n) each. A query's text decides, with
    `seed`, which of its entries are held out. `progress` is told the sweeps. Raises `InputError`
    for fewer than two queries with scores.

    Costs, a sweep: of content, d^2 multiplications an entry (d a dense score) and a few d^2 a
    query; of items, r^2 an entry (r a dense score) and r^3 an item that has entries; some 5 to 20
    sweeps in all. Items without entries cost d r once. Holds 8 (d + r) bytes for an item with
    entries, all items if there are dense rows; 4 q r^2 bytes for the sparse queries; and what it
    returns, 4 n r bytes.
    """
    seen = np.arange(len(vectors)) if anchors is not None else scores.scored_items
    rows, texts = rows_of(scores, cheap, anchors, seen)
    if len(rows) < 2:
        raise InputError(
            "the scores of one query say nothing about how items vary together: search more, or "
            "use kriging(anchors=false)"
        )
    unit = _directions(vectors[seen])
    fitted, held = rows.split(texts, HELD_OUT, seed)
    most, done = 4 * (SWEEPS + 1), 0

    def told() -> None:
        nonlocal done
        done += 1
        if progress:
            progress(done, most)

    content, items = _sweeps(fitted, held, unit, rank, seed, told)
    model = _start(rows, unit)
    for _ in range(content):
        model = _after(ContentStep(model, rows, unit))
        told()
    model = _cut(model, min(rank, len(rows)), seed)
    for _ in range(items):
        model = _after(ItemStep(model, rows, unit))
        told()
    if progress:
        progress(most, most)
    return _covariance(model, rows, seen, vectors)


def _start(rows: Rows, unit: FloatArray) -> Model:
    """Pooled weights of the cheap scores; of what they leave, half by content, a quarter by items.

    Content is at first isotropic: every direction of the vectors counts the same.
    """
    s, d = len(rows.unit) - 1, unit.shape[1]
    products, count = np.zeros((1 + s, 1 + s)), 0
    for row in rows:
        values = np.column_stack([row.scores, row.cheap])
        values -= values.mean(axis=0)
        products += values.T @ values
        count += len(values)
    weights = np.linalg.lstsq(products[1:, 1:], products[1:, 0], rcond=1e-9)[0]
    left = max(float(products[0, 0] - weights @ products[1:, 0]) / count, LEAST)
    precision = np.diag([0.0, *np.full(s, 4 / left), 4.0])
    content = np.hstack([np.zeros((d, 1)), np.sqrt(left / 2) * np.eye(d)])
    return Model(
        theta=unit @ content,
        content=content,
        own=np.full(len(unit), left / 4),
        spread=np.append(left / 4, np.zeros(d)),
        weights=np.array([0.0, *weights, 1.0]),
        precision=precision,
        noise=left / 4,
    )


def _cut(model: Model, rank: int, seed: int) -> Model:
    """The model of `rank` factors, in each of which items have something of their own: all of it
    half of what was noise. Where content has fewer directions, the others are items' alone."""
    loadings = model.theta[:, 1:]
    values, vectors = np.linalg.eigh(loadings.T @ loadings / len(loadings))
    kept = np.argsort(-values, kind="stable")[:rank]
    more = rank - len(kept)
    turn = np.zeros((len(values) + 1, len(kept) + 1))
    turn[0, 0], turn[1:, 1:] = 1, vectors[:, kept]
    strength = np.maximum(np.append(values[kept], np.full(more, values.mean())), LEAST)
    spread = strength * (model.noise / 2) / strength.sum()
    extra = np.random.default_rng(seed).normal(size=(len(loadings), more))
    theta = np.hstack([model.theta @ turn, extra * np.sqrt(spread[len(kept) :])])
    return replace(
        model,
        theta=theta,
        content=np.hstack([model.content @ turn, np.zeros((len(model.content), more))]),
        own=model.own + model.noise / 2,
        spread=np.append(model.spread[0], spread),
        noise=model.noise / 2,
    )


def _after(step: Step) -> Model:
    step.sweep()
    return step.after()


def _sweeps(
    fitted: Rows, held: Rows, unit: FloatArray, rank: int, seed: int, told: Callable[[], None]
) -> tuple[int, int]:
    """How many sweeps for content, and then for items, predict the `held` entries best."""
    if not len(held.item):
        return FEW
    model, chosen = _start(fitted, unit), []
    for kind in (ContentStep, ItemStep):
        if kind is ItemStep:
            model = _cut(model, min(rank, len(fitted)), seed)
        best, kept, count = np.inf, model, 0
        for sweep in range(SWEEPS + 1):
            step = kind(model, fitted, unit)
            error = step.sweep(held)
            told()
            if not error < GAIN * best:
                break
            best, kept, count = error, model, sweep
            if sweep < SWEEPS:
                model = step.after()
        model = kept
        chosen.append(count)
    return chosen[0], chosen[1]


def _directions(vectors: FloatArray) -> FloatArray:
    """Vectors (n, d) brought to unit length; 0 stays 0."""
    exact = vectors.astype(np.float64)
    lengths = np.linalg.norm(exact, axis=1, keepdims=True)
    return exact / np.where(lengths > 0, lengths, 1)


def _covariance(model: Model, rows: Rows, seen: IntArray, vectors: FloatArray) -> Covariance:
    """In the units of the scores, for all items, the strongest factor first."""
    n = len(vectors)
    theta = np.empty((n, model.theta.shape[1]), np.float32)
    for start in range(0, n, _BLOCK):
        part = slice(start, start + _BLOCK)
        theta[part] = _directions(vectors[part]) @ model.content
    theta[seen] = model.theta
    size = rows.unit[0]
    theta *= np.float32(size)
    loadings = theta[:, 1:]
    products = (loadings.T @ loadings).astype(np.float64)
    _, directions = np.linalg.eigh(products)
    trust = float(model.weights[-1]) or 1.0
    units = np.concatenate([[size], size / rows.unit[1:], [1 / trust]])
    left = np.trace(products) / n + size**2 * (model.noise + float(model.own.mean()))
    return Covariance(
        factor=loadings @ directions[:, ::-1].astype(np.float32),
        mean=trust * (theta[:, 0] - theta[:, 0].mean()),
        weights=model.weights * units,
        precision=model.precision / units / units[:, None],
        variance=float(left),
    )
