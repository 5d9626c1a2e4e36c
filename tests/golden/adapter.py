"""The one place where the golden tests touch the package: whoever renames or moves, edits here."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
from late_helpers import WordStates

import crossknn as ck
from crossknn.fitting.anchors import collect_anchors, collect_item_scores
from crossknn.index.base import Scale
from crossknn.index.stored import StoredMatrix
from crossknn.index.vectors import ItemVectors
from crossknn.methods import METHODS as METHODS
from crossknn.methods import method
from crossknn.retrievers.base import CandidateLists, ItemPriors
from crossknn.search.loop import Search
from crossknn.search.sharing import SharedBudget
from crossknn.spec import parse
from crossknn.types import NO_ITEM

OLD_NAMES: dict[str, str] = {}
"""Words of the specs here, and how this version of the package has them."""
NEW_NAMES = {old: new for new, old in OLD_NAMES.items()}


def spec_of(name, options):
    """The text of a spec, in the words of this version of the package."""
    inside = ", ".join(f"{_words(key)}={_words(value)}" for key, value in options.items())
    return f"{_words(name)}({inside})" if inside else _words(name)


def options_of(text):
    """(name, options) of a spec; the values are texts."""
    spec = parse(text)
    return spec.name, {key: str(value) for key, value in spec.options.items()}


def open_matrix(path):
    """A stored matrix, checked."""
    return StoredMatrix.load(path)


def pick_from_matrix(
    matrix, spec, budget, tests, *, seed=0, allowed=None, total=None, lost=(), k=10
):
    """Search the first test queries; per query, the items in the order of scoring and their rounds.

    `total` is a shared budget; of `lost` items no score is ever told.
    """
    index, queries, scores = matrix.rows(0, tests)
    plan = method(spec).plan(index, budget, seed)
    if total is not None:
        plan = replace(plan, share=SharedBudget(total=total, k=k))
    search = Search(plan, queries, index.n, allowed=allowed)
    if not plan.batches:
        best = search.best(budget)
        return _rows(best.items, best.rounds)
    while len(pairs := search.ask()):
        told = pairs.take(np.flatnonzero(~np.isin(pairs.item, list(lost))))
        search.tell(told, scores[told.query, told.item])
    picks = search.picks()
    return _rows(picks.items, picks.rounds)


def pick_from_index(index, scorer, spec, queries, budget, **options):
    """The same through the front door, for texts."""
    results = ck.Searcher(index, scorer, spec).search(
        queries, k=5, budget=budget, trace=True, **options
    )
    if not results.n_calls:
        return [[(hit.position, hit.round) for hit in hits] for hits in results]
    return [[(hit.position, hit.round) for hit in hits] for hits in results.trace]


def callable_scorer(function, name):
    """A scorer of a function of pairs of texts."""
    return ck.CallableScorer(function, name)


def bundled_scorer():
    """The bundled cross-encoder."""
    return ck.CrossEncoder()


def build_index(texts, *, vectors=None, query_vectors=None, encoder=None, lsa=0):
    """An index in memory with bm25 and TF-IDF."""
    return ck.ItemIndex.build(
        texts, vectors=vectors, query_vectors=query_vectors, encoder=encoder, lsa=lsa, tfidf=True
    )


def equip(index, scorer, *, anchors, items, graph, depth, name, moved, base, lists, priors):
    """Give an index all that methods use: anchors, item scores, a graph, fitted vectors, lists."""
    collect_anchors(index, scorer, anchors)
    collect_item_scores(index, scorer, items)
    index.add_graph(graph, depth)
    fitted = ItemVectors(
        values=moved,
        method="als",
        base=base,
        scale=Scale(alpha=1.0, beta=0.1),
        fingerprint=scorer.fingerprint,
    )
    index.add_fitted(name, fitted)
    index.add_retriever("lists", CandidateLists(lists, index.items.ids))
    index.add_retriever("views", ItemPriors(priors))
    index.add_late(WordStates())
    return index


def learn(index, first):
    """Fit the prior of kriging to the anchors of the index."""
    from crossknn.methods.kriging_fit import fit_prior

    fit_prior(index, retriever=_words(first))


def _words(text):
    """A text of a spec with this version's words in the place of ours."""
    return re.sub(r"[A-Za-z_]\w*", lambda word: OLD_NAMES.get(word[0], word[0]), text)


def _rows(items, rounds):
    return [
        [(int(i), int(r)) for i, r in zip(row, when, strict=True) if i != NO_ITEM]
        for row, when in zip(items, rounds, strict=True)
    ]
