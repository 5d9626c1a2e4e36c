"""What the golden picks are recorded of: matrices, a text index, and every option of every method.

Specs here are short; what is recorded spells out every setting (`in_full`, from `DEFAULTS`).
"""

from __future__ import annotations

import re
import zlib
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from late_helpers import WordStates, vector

import crossknn as ck
from crossknn.fitting.anchors import collect_anchors, collect_item_scores
from crossknn.index.base import Scale
from crossknn.index.stored import StoredMatrix
from crossknn.index.vectors import ItemVectors
from crossknn.methods import parse_method
from crossknn.methods.kriging_fit import fit_prior
from crossknn.retrievers.base import CandidateLists, ItemPriors
from crossknn.search.loop import Search
from crossknn.search.sharing import SharedBudget
from crossknn.spec import parse
from crossknn.types import NO_ITEM

DATA = Path(__file__).parents[2] / "benchmarks" / "data"
QUERIES, BUDGETS, TEXT_BUDGETS = 4, (20, 50), (8, 20)

DEFAULTS = """
exact()
rerank(retriever=hybrid)
retrieve(retriever=hybrid)
anncur(anchor_share=0.5, retriever=random, center=auto, rcond=1e-06)
adacur(retriever=hybrid, rounds=5, sample=top, anchor_share=none, center=auto, rcond=1e-06,
    shortlist=none)
axn(retriever=hybrid, rounds=10, blend=0.0, ridge=none, vectors=auto, normalize=auto,
    rcond=1e-06, shortlist=none)
tour(loss=kl, retriever=hybrid, rounds=5, lr=none, vectors=auto, normalize=none)
fixeditem(anchor_share=0.5)
itemcur(anchor_share=0.5, center=auto, rcond=1e-06)
gar(retriever=hybrid, graph=auto, neighbours=16, batch=16, affinity=score, best=0.3,
    softmax=scaled)
ladr(retriever=hybrid, graph=auto, neighbours=16, retriever_share=0.5, depth=50, mode=adaptive, batch=16)
greedy(retriever=hybrid, graph=auto, neighbours=16, retriever_share=0.5, batch=16)
gp(retriever=hybrid, rounds=10, kernel=rbf, scale=1.0, noise=0.05, mean=constant, beta=1.0,
    query=false, vectors=auto, shortlist=none)
kriging(retriever=hybrid, mean=none, rounds=10, use_anchors=true, rank=48, share=none, scale=none,
    smooth=none, linear=none, noise=none, beta=0.0, vectors=auto, shortlist=none,
    target_recall=none, k=10)
feedback(retriever=hybrid, retriever_share=0.5, rounds=1, a=1.0, b=1.0, c=1.0, pairs=none, vectors=auto,
    normalize=auto)
refit(retriever=hybrid, retriever_share=0.5, rounds=1, steps=100, lr=1.0, vectors=auto, normalize=auto)
"""
"""Every option of every method at its default as of commit a2db68d."""

_FROM = ("dense", "bm25", "hybrid", "hybrid(bm25, dense)", "random", "fixed")

MATRIX_SPECS = (
    *(f"rerank(retriever={r})" for r in (*_FROM, "other", "hybrid(bm25, other)")),
    *(f"retrieve(retriever={r})" for r in (*_FROM, "other")),
    "anncur",
    *(f"anncur(anchor_share={share})" for share in (0.3, 0.8)),
    *(f"anncur(retriever={r})" for r in ("dense", "bm25", "hybrid")),
    "anncur(center=none)",
    "anncur(rcond=0.01)",
    "adacur",
    *(f"adacur(retriever={r}, rounds=3)" for r in ("dense", "bm25", "random", "fixed")),
    *(f"adacur(retriever=dense, rounds={r})" for r in (1, 10)),
    "adacur(retriever=dense, sample=softmax)",
    "adacur(retriever=dense, sample=random)",
    "adacur(retriever=random, rounds=4, sample=softmax, anchor_share=0.5)",
    *(f"adacur(retriever=dense, anchor_share={s})" for s in (0.5, 0.8)),
    "adacur(retriever=dense, center=none)",
    "adacur(retriever=dense, rcond=0.01)",
    "adacur(retriever=hybrid, shortlist=120)",
    "axn",
    "axn(ridge=0.3)",
    *(f"axn(retriever={r}, ridge=0.3)" for r in ("dense", "bm25", "random", "other")),
    *(f"axn(retriever=dense, ridge={r})" for r in (0.05, 1.0)),
    *(f"axn(retriever=dense, vectors=dense, blend={b})" for b in (0.0, 0.3, 0.5, 1.0)),
    *(f"axn(retriever=dense, rounds={r}, vectors=dense)" for r in (1, 2, 5)),
    *(f"axn(retriever=bm25, rounds=5, normalize={n})" for n in ("anchors", "first", "none")),
    "axn(retriever=dense, vectors=other)",
    "axn(retriever=dense, vectors=other, blend=0.5, normalize=first)",
    "axn(retriever=dense, vectors=other, ridge=0.3)",
    "axn(retriever=bm25, rounds=5, vectors=rows)",
    "axn(retriever=bm25, rounds=5, vectors=rows, normalize=first)",
    "axn(retriever=bm25, rounds=5, vectors=rows, normalize=none)",
    "axn(retriever=dense, rcond=0.01)",
    "axn(retriever=hybrid, shortlist=120)",
    "axn(retriever=hybrid, ridge=0.3, shortlist=120)",
    "tour",
    *(f"tour(retriever=dense, loss={loss})" for loss in ("kl", "mse")),
    "tour(retriever=bm25, rounds=3, lr=0.5)",
    "tour(retriever=dense, loss=mse, lr=0.01, rounds=3)",
    *(f"tour(retriever=dense, normalize={n})" for n in ("auto", "first", "anchors")),
    "tour(retriever=dense, vectors=dense, normalize=auto)",
    "feedback",
    "feedback(retriever=dense)",
    "feedback(retriever=dense, retriever_share=0.3, rounds=2)",
    "feedback(retriever=dense, a=0.5, b=0.5, c=0.1)",
    "feedback(retriever=dense, pairs=10)",
    *(f"feedback(retriever=dense, vectors=dense, normalize={n})" for n in ("first", "none")),
    "refit",
    "refit(retriever=dense, steps=5)",
    "refit(retriever=dense, retriever_share=0.3, rounds=3, lr=0.1)",
    *(f"refit(retriever=dense, vectors=dense, normalize={n})" for n in ("first", "none")),
    "gar",
    *(f"gar(retriever={r}, batch=5)" for r in ("dense", "bm25", "random")),
    "gar(retriever=dense, graph=dense, neighbours=4, batch=5)",
    "gar(retriever=dense, graph=other, neighbours=8, batch=5)",
    "gar(retriever=dense, batch=5, affinity=set)",
    "gar(retriever=hybrid, batch=5, affinity=set, best=0.1)",
    "gar(retriever=hybrid, batch=5, affinity=set, softmax=raw)",
    "ladr",
    *(f"ladr(retriever={r}, batch=5)" for r in ("dense", "bm25")),
    "ladr(retriever=dense, neighbours=4, retriever_share=0.2, depth=5, batch=3)",
    "ladr(retriever=dense, graph=other, mode=proactive)",
    "ladr(retriever=bm25, neighbours=4, retriever_share=0.2, mode=proactive)",
    "greedy",
    *(f"greedy(retriever={r}, batch=5)" for r in ("dense", "bm25")),
    "greedy(retriever=dense, graph=other, neighbours=4, retriever_share=0, batch=1)",
    "greedy(retriever=dense, neighbours=4, retriever_share=0.2, batch=3)",
    "gp",
    *(f"gp(retriever={r}, rounds=5)" for r in ("dense", "bm25", "random")),
    *(f"gp(retriever=dense, rounds=5, kernel={k})" for k in ("matern", "linear")),
    *(f"gp(retriever=dense, rounds=5, mean={m})" for m in ("none", "average", "first")),
    "gp(retriever=hybrid, rounds=5, mean=first)",
    "gp(retriever=dense, rounds=5, scale=0.5, noise=0.2)",
    "gp(retriever=dense, rounds=5, beta=0)",
    "gp(retriever=dense, rounds=5, query=true)",
    "gp(retriever=dense, rounds=5, vectors=other, query=true, beta=0.5)",
    "gp(retriever=hybrid, rounds=5, shortlist=120)",
    "kriging",
    *(f"kriging(retriever={r}, rounds=5)" for r in ("dense", "bm25", "random")),
    "kriging(retriever=hybrid(bm25, dense), rounds=5)",
    "kriging(retriever=dense, mean=hybrid, rounds=5)",
    "kriging(retriever=dense, mean=hybrid(bm25, other), rounds=5)",
    "kriging(retriever=dense, use_anchors=false)",
    "kriging(retriever=hybrid, use_anchors=false, beta=0.5)",
    "kriging(retriever=dense, rank=8)",
    "kriging(retriever=dense, share=0.3, scale=1.0)",
    "kriging(retriever=dense, smooth=0.8, linear=0.1, noise=0.1)",
    "kriging(retriever=dense, smooth=0, noise=0.5)",
    "kriging(retriever=dense, beta=0.5)",
    "kriging(retriever=dense, vectors=dense)",
    "kriging(retriever=bm25, vectors=rows)",
    "kriging(retriever=hybrid, shortlist=120)",
    "kriging(retriever=hybrid, use_anchors=false, shortlist=120)",
    "kriging(retriever=dense, target_recall=0.5)",
    "kriging(retriever=dense, target_recall=0.7, k=3)",
)

ITEM_SPECS = (
    "fixeditem",
    "fixeditem(anchor_share=0.8)",
    "itemcur",
    "itemcur(anchor_share=0.3)",
    "itemcur(center=none)",
    "itemcur(rcond=0.01)",
)
"""Of the matrix that has item x item scores."""

TEXT_SPECS = (
    "exact",
    "retrieve",
    *(f"rerank(retriever={r})" for r in ("bm25", "tfidf", "lsa", "lists", "views", "mf", "own")),
    "rerank(retriever=cmc)",
    "rerank(retriever=cmc(retriever=bm25, depth=10))",
    "retrieve(retriever=cmc(retriever=hybrid(bm25, own), depth=10))",
    "axn(ridge=0.3)",
    "axn(retriever=bm25, rounds=4, blend=0.5)",
    "axn(retriever=cmc, rounds=4, ridge=0.3)",
    "adacur(rounds=3)",
    "anncur(anchor_share=0.5)",
    "fixeditem",
    "itemcur",
    "tour(rounds=3, vectors=own, normalize=auto)",
    "feedback(retriever=own)",
    "refit(retriever=own, vectors=own)",
    "gar(retriever=bm25, neighbours=4, batch=3)",
    "gar(retriever=own, neighbours=4, batch=3, affinity=set)",
    "ladr(retriever=own, neighbours=4, batch=3)",
    "greedy(retriever=own, neighbours=4, batch=3)",
    "gp(retriever=own, rounds=3)",
    "kriging(retriever=bm25, rounds=3)",
    "kriging(retriever=own, rounds=3)",
    "kriging(retriever=own, mean=hybrid(bm25, own, views), rounds=3)",
)

BUNDLED_SPECS = (
    "axn(ridge=0.3)",
    "rerank",
    "adacur(retriever=dense, rounds=3)",
    "gar(retriever=bm25, neighbours=4, batch=3)",
    "kriging(retriever=hybrid, rounds=3)",
    "retrieve(retriever=dense)",
)

VARIANTS = (
    *(("medquad", s, {"allowed": True}) for s in ("axn(ridge=0.3)", "gar(batch=5)", "kriging")),
    ("wordnet", "adacur(retriever=dense, rounds=3)", {"allowed": True}),
    ("wordnet", "ladr(retriever=bm25, batch=5)", {"allowed": True}),
    *(("medquad", s, {"lost": True}) for s in ("axn(ridge=0.3)", "gar(batch=5)", "kriging")),
    ("wordnet", "rerank(retriever=bm25)", {"lost": True}),
    *(
        (name, spec, {"total": 20 * QUERIES, "k": k})
        for name, spec, k in (
            ("medquad", "kriging(retriever=hybrid)", 10),
            ("wordnet", "kriging(retriever=dense)", 3),
            ("wordnet", "gp(retriever=dense, rounds=5)", 5),
        )
    ),
)
"""Searches with a filter, with pairs that cannot be scored, and with a shared budget."""


def in_full(text):
    """A short spec with every option."""
    name, options = options_of(text)
    settings = {**defaults()[name], **options}
    return f"{name}({', '.join(f'{k}={v}' for k, v in settings.items())})"


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
    """A cut of a stored matrix: 700 items, 40 anchor queries, 4 test queries."""
    path, n = {"medquad": ("medquad-two", 700), "wordnet": ("wordnet-artifact", 900)}[name]
    with np.load(DATA / f"{path}.npz") as file:
        arrays = {key: file[key] for key in file.files}
    return _opened(_cut(arrays, np.random.default_rng(0), n, 40))


def _cut(arrays, rng, n, anchors):
    """The same keys for `n` random items and the first queries of both kinds."""
    chosen = np.sort(rng.choice(len(arrays["item_ids"]), n, replace=False))
    where = np.full(len(arrays["item_ids"]), -1)
    where[chosen] = np.arange(n)
    first = int(arrays["n_anchors"])
    queries = np.r_[0:anchors, first : first + QUERIES]
    made = {"n_anchors": np.array(anchors)}
    made["scores"] = arrays["scores"][queries][:, chosen].astype(np.float32)
    made["first_bm25"] = arrays["first_bm25"][queries][:, chosen].astype(np.float32)
    made["query_ids"] = arrays["query_ids"][queries]
    made["item_vectors"] = arrays["item_vectors"][chosen].astype(np.float32)
    made["query_vectors"] = arrays["query_vectors"][queries].astype(np.float32)
    order = where[arrays["anchor_items"]]
    made["anchor_items"] = order[order >= 0]
    # Vectors of another space, and some that queries have none beside.
    noise = rng.normal(size=made["item_vectors"].shape) * made["item_vectors"].std()
    made["item_vectors_rows"] = (made["scores"][:anchors] - made["scores"][:anchors].mean()).T
    made["item_vectors_other"] = (made["item_vectors"] + noise / 2).astype(np.float32)
    made["query_vectors_other"] = made["query_vectors"]
    if "item_score_items" in arrays:
        here = where[arrays["item_score_items"]]
        made["item_score_items"] = here[here >= 0]
        made["item_scores"] = arrays["item_scores"][here >= 0][:, chosen].astype(np.float32)
    return made


def _opened(arrays):
    with TemporaryDirectory() as folder:
        path = Path(folder) / "cut.npz"
        np.savez(path, **arrays)
        return StoredMatrix.load(path)


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


@cache
def text_index(learned=None):
    """(index with all that methods use, scorer); with the prior of kriging fitted if named."""
    scorer = ck.CallableScorer(overlap, "words")
    texts = corpus()
    own = text_vectors(texts)
    index = ck.ItemIndex.build(
        texts, vectors={"own": own}, query_vectors={"own": text_vectors}, lsa=6, tfidf=True
    )
    rng = np.random.default_rng(1)
    ids = index.items.ids
    collect_anchors(index, scorer, ANCHOR_TEXTS)
    collect_item_scores(index, scorer, np.arange(0, N, 3))
    index.add_graph("own", 8)
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
    index = ck.ItemIndex.build(corpus(), encoder="bundled", tfidf=True)
    collect_anchors(index, scorer, ANCHOR_TEXTS[:4])
    index.add_graph(None, 8)
    return index, scorer


def cases():
    """(key, function that searches: () -> picks per query) of all that is recorded."""
    for name in ("medquad", "wordnet"):
        for short in (*MATRIX_SPECS, *(ITEM_SPECS if name == "medquad" else ())):
            for budget in BUDGETS:
                yield from _case(name, short, budget)
    for name, short, options in VARIANTS:
        yield from _case(name, short, 20, **options)
    for budget in TEXT_BUDGETS:
        for short in TEXT_SPECS:
            yield _text_case("text", short, budget)
        for short in ("kriging(retriever=bm25, rounds=3)", "kriging(retriever=bm25, rank=3)"):
            yield _text_case("learned", short, budget)
    for short in BUNDLED_SPECS:
        yield _text_case("bundled", short, TEXT_BUDGETS[0])


def _case(name, short, budget, **options):
    spec = in_full(short)

    def search():
        """Of `lost` items no score is ever told; `total` is a shared budget for the top `k`."""
        data, total = matrix(name), options.get("total")
        index, queries, scores = data.rows(0, QUERIES)
        allowed = np.random.default_rng(1).random(index.n) < 0.4 if "allowed" in options else None
        lost = np.random.default_rng(2).random(index.n) < 0.2 if "lost" in options else None
        plan = parse_method(spec).plan(index, budget, 0)
        if total is not None:
            plan = replace(plan, share=SharedBudget(total=total, k=options["k"]))
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
        learned = "bm25" if kind == "learned" else None
        index, scorer = bundled_index() if kind == "bundled" else text_index(learned)
        searcher = ck.Searcher(index, scorer, spec)
        results = searcher.search(list(TEXT_QUERIES), k=5, budget=budget, trace=True)
        rows = results.trace if results.n_calls else results
        return [[(hit.position, hit.round) for hit in hits] for hits in rows]

    return f"{kind} {spec} {budget}", search
