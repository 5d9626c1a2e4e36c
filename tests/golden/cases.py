"""What the golden picks are recorded of: matrices, a text index, and every option of every method.

Specs here are short; what is recorded spells out every setting (`in_full`, from `DEFAULTS`).
"""

from __future__ import annotations

import re
import zlib
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from late_helpers import WordStates, vector

import crossknn as ck
from crossknn.fitting.anchors import collect_anchors
from crossknn.fitting.kriging import fit_prior
from crossknn.index.vectors import ItemVectors
from crossknn.methods import parse_method
from crossknn.retrievers.base import CandidateLists, ItemPriors
from crossknn.scores.collect import exact_scores
from crossknn.scores.store import ScoreStore
from crossknn.search.loop import Search
from crossknn.spec import parse
from crossknn.types import NO_ITEM, Scale
from crossknn_lab.collecting import item_as_query
from crossknn_lab.rivals.item_scores import ITEM_SCORES, item_scores_artifact
from crossknn_lab.stored import StoredMatrix

DATA = Path(__file__).parents[2] / "benchmarks" / "data"
ANCHORS, QUERIES, BUDGETS, TEXT_BUDGETS = 40, 4, (20, 50), (8, 20)

DEFAULTS = """
exact()
rerank(retriever=hybrid)
retrieve(retriever=hybrid)
anncur(anchor_share=0.5, retriever=fixed, center=auto, rcond=1e-06)
adacur(retriever=hybrid, rounds=5, sample=top, anchor_share=none, center=auto, rcond=1e-06)
axn(retriever=hybrid, rounds=10, blend=0.0, ridge=none, vectors=auto, normalize=auto,
    rcond=1e-06)
tour(loss=kl, retriever=hybrid, rounds=5, lr=0.1, vectors=auto, normalize=none)
fixeditem(anchor_share=0.5)
itemcur(anchor_share=0.5, center=auto, rcond=1e-06)
gar(retriever=hybrid, graph=auto, neighbours=16, batch=16, affinity=score, set_share=0.3,
    softmax=scaled)
ladr(retriever=hybrid, graph=auto, neighbours=16, retriever_share=0.5, depth=50, mode=adaptive, batch=16)
greedy(retriever=hybrid, graph=auto, neighbours=16, retriever_share=0.5, batch=16)
kriging(retriever=hybrid, mean=none, rounds=10, use_anchors=true, together=true, vectors=auto, shortlist=none,
    target_recall=none, k=10)
feedback(retriever=hybrid, retriever_share=0.5, rounds=1, a=1.0, b=1.0, c=1.0, pairs=none, vectors=auto,
    normalize=auto)
refit(retriever=hybrid, retriever_share=0.5, rounds=1, steps=100, lr=1.0, vectors=auto, normalize=auto)
acurank(retriever=hybrid, batch=20, shortlist=100, uncertain=none, tolerance=0.01, k=10)
reformir(retriever=hybrid, reformulations=5, feedback=5, blend=0.3, depth=100, batch=16, vectors=auto)
"""
"""Every option of every method at its default as of commit a2db68d, or of the method's first."""

MATRIX_SPECS = """
rerank: retriever=dense; retriever=bm25; retriever=hybrid; retriever=hybrid(bm25, dense);
    retriever=random; retriever=fixed; retriever=other; retriever=hybrid(bm25, other)
retrieve: retriever=dense; retriever=bm25; retriever=hybrid; retriever=hybrid(bm25, dense);
    retriever=random; retriever=fixed; retriever=other
anncur: none; anchor_share=0.3; anchor_share=0.8; retriever=dense; retriever=bm25;
    retriever=hybrid; center=none; rcond=0.01
adacur: none; retriever=dense, rounds=3; retriever=bm25, rounds=3; retriever=random, rounds=3;
    retriever=fixed, rounds=3; retriever=dense, rounds=1; retriever=dense, rounds=10;
    retriever=dense, sample=softmax;
    retriever=random, rounds=4, sample=softmax, anchor_share=0.5;
    retriever=dense, anchor_share=0.5; retriever=dense, anchor_share=0.8;
    retriever=dense, center=none; retriever=dense, rcond=0.01
axn: none; ridge=0.3; retriever=dense, ridge=0.3; retriever=bm25, ridge=0.3;
    retriever=random, ridge=0.3; retriever=other, ridge=0.3; retriever=dense, ridge=0.05;
    retriever=dense, ridge=1.0; retriever=dense, vectors=dense, blend=0.0;
    retriever=dense, vectors=dense, blend=0.3; retriever=dense, vectors=dense, blend=0.5;
    retriever=dense, vectors=dense, blend=1.0; retriever=dense, rounds=1, vectors=dense;
    retriever=dense, rounds=2, vectors=dense; retriever=dense, rounds=5, vectors=dense;
    retriever=bm25, rounds=5, normalize=anchors; retriever=bm25, rounds=5, normalize=first;
    retriever=bm25, rounds=5, normalize=none; retriever=dense, vectors=other;
    retriever=dense, vectors=other, blend=0.5, normalize=first;
    retriever=dense, vectors=other, ridge=0.3; retriever=bm25, rounds=5, vectors=rows;
    retriever=bm25, rounds=5, vectors=rows, normalize=first;
    retriever=bm25, rounds=5, vectors=rows, normalize=none; retriever=dense, rcond=0.01
tour: none; retriever=dense, loss=kl; retriever=dense, loss=mse, lr=0.001; retriever=bm25, rounds=3, lr=0.5;
    retriever=dense, loss=mse, lr=0.01, rounds=3; retriever=dense, normalize=auto;
    retriever=dense, normalize=first; retriever=dense, normalize=anchors;
    retriever=dense, vectors=dense, normalize=auto
feedback: none; retriever=dense; retriever=dense, retriever_share=0.3, rounds=2;
    retriever=dense, a=0.5, b=0.5, c=0.1; retriever=dense, pairs=10;
    retriever=dense, vectors=dense, normalize=first;
    retriever=dense, vectors=dense, normalize=none
refit: none; retriever=dense, steps=5; retriever=dense, retriever_share=0.3, rounds=3, lr=0.1;
    retriever=dense, vectors=dense, normalize=first;
    retriever=dense, vectors=dense, normalize=none
gar: none; retriever=dense, batch=5; retriever=bm25, batch=5; retriever=random, batch=5;
    retriever=dense, graph=dense, neighbours=4, batch=5;
    retriever=dense, graph=other, neighbours=8, batch=5; retriever=dense, batch=5, affinity=set;
    retriever=hybrid, batch=5, affinity=set, set_share=0.1;
    retriever=hybrid, batch=5, affinity=set, softmax=raw;
    retriever=dense, graph=scores, neighbours=8, batch=5
ladr: none; retriever=dense, batch=5; retriever=bm25, batch=5;
    retriever=dense, neighbours=4, retriever_share=0.2, depth=5, batch=3;
    retriever=dense, graph=other, mode=proactive;
    retriever=bm25, neighbours=4, retriever_share=0.2, mode=proactive
greedy: none; retriever=dense, batch=5; retriever=bm25, batch=5;
    retriever=dense, graph=other, neighbours=4, retriever_share=0, batch=1;
    retriever=dense, neighbours=4, retriever_share=0.2, batch=3;
    retriever=dense, graph=scores, batch=5
kriging: none; retriever=dense, rounds=5; retriever=bm25, rounds=5; retriever=random, rounds=5;
    retriever=hybrid(bm25, dense), rounds=5; retriever=dense, mean=hybrid, rounds=5;
    retriever=dense, mean=hybrid(bm25, other), rounds=5; retriever=dense, use_anchors=false;
    retriever=hybrid, use_anchors=false;
    retriever=dense, vectors=dense; retriever=bm25, vectors=rows; retriever=hybrid, shortlist=120;
    retriever=hybrid, use_anchors=false, shortlist=120; retriever=dense, target_recall=0.5;
    retriever=dense, target_recall=0.7, k=3
acurank: none; retriever=bm25, batch=5; retriever=dense, batch=5, uncertain=10, tolerance=0.1, k=5
reformir: none; retriever=dense, batch=5; retriever=bm25, batch=5;
    retriever=hybrid, reformulations=2, feedback=2, blend=0.6, depth=20, batch=5;
    retriever=dense, vectors=other, batch=5; retriever=bm25, vectors=rows, batch=5
"""

ITEM_SPECS = """
fixeditem: none; anchor_share=0.8
itemcur: none; anchor_share=0.3; center=none; rcond=0.01
"""
"""Of the matrix that has item x item scores."""

TEXT_SPECS = """
exact: none
retrieve: none; retriever=cmc(retriever=hybrid(bm25, own), depth=10)
rerank: retriever=bm25; retriever=lsa; retriever=lists; retriever=views;
    retriever=mf; retriever=own; retriever=cmc; retriever=cmc(retriever=bm25, depth=10)
axn: ridge=0.3; retriever=bm25, rounds=4, blend=0.5; retriever=cmc, rounds=4, ridge=0.3
adacur: rounds=3
anncur: anchor_share=0.5
fixeditem: none
itemcur: none
tour: rounds=3, vectors=own, normalize=auto
feedback: retriever=own
refit: retriever=own, vectors=own
gar: retriever=bm25, neighbours=4, batch=3; retriever=own, neighbours=4, batch=3, affinity=set
ladr: retriever=own, neighbours=4, batch=3
greedy: retriever=own, neighbours=4, batch=3
kriging: retriever=bm25, rounds=3; retriever=own, rounds=3;
    retriever=own, mean=hybrid(bm25, own, views), rounds=3
reformir: retriever=hybrid(bm25, own), batch=3
acurank: retriever=own, batch=3
"""

BUNDLED_SPECS = """
axn: ridge=0.3
rerank: none
adacur: retriever=dense, rounds=3
gar: retriever=bm25, neighbours=4, batch=3
kriging: retriever=hybrid, rounds=3
retrieve: retriever=dense
"""

VARIANTS = (
    *(("medquad", s, {"allowed": True}) for s in ("axn(ridge=0.3)", "gar(batch=5)", "kriging")),
    ("wordnet", "adacur(retriever=dense, rounds=3)", {"allowed": True}),
    ("wordnet", "ladr(retriever=bm25, batch=5)", {"allowed": True}),
    *(("medquad", s, {"lost": True}) for s in ("axn(ridge=0.3)", "gar(batch=5)", "kriging")),
    ("wordnet", "rerank(retriever=bm25)", {"lost": True}),
)
"""Searches with a filter, and with pairs that cannot be scored."""


def in_full(text):
    """A short spec with every option."""
    name, options = options_of(text)
    settings = {**defaults()[name], **options}
    return f"{name}({', '.join(f'{k}={v}' for k, v in settings.items())})"


def specs(table):
    """Short specs of a table whose rows are `method: options; options`, `none` for the defaults."""
    for row in re.split(r"\n+(?! )", table.strip()):
        name, _, known = row.partition(":")
        for options in re.split(r";\s*", known.strip()):
            yield f"{name}({'' if options == 'none' else options})"


def options_of(text):
    """(name, options) of a spec; the values are texts."""
    spec = parse(text)
    return spec.name, {key: str(value) for key, value in spec.options.items()}


@cache
def defaults():
    """{method: {option: text of its default}}."""
    specs = re.split(r"\n(?! )", DEFAULTS.strip())
    return dict(options_of(spec) for spec in specs)


@cache
def matrix(name):
    """A cut of a stored matrix: 700 items or 900, 40 anchor queries, 4 test queries."""
    path, n = {"medquad": ("medquad-two", 700), "wordnet": ("wordnet-artifact", 900)}[name]
    data, rng = StoredMatrix.load(DATA / f"{path}.npz"), np.random.default_rng(0)
    chosen = np.sort(rng.choice(data.scores.shape[1], n, replace=False))
    where = np.full(data.scores.shape[1], NO_ITEM)
    where[chosen] = np.arange(n)
    queries = np.r_[0:ANCHORS, data.n_anchors : data.n_anchors + QUERIES]
    order, artifacts = where[data.anchor_items], {}
    if ITEM_SCORES in data.artifacts:
        pairs = data.artifacts[ITEM_SCORES].arrays
        here = where[pairs["items"]]
        scores = pairs["scores"][here >= 0][:, chosen]
        artifacts = {ITEM_SCORES: item_scores_artifact(here[here >= 0], scores)}
    cut = StoredMatrix(
        scores=data.scores[queries][:, chosen],
        n_anchors=ANCHORS,
        dense_items=data.dense_items[chosen],
        dense_queries=data.dense_queries[queries],
        firsts={"bm25": data.firsts["bm25"][queries][:, chosen]},
        query_ids=tuple(data.query_ids[query] for query in queries),
        anchor_items=order[order >= 0],
        artifacts=artifacts,
    )
    # Vectors of another space, and some that queries have none beside.
    items, exact = cut.dense_items, cut.scores[:ANCHORS]
    other = (items + rng.normal(size=items.shape) * items.std() / 2).astype(np.float32)
    rows = cut.with_vectors("rows", (exact - exact.mean()).T)
    return rows.with_vectors("other", other, cut.dense_queries)


WORDS = (  # noqa: SIM905
    "archive compress copy count decode delete encode file find hash index join list lock map "
    "merge open parse path print queue read remove sort split string thread unzip write zip"
).split()
TEXT_QUERIES = ("how do I unzip a file", "sort a list of strings", "lock a queue between threads")
ANCHOR_TEXTS = (
    *("copy a file", "merge two lists", "find a path", "parse a string", "read and decode"),
    *("hash a file", "join a thread", "print a queue"),
)
N = 60


def text_vectors(texts, d=16):
    """The mean of the words' vectors, of length one: (len(texts), d)."""
    sums = np.stack([sum(vector(w, d) for w in text.split()) for text in texts])
    return (sums / np.linalg.norm(sums, axis=1, keepdims=True)).astype(np.float32)


def corpus():
    """Texts of a few words."""
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(WORDS, size=rng.integers(3, 12))) for _ in range(N)]


def overlap(pairs):
    """A score that words explain, with a little of its own for every pair."""
    return [
        len(set(q.split()) & set(t.split())) + (zlib.crc32(f"{q}|{t}".encode()) % 997) / 500
        for q, t in pairs
    ]


def add_item_scores(index, scorer, positions):
    """Score items, as if they were queries, with every item: what `itemcur` and `fixeditem` read."""
    texts = [item_as_query(index.items.texts[position]) for position in positions]
    scores = exact_scores(ScoreStore(), scorer, texts, index.items.texts)
    made = item_scores_artifact(positions, scores)
    meta = {**made.meta, "fingerprint": scorer.fingerprint}
    index.put_artifact(ITEM_SCORES, meta, made.arrays)


@cache
def text_index(learned=None):
    """(index with all that methods use, scorer); with the prior of kriging fitted if named."""
    scorer = ck.CallableScorer(overlap, "words")
    texts = corpus()
    own = text_vectors(texts)
    index = ck.ItemIndex.build(
        texts, vectors={"own": own}, query_vectors={"own": text_vectors}, lsa=6
    )
    rng = np.random.default_rng(1)
    ids = index.items.ids
    collect_anchors(index, scorer, ANCHOR_TEXTS)
    add_item_scores(index, scorer, np.arange(0, N, 3))
    fitted = ItemVectors(
        values=own + np.float32(0.2) * own[::-1],
        method="als",
        base="own",
        scale=Scale(alpha=1.0, beta=0.1),
        fingerprint=scorer.fingerprint,
    )
    index.add_fitted("mf", fitted)
    lists = {q: [ids[i] for i in rng.permutation(N)[:15]] for q in TEXT_QUERIES}
    index.add_retriever("lists", CandidateLists(lists, ids))
    index.add_retriever("views", ItemPriors(rng.random(N)))
    index.add_late(WordStates())
    if learned:
        fit_prior(index, retriever=learned)
    return index, scorer


@cache
def bundled_index():
    """The same corpus with the bundled models."""
    scorer = ck.CrossEncoder()
    index = ck.ItemIndex.build(corpus(), encoder="bundled")
    collect_anchors(index, scorer, ANCHOR_TEXTS[:4])
    return index, scorer


@cache
def scratch():
    """A folder of this process, which goes when it ends."""
    return TemporaryDirectory()


@cache
def with_a_copy(kind):
    """(index with everything that methods need, a copy, scorer, its scores: stored, as (m, n))."""
    scorer = ck.CrossEncoder() if kind == "bundled" else ck.CallableScorer(overlap, "words")
    index = ck.ItemIndex.build(corpus(), encoder="bundled", lsa=8)
    folder = Path(scratch().name) / kind
    index.save(folder)
    collect_anchors(index, scorer, ["copy a file", "merge lists", "find a path", "parse a string"])
    add_item_scores(index, scorer, np.arange(0, N, 12))
    if kind == "fitted":
        moved = index.vectors["dense"] + np.float32(0.01) * index.vectors["dense"][::-1]
        options = {"method": "als", "base": "dense", "scale": Scale(alpha=1.0, beta=0.1)}
        fitted = ItemVectors(values=moved, fingerprint=scorer.fingerprint, **options)
        index.add_fitted("mf", fitted)
    store = ScoreStore()
    exact = exact_scores(store, scorer, TEXT_QUERIES, index.items.texts)
    copied = folder.with_name(f"{kind} copied")
    ck.ItemIndex.load(folder).save(copied)
    return ck.ItemIndex.load(folder), ck.ItemIndex.load(copied), scorer, store, exact


def cases():
    """(key, function that searches: () -> picks per query) of all that is recorded."""
    for name in ("medquad", "wordnet"):
        for short in specs(MATRIX_SPECS + (ITEM_SPECS if name == "medquad" else "")):
            for budget in BUDGETS:
                yield from _case(name, short, budget)
    for name, short, options in VARIANTS:
        yield from _case(name, short, 20, **options)
    for budget in TEXT_BUDGETS:
        for short in specs(TEXT_SPECS):
            yield _text_case("text", short, budget)
        yield _text_case("learned", "kriging(retriever=bm25, rounds=3)", budget)
    for short in specs(BUNDLED_SPECS):
        yield _text_case("bundled", short, TEXT_BUDGETS[0])


def _case(name, short, budget, **options):
    spec = in_full(short)

    def search():
        """Of `lost` items no score is ever told."""
        method = parse_method(spec)
        index, queries, scores = matrix(name).prepared(method, budget).rows(0, QUERIES)
        allowed = np.random.default_rng(1).random(index.n) < 0.4 if "allowed" in options else None
        lost = np.random.default_rng(2).random(index.n) < 0.2 if "lost" in options else None
        plan = method.plan(index, budget, 0)
        search = Search(plan, queries, index.n, allowed=allowed)
        if not plan.batches:
            return _rows(search.best(budget))
        while len(pairs := search.ask()):
            told = pairs if lost is None else pairs.take(np.flatnonzero(~lost[pairs.item]))
            search.tell(told, scores[told.query, told.item])
        return _rows(search.picks())

    yield " ".join([name, spec, str(budget), *(f"{o}={v}" for o, v in options.items())]), search


def _rows(picks):
    return [
        [(int(i), int(r)) for i, r in zip(row, when, strict=True) if i != NO_ITEM]
        for row, when in zip(picks.items, picks.rounds, strict=True)
    ]


def _text_case(kind, short, budget):
    spec = in_full(short)

    def search():
        method, options = options_of(spec)
        learned = "bm25" if kind == "learned" else None
        if method == "kriging" and options["mean"] != "none":
            learned = options["mean"]
        index, scorer = bundled_index() if kind == "bundled" else text_index(learned)
        searcher = ck.Searcher(index, scorer, spec)
        results = searcher.search(list(TEXT_QUERIES), k=5, budget=budget, trace=True)
        rows = results.trace if results.n_calls else results
        return [[(hit.position, hit.round) for hit in hits] for hits in rows]

    return f"{kind} {spec} {budget}", search
