"""Inputs that are wrong, in lists: of the command line and of Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import crossknn as ck
from crossknn.fitting.anchors import collect_anchors
from crossknn.index.stored import StoredMatrix
from crossknn.retrievers.base import CandidateLists
from crossknn.scorers import CallableScorer, CrossEncoder, HttpScorer, as_scorer
from crossknn.scores.stored import StoredScorer

LONG = "x" * 5000
HUGE = "9" * 30
NUMBERS = ("0", "-1", "1.5", "x", "", "1e300", "nan", "inf", HUGE)
REALS = ("0", "-1", "nan", "-inf", "x", "")
PATHS = ("absent", ".", "a\0b", LONG, "binary.bin", "", "docs.jsonl/inside", "empty")
MATRICES = ("text.npz", "anchors.npz", "pickled.npz", "huge.npz")
URLS = (
    "http://host:99999/rerank",
    "http://host:x/rerank",
    "http://host:-1",
    "http://[::1",
    "http://",
    "http:///rerank",
    "http://a b/",
    "http://host\n/rerank",
    "http://\0/",
    "https://" + "h" * 300,
    "http://user:secret-word@host:99999/?key=secret-word",
    "http://[zz::1]/",
    "http://\ud800/",
    "http://.../",
)
SPECS = (
    *("", "r\0nr", "rerank\n(retriever=bm25)x", LONG),
    "rerank(retriever=" + "hybrid(" * 400 + "bm25" + ")" * 400 + ")",
    *"""(;);axn(;axn);axn((;axn(rounds);axn(rounds=);axn(=5);axn(rounds=0);axn(rounds=-3);axn(rounds=1.5)
axn(rounds=x);axn(rounds=1e300);axn(rounds=5, rounds=6);axn(blend=nan);axn(blend=inf);axn(blend=2)
axn(ridge=0);axn(ridge=-1);axn(ridge=nan);axn(ridge=inf);axn(rcond=nan);axn(rcond=-1);axn(rcond=inf)
axn(first=);axn(retriever=nothing);axn(retriever=hybrid(bm25))x;axn(retriever=hybrid(nothing, bm25))
axn(retriever=bm25(k=3));axn(normalize=sometimes);axn(vectors=none);axn(shortlist=0);axn(shortlist=x)
rerank(rounds=5);ünknown(retriever=bm25);adacur(anchor_share=2);adacur(anchor_share=nan);adacur(sample=perhaps)
adacur(center=sometimes);anncur(anchor_share=-0.5);tour(lr=x);tour(lr=nan);tour(loss=hinge);gp(scale=nan)
gp(scale=-1);gp(noise=nan);gp(noise=inf);gp(beta=nan);gp(beta=-1);gp(kernel=cubic);gp(mean=median)
gp(query=perhaps);kriging(scale=nan, use_anchors=false);kriging(noise=inf, use_anchors=false)
kriging(beta=nan, use_anchors=false);kriging(share=nan, use_anchors=false);kriging(rank=0);kriging(k=0)
kriging(target_recall=nan);gar(neighbours=0);gar(batch=0);gar(best=2, affinity=set);gar(softmax=loud)
ladr(depth=0);ladr(mode=lazy);greedy(retriever_share=-1);feedback(b=-1);feedback(b=nan);feedback(a=inf)
feedback(c=nan);feedback(pairs=0);refit(lr=0);refit(lr=nan);refit(steps=0);cmc(depth=0)
retrieve(first=);exact(retriever=bm25)""".replace(";", "\n").splitlines(),
)


def make_files() -> None:
    """The files that the inputs name, in the current folder."""
    lines = [f'{{"id": "d{i}", "text": "text number {i} about topic {i % 5}"}}' for i in range(30)]
    Path("docs.jsonl").write_text("\n".join(lines) + "\n")
    Path("queries.txt").write_text("topic 3\ntopic 4\n")
    Path("binary.bin").write_bytes(bytes(range(256)) * 40)
    Path("empty").write_text("")
    Path("nul.txt").write_bytes(b"topic\x00 3\n")
    Path("large.txt").write_text("topic " * 1_700_000 + "\n")
    Path("lists.run").write_text("0 Q0 d1 1 nan run\n")
    Path("deep.json").write_text("[" * 100_000)
    Path("ids.txt").write_text("nobody\n")
    index = ck.ItemIndex.build("docs.jsonl")
    index.save("docs.index")
    scores = np.random.default_rng(0).normal(size=(6, 30))
    np.savez("good.npz", scores=scores, n_anchors=2)
    np.savez("huge.npz", scores=np.where(scores > 0, 1e300, 0), n_anchors=2)
    np.savez("text.npz", scores=np.full((6, 30), "x"), n_anchors=2)
    np.savez("anchors.npz", scores=scores, n_anchors=np.array([1, 2]))
    np.save("pickled.npy", np.array([{}], dtype=object), allow_pickle=True)
    Path("pickled.npz").write_bytes(Path("pickled.npy").read_bytes())


def command_lines() -> Iterator[list[str]]:
    """Arguments of `crossknn` that are wrong."""
    search = ["search", "docs.index", "topic"]
    method = "rerank(retriever=bm25)"
    yield from ([*search, f"--method={spec}"] for spec in SPECS)
    yield from (
        [*search, "--method", method, option, number]
        for option in ("-k", "--budget", "--total-budget")
        for number in NUMBERS
        if option == "-k" or number != HUGE  # so large a budget is exact search
    )
    yield from ([*search, "--method", method, "--deadline", real] for real in REALS)
    yield from ([*search, "--seed", seed] for seed in ("x", "-1", "1.5", ""))
    yield from ([*search, "--method", method, "--scorer", url] for url in URLS)
    yield from (
        [*search, "--method", method, "--scorer", name]
        for name in ("", " ", "absent/model", "./absent", "binary.bin", "a\0b", LONG, "docs.index")
    )
    yield from (
        [*search, "--method", method, "--scorer", "http://127.0.0.1:9/", "--scorer-option", option]
        for option in """timeout;=5;timeout=nan;timeout=0;timeout=-1;timeout=x;timeout=true
timeout=1e300;batch=0;batch=x;batch=1.5;concurrency=0;concurrency=many;retries=-1;api=round
api=5;probabilities=perhaps;probabilities=1;nothing=1;api_key=secret;timeuot=5""".replace(
            ";", "\n"
        ).splitlines()
    )
    yield from (
        [*search, "--method", method, "--scorer-option", option]
        for option in ("max_length=0", "max_length=x", "threads=-1", "timeout=5")
    )
    yield [*search, "--model", "m"]
    yield [*search, "--method", method, "--store", "c.db", "--scorer", "http://127.0.0.1:9/"]
    for option in ("--queries", "--filter", "--lists", "--store"):
        yield from (
            [*search, "--method", method, option, path]
            for path in PATHS
            if path not in ("absent", "empty" if option == "--store" else "absent")
        )
    yield [*search, "--method", method, "--queries", "absent"]
    yield [*search, "--method", method, "--filter", "absent"]
    yield [*search, "--method", method, "--filter", "ids.txt"]
    yield [*search, "--method", method, "--lists", "lists.run"]
    yield from (["search", "docs.index", query] for query in ("", " ", "\n\t"))
    yield from (["search", path, "topic"] for path in PATHS)
    yield from (["index", "build", path, "new.index", "--encoder", "none"] for path in PATHS)
    yield ["index", "build", "deep.json", "new.index", "--encoder", "none"]
    build = ["index", "build", "docs.jsonl", "new.index", "--encoder", "none"]
    yield from ([*build, "--limit", number] for number in NUMBERS if number != HUGE)
    yield from ([*build, "--graph", number] for number in NUMBERS if number not in ("", HUGE))
    yield from ([*build, "--lsa", number] for number in ("-1", "x", "1.5"))
    yield from (
        [*build, "--graph", "3", "--graph-from", name] for name in ("nothing", "a\0b", LONG)
    )
    collect = ["collect", "docs.index"]
    yield from ([*collect, "--anchors", path] for path in PATHS)
    yield from ([*collect, "--item-scores", number] for number in ("0", "-2", "x", "nan"))
    yield from (
        [*collect, "--anchors", "queries.txt", "--max-calls", number]
        for number in ("0", "x", "nan")
    )
    yield from ([*build, "--template", text] for text in ("{", "{0}", "{nothing}", "{text.x}", "}"))
    yield from ([*build, "--text-field", name] for name in ("nothing", "a\0b"))
    yield from (
        ["index", "build", "docs.jsonl", path, "--encoder", "none"]
        for path in ("a\0b", LONG, "docs.jsonl")
    )
    yield from (
        ["index", "build", "docs.jsonl", "new.index", "--encoder", name]
        for name in ("absent/x/y", "", "docs.index")
    )
    compare = ["compare", "docs.index", "--queries", "queries.txt"]
    yield from ([*compare, "--budgets", text] for text in ("", "x", "0", "1,,x", "nan", "1e300"))
    yield from ([*compare, "-k", text] for text in ("0", "x", "31", "-1", "9" * 30))
    yield from ([*compare, "--methods", text] for text in ("", ";", "rerank(", "nothing"))
    yield from ([*compare, "--qrels", path] for path in PATHS)
    yield from ([*compare, "--scorer", url] for url in URLS[:6])
    yield [*compare, "--measures", "nDCG@10"]
    yield [*compare, "--plot", "a\0b.png"]
    yield [*compare, "--plot", LONG + ".png"]
    yield from (["replay", path, "--methods", method] for path in PATHS)
    yield from (
        ["replay", name, "--methods", "rerank(retriever=random)"]
        for name in (*MATRICES, "pickled.npy", "docs.jsonl")
    )
    yield from (
        ["replay", "good.npz", "--methods", "rerank(retriever=random)", option, value]
        for option, values in (("--budgets", "x 0"), ("--k", "0 100"), ("--seed", "x"))
        for value in values.split()
    )
    yield from (["estimate", path] for path in PATHS if path != "absent")
    yield from (["estimate", "docs.index", "--budget", number] for number in ("0", "-1", "x"))
    yield from (
        ["collect", "docs.index", "--out", path, "--queries", "queries.txt"]
        for path in ("a\0b", LONG, ".")
    )
    yield from (["fit", "docs.index", "stored", "--store", path] for path in PATHS)
    yield from (
        ["fit", "docs.index", "--queries", "auto", "--deadline", text]
        for text in ("x", "-1s", "nan", "0m", "")
    )
    yield from (["model", "export", path, "out"] for path in ("a\0b", LONG, "binary.bin", "empty"))
    yield from (["convert", path, "out"] for path in ("a\0b", LONG, "binary.bin", "empty", "."))
    yield from (["sweep", path, "--out", "runs"] for path in PATHS)
    yield from (["report", path, "--out", "rep"] for path in PATHS if path != ".")
    yield from ([name] for name in ("nothing", "--nothing", "sea\0rch", LONG, "search"))


def _searcher(scorer: Any = None, method: Any = "rerank(retriever=bm25)") -> ck.Searcher:
    index = ck.ItemIndex.load("docs.index")
    return ck.Searcher(index, scorer or (lambda pairs: [float(len(t)) for _, t in pairs]), method)


def _search(**options: Any) -> object:
    return _searcher().search(**{"queries": "topic 3", "k": 2, "budget": 5, **options})


def _scored(fn: Callable[..., object]) -> object:
    return _searcher(CallableScorer(fn)).search("topic 3", k=2, budget=5)


Calls = Iterator[tuple[str, Callable[[], object]]]


def _each(name: str, call: Callable[[Any], object], values: Iterable[Any]) -> Calls:
    """`call` with each of these values, by name."""
    yield from ((f"{name}({value!r:.40})", partial(call, value)) for value in values)


def _searched(**options: Any) -> Calls:
    """Searches with each of the values of an option."""
    for name, values in options.items():
        yield from _each(name, lambda value, name=name: _search(**{name: value}), values)


def _with(make: Callable[..., object], options: dict[str, Iterable[Any]]) -> Calls:
    """`make` with each of the values of each option."""
    for name, values in options.items():
        yield from _each(name, lambda value, name=name: make(**{name: value}), values)


def calls() -> Calls:
    """Calls of the Python interface that are wrong, by name."""
    nan, inf, texts, vectors = float("nan"), float("inf"), ["a", "b", "c"], np.ones((3, 4))
    files = ("absent", "a\0b", LONG, "binary.bin", "empty", 5, ".")
    wrong = (None, "5", 1.5, nan, -1, 0, True, [], inf)
    yield from _searched(
        k=(*wrong, 10**30),
        budget=wrong[1:],
        queries=("", " ", "\t\n", [], [""], [None], [5], 5, None, {"a": 1}, [["a"]], b"topic"),
        filter=("d1", ["nobody"], [], [5], [None], 5, [1.5, 2.5], {"d1": None, "x": 1}),
        seed=("x", 1.5, -1, []),
    )
    masks = (np.zeros(30, bool), np.ones(7, bool), np.ones(30), np.ones((30, 2), bool))
    yield from _searched(filter=masks)
    budgets = {"total": ("5", 1.5, -1, 0, True, []), "deadline": (0, -1, nan, "soon", [], -inf)}
    yield from _with(lambda **given: _search(budget=ck.Budget(**given)), budgets)
    yield from _each(
        "method",
        lambda spec: _searcher(method=spec).search("topic", k=2, budget=5),
        (5, None, [], b"rerank", object(), *SPECS),
    )
    yield from _each("scorer", as_scorer, (5, object(), np.zeros(3), [], {}, b"x"))
    yield from _each("HttpScorer", HttpScorer, (*URLS, 5, b"http://host"))
    options: dict[str, Iterable[Any]] = {
        "timeout": (nan, "x", 0, None, True),
        "batch": (0, 1.5, "x"),
        "retries": (-1, None),
        "concurrency": (0, 2.0),
        "api": ("round", []),
        "probabilities": ("yes",),
        "api_key": ("line\nbreak", "schlüssel"),
        "model": (5,),
    }
    yield from _with(partial(HttpScorer, "http://host"), options)
    answers = (None, [], [1.0], [1.0] * 31, 1.0, {"a": 1}, "12345", [[1.0], [1.0, 2.0]] * 15)
    for value in answers:
        yield f"a scorer that answers {value!r:.30}", partial(_scored, lambda _, v=value: v)
    for value in (nan, inf, 1e300, "good", [1.0, 2.0], 1j):
        yield f"scores {value}", partial(_scored, lambda pairs, v=value: [v] * len(pairs))
    yield "a scorer that breaks", partial(_scored, lambda pairs: 1 / 0)
    yield from _with(partial(CallableScorer, len), {"batch": (0, -1, 1.5, "x"), "name": (5,)})
    yield "CallableScorer(5)", lambda: CallableScorer(5)
    filled = (np.full((3, 4), value) for value in (nan, inf, "x", None))
    given: dict[str, Iterable[Any]] = {
        "vectors": (*filled, vectors[:2], np.ones(3), np.ones((3, 0)), [[1, 2], [3]]),
        "lsa": (-1, 1.5, "x", True),
        "encoder": (5, object(), "absent/a/b", np.ones(3)),
    }
    yield from _with(partial(ck.ItemIndex.build, texts), given)
    twice = [{"id": "a", "text": "x"}, {"id": "a", "text": "y"}]
    lists = ([], [""], [None], [5], ["a", 7], [{}], [{"id": 1}], b"x", twice)
    yield from _each("build", ck.ItemIndex.build, (*lists, None, *files[:3], 5))
    yield from _each("load", ck.ItemIndex.load, (*files[:3], "", 5, None, "docs.jsonl", "."))
    yield from _each("save", _index(texts).save, ("a\0b", LONG, "docs.jsonl", 5, None))
    yield from _each("matrix", StoredMatrix.load, (*MATRICES, *files, "docs.jsonl"))
    for reader in (ck.read_items, ck.read_queries, ck.read_qrels):
        yield from _each(reader.__name__, reader, (*files, None))
    yield from _each(
        "StoredScorer",
        partial(StoredScorer, CallableScorer(len, "n")),
        ("a\0b", ".", "binary.bin", LONG, "docs.jsonl/x", 5),
    )
    yield "StoredScorer without a name", lambda: StoredScorer(CallableScorer(len), "c.db")
    wrong = (np.ones(3), np.full((2, 3), "x"), [[1.0]], None)
    yield from _each("MatrixScorer", ck.MatrixScorer, wrong)
    models = ("absent/a/b", "binary.bin", "docs.index", "", " ", "a\0b", LONG, 5)
    yield from _each("CrossEncoder", CrossEncoder, models)
    options = {"max_length": (0, "x"), "threads": (0, 1.5), "tokens_per_run": (0,), "nothing": (1,)}
    yield from _with(CrossEncoder, options)
    yield from _each("graph", lambda k: _index(texts).add_graph("bm25", k), (0, -1, 1.5, "x"))
    scorer = CallableScorer(lambda pairs: [1.0] * len(pairs), "n")
    yield from _each(
        "collect_anchors",
        lambda queries: collect_anchors(_index(texts), scorer, queries),
        (None, [], [""], [None], "topic", 5),
    )
    ids, queries = ck.ItemIndex.load("docs.index").items.ids, ck.read_queries("queries.txt")
    yield from _each(
        "CandidateLists",
        lambda run: CandidateLists.from_run(run, queries, ids),
        ("lists.run", "absent", "a\0b", "binary.bin"),
    )


def _index(texts: list[str]) -> ck.ItemIndex:
    return ck.ItemIndex.build(texts, lsa=1)
