"""Where the golden values of fits come from: the only lines that change with the code's names."""

from __future__ import annotations

import numpy as np

from crossknn.data.items import Items
from crossknn.fitting.als import als
from crossknn.fitting.cur import cur
from crossknn.fitting.factors import Targets
from crossknn.fitting.fit import fit as fit_index
from crossknn.fitting.pairs import per_item
from crossknn.fitting.pseudo_queries import pseudo_queries
from crossknn.index.item_index import ItemIndex
from crossknn.scorers import CallableScorer
from crossknn.scores.views import SparseScores
from crossknn.types import Pairs, Queries


def targets(table, query, item, items, queries, held_out=0.1, seed=3):
    """Entries of a table (q, n) at `query`, `item` (e,), to be fitted from initial vectors."""
    texts = [f"query {row}" for row in range(len(table))]
    scores = SparseScores.of(texts, table.shape[1], Pairs(query, item), table[query, item])
    return Targets.of(scores, items, queries, held_out=held_out, seed=seed)


def fit(kind, found, **options):
    """One factorization of `targets`."""
    if kind == "als":
        return als(found, **options)
    if kind == "mf-trns":
        from crossknn.fitting.mf import mf_trns

        return mf_trns(found, device="cpu", **options)
    from crossknn.fitting.mf import mf_ind

    return mf_ind(found, device="cpu", **options)


def fit_cur(rows, **options):
    """CUR of dense rows."""
    return cur(rows, **options)


def fitted_index(texts, queries, score, method, *, encoder=None, **options):
    """Fit an index of these texts with a scoring function; what it keeps, and how it searches."""
    index = ItemIndex.build([{"text": t} for t in texts], **encoder or {"lsa": 6})
    found = fit_index(index, CallableScorer(score, "words"), queries, method, **options)
    vectors = found.vectors
    return {
        "items": np.asarray(index.vectors[found.name]),
        "queries": np.asarray(index.query_vectors(Queries(queries[:5]), found.name))
        if index.has_query_vectors(found.name)
        else np.zeros((0, 0)),
        "scale": [vectors.scale.alpha, vectors.scale.beta],
        "calls": found.collected.calls,
        "reused": found.collected.reused,
        "cost": [vectors.cost.queries, vectors.cost.calls],
        "held_out": vectors.details.get("held_out"),
        "details": vectors.details,
    }


def pairs_per_item(n, q, per, seed):
    """The pairs that the strategy "i" scores: (query, item)."""
    pairs = per_item(n, q, per, seed=seed).pairs
    return pairs.query, pairs.item


def made_up_queries(titles, texts, count, **options):
    """Pseudo-queries of items."""
    ids = [str(place) for place in range(len(texts))]
    return pseudo_queries(
        Items(ids=ids, texts=texts, titles=titles, extra=[{}] * len(ids)), count, **options
    )
