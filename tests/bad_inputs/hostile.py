"""Inputs that are wrong, in lists: of the command line and of Python."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import crossknn as ck
from crossknn.fitting.anchors import collect_anchors
from crossknn.index.stored import StoredMatrix
from crossknn.retrievers.lists import CandidateLists
from crossknn.scorers import CallableScorer, CrossEncoder, HttpScorer, as_scorer
from crossknn.scores.stored import StoredScorer

LONG = "x" * 5000
HUGE = "9" * 30
NUMBERS = ("0", "-1", "1.5", "x", "", "1e300", "nan", "inf", HUGE)
REALS = ("0", "-1", "nan", "-inf", "x", "")
PATHS = ("absent", ".", "a\0b", LONG, "binary.bin", "", "docs.jsonl/inside", "empty")
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
    "",
    "(",
    ")",
    "axn(",
    "axn)",
    "axn((",
    "axn(rounds)",
    "axn(rounds=)",
    "axn(=5)",
    "axn(rounds=0)",
    "axn(rounds=-3)",
    "axn(rounds=1.5)",
    "axn(rounds=x)",
    "axn(rounds=1e300)",
    "axn(rounds=5, rounds=6)",
    "axn(blend=nan)",
    "axn(blend=inf)",
    "axn(blend=2)",
    "axn(ridge=0)",
    "axn(ridge=-1)",
    "axn(ridge=nan)",
    "axn(ridge=inf)",
    "axn(rcond=nan)",
    "axn(rcond=-1)",
    "axn(rcond=inf)",
    "axn(first=)",
    "axn(retriever=nothing)",
    "axn(retriever=hybrid(bm25))x",
    "axn(retriever=hybrid(nothing, bm25))",
    "axn(retriever=bm25(k=3))",
    "axn(normalize=sometimes)",
    "axn(vectors=none)",
    "axn(shortlist=0)",
    "axn(shortlist=x)",
    "rerank(rounds=5)",
    "rerank(retriever=" + "hybrid(" * 400 + "bm25" + ")" * 400 + ")",
    "r\0nr",
    "rerank\n(retriever=bm25)x",
    "ünknown(retriever=bm25)",
    LONG,
    "adacur(split=2)",
    "adacur(split=nan)",
    "adacur(sample=perhaps)",
    "adacur(center=sometimes)",
    "anncur(anchors=-0.5)",
    "tour(lr=x)",
    "tour(lr=nan)",
    "tour(loss=hinge)",
    "gp(scale=nan)",
    "gp(scale=-1)",
    "gp(noise=nan)",
    "gp(noise=inf)",
    "gp(beta=nan)",
    "gp(beta=-1)",
    "gp(kernel=cubic)",
    "gp(mean=median)",
    "gp(query=perhaps)",
    "kriging(scale=nan, anchors=false)",
    "kriging(noise=inf, anchors=false)",
    "kriging(beta=nan, anchors=false)",
    "kriging(share=nan, anchors=false)",
    "kriging(rank=0)",
    "kriging(k=0)",
    "kriging(target_recall=nan)",
    "gar(neighbours=0)",
    "gar(batch=0)",
    "gar(best=2, affinity=set)",
    "gar(softmax=loud)",
    "ladr(depth=0)",
    "ladr(mode=lazy)",
    "greedy(seeds=-1)",
    "feedback(b=-1)",
    "feedback(b=nan)",
    "feedback(a=inf)",
    "feedback(c=nan)",
    "feedback(pairs=0)",
    "refit(lr=0)",
    "refit(lr=nan)",
    "refit(steps=0)",
    "cmc(depth=0)",
    "retrieve(first=)",
    "exact(retriever=bm25)",
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
        for option in (
            "timeout",
            "=5",
            "timeout=nan",
            "timeout=0",
            "timeout=-1",
            "timeout=x",
            "timeout=true",
            "timeout=1e300",
            "batch=0",
            "batch=x",
            "batch=1.5",
            "concurrency=0",
            "concurrency=many",
            "retries=-1",
            "shape=round",
            "shape=5",
            "probabilities=perhaps",
            "probabilities=1",
            "nothing=1",
            "api_key=secret",
            "timeuot=5",
        )
    )
    yield [*search, "--method", method, "--scorer-option", "max_length=0"]
    yield [*search, "--method", method, "--scorer-option", "max_length=x"]
    yield [*search, "--method", method, "--scorer-option", "threads=-1"]
    yield [*search, "--method", method, "--scorer-option", "timeout=5"]
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
        for name in (
            "text.npz",
            "anchors.npz",
            "pickled.npz",
            "pickled.npy",
            "huge.npz",
            "docs.jsonl",
        )
    )
    yield from (
        ["replay", "good.npz", "--methods", "rerank(retriever=random)", option, value]
        for option, value in (
            ("--budgets", "x"),
            ("--budgets", "0"),
            ("--k", "0"),
            ("--k", "100"),
            ("--seed", "x"),
        )
    )
    yield from (["estimate", path] for path in PATHS if path != "absent")
    yield from (["estimate", "docs.index", "--seconds", real] for real in ("0", "-1", "nan", "x"))
    yield from (["estimate", "docs.index", "--budget", number] for number in ("0", "-1", "x"))
    yield from (
        ["collect", "docs.index", "--out", path, "--queries", "queries.txt"]
        for path in ("a\0b", LONG, ".")
    )
    yield from (["fit", "docs.index", "log", "--store", path] for path in PATHS)
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
    queries = options.pop("queries", "topic 3")
    return _searcher().search(queries, **{"k": 2, "budget": 5, **options})


def _scored(fn: Callable[..., object], **options: Any) -> object:
    return _searcher(CallableScorer(fn, **options)).search("topic 3", k=2, budget=5)


def calls() -> Iterator[tuple[str, Callable[[], object]]]:
    """Calls of the Python interface that are wrong, by name."""
    wrong = (None, "5", 1.5, float("nan"), -1, 0, True, [], 10**30, np.inf)
    for name in ("k", "budget"):
        for value in wrong:
            if name == "budget" and value == 10**30:
                continue
            yield f"{name}={value!r}", partial(_search, **{name: value})
    for value in ("5", 1.5, -1, 0, True, []):
        yield f"total_budget={value!r}", partial(_search, budget=ck.Budget(total=value))
    for value in (0, -1, float("nan"), "soon", [], -np.inf):
        yield f"deadline={value!r}", partial(_search, budget=ck.Budget(per_query=5, deadline=value))
    for value in ("", " ", "\t\n", [], [""], [None], [5], 5, None, {"a": 1}, [["a"]], b"topic"):
        yield f"queries={value!r}", partial(_search, queries=value)
    for value in (
        "d1",
        ["nobody"],
        [],
        [5],
        [None],
        5,
        np.zeros(30, bool),
        np.ones(7, bool),
        np.ones(30),
        np.ones((30, 2), bool),
        {"d1": None, "x": 1},
    ):
        yield f"filter={value!r:.40}", partial(_search, filter=value)
    for value in (5, None, [], b"rerank", object()):
        yield f"method={value!r:.30}", lambda value=value: _searcher(method=value)
    for value in ("x", 1.5, -1, []):
        yield f"seed={value!r}", partial(_search, seed=value)
    yield "cancel=5", partial(_search, cancel=5)
    yield "progress=5", partial(_search, progress=5)
    for spec in SPECS:
        yield (
            f"method {spec[:40]!r}",
            lambda spec=spec: _searcher(method=spec).search("topic", k=2, budget=5),
        )
    for value in (5, object(), np.zeros(3), [], {}, b"x"):
        yield f"scorer={value!r:.30}", lambda value=value: as_scorer(value)
    for url in (*URLS, 5, b"http://host"):
        yield f"HttpScorer({url!r:.40})", lambda url=url: HttpScorer(url)
    for option in (
        {"timeout": float("nan")},
        {"timeout": "x"},
        {"timeout": 0},
        {"timeout": None},
        {"timeout": True},
        {"batch": 0},
        {"batch": 1.5},
        {"batch": "x"},
        {"retries": -1},
        {"retries": None},
        {"concurrency": 0},
        {"concurrency": 2.0},
        {"shape": "round"},
        {"shape": []},
        {"probabilities": "yes"},
        {"api_key": "line\nbreak"},
        {"api_key": "schlüssel"},
        {"model": 5},
    ):
        yield f"HttpScorer {option}", lambda option=option: HttpScorer("http://host", **option)
    answers: dict[str, Callable[[list], object]] = {
        "None": lambda pairs: None,
        "nothing": lambda pairs: [],
        "too few": lambda pairs: [1.0] * (len(pairs) - 1),
        "too many": lambda pairs: [1.0] * (len(pairs) + 1),
        "NaN": lambda pairs: [float("nan")] * len(pairs),
        "infinity": lambda pairs: [float("inf")] * len(pairs),
        "1e300": lambda pairs: [1e300] * len(pairs),
        "texts": lambda pairs: ["good"] * len(pairs),
        "pairs": lambda pairs: [[1.0, 2.0]] * len(pairs),
        "a number": lambda pairs: 1.0,
        "a dict": lambda pairs: {"a": 1},
        "complex": lambda pairs: [1j] * len(pairs),
        "ragged": lambda pairs: [[1.0], [1.0, 2.0]] * len(pairs),
        "an error": lambda pairs: 1 / 0,
        "a string": lambda pairs: "12345",
    }
    for name, fn in answers.items():
        yield f"a scorer that gives {name}", partial(_scored, fn)
    for value in (0, -1, 1.5, "x"):
        yield (
            f"CallableScorer(batch={value!r})",
            lambda value=value: CallableScorer(len, batch=value),
        )
    yield "CallableScorer(5)", lambda: CallableScorer(5)
    yield "CallableScorer(name=5)", lambda: CallableScorer(len, 5)
    vectors = np.ones((3, 4))
    texts = ["a", "b", "c"]
    for name, value in {
        "NaN": np.full((3, 4), np.nan),
        "infinite": np.full((3, 4), np.inf),
        "short": vectors[:2],
        "flat": np.ones(3),
        "texts": np.full((3, 4), "x"),
        "empty": np.ones((3, 0)),
        "a list": [[1, 2], [3]],
        "objects": np.full((3, 4), None),
    }.items():
        yield f"add_vectors {name}", lambda value=value: ck.ItemIndex.build(texts, vectors=value)
    for value in (
        [],
        [""],
        [None],
        [5],
        ["a", 7],
        5,
        None,
        "absent",
        "a\0b",
        "a" * 5000,
        [{}],
        [{"id": 1}],
        b"x",
    ):
        yield f"build({value!r:.30})", lambda value=value: ck.ItemIndex.build(value)
    yield (
        "build of equal ids",
        lambda: ck.ItemIndex.build([{"id": "a", "text": "x"}, {"id": "a", "text": "y"}]),
    )
    for value in (-1, 1.5, "x", True):
        yield f"build(lsa={value!r})", lambda value=value: ck.ItemIndex.build(texts, lsa=value)
    for value in (5, object(), "absent/a/b", np.ones(3)):
        yield (
            f"build(encoder={value!r:.20})",
            lambda value=value: ck.ItemIndex.build(texts, encoder=value),
        )
    for value in ("absent", "a\0b", "a" * 5000, "", 5, None, "docs.jsonl", "."):
        yield f"load({value!r:.20})", lambda value=value: ck.ItemIndex.load(value)
    for value in ("a\0b", "a" * 5000, "docs.jsonl", 5, None):
        yield f"save({value!r:.20})", lambda value=value: _index(texts).save(value)
    for value in (
        "absent.npz",
        "a\0b",
        "a" * 5000,
        "binary.bin",
        "empty",
        "docs.jsonl",
        "pickled.npz",
        "text.npz",
        "anchors.npz",
        "huge.npz",
        5,
        ".",
    ):
        yield f"StoredMatrix.load({value!r:.20})", lambda value=value: StoredMatrix.load(value)
    for reader in (ck.read_items, ck.read_queries, ck.read_qrels):
        for value in ("absent", "a\0b", "a" * 5000, "binary.bin", "empty", 5, None, "."):
            yield (
                f"{reader.__name__}({value!r:.20})",
                lambda reader=reader, value=value: reader(value),
            )
    for value in ("a\0b", ".", "binary.bin", "a" * 5000, "docs.jsonl/x", 5):
        yield (
            f"StoredScorer({value!r:.20})",
            lambda value=value: StoredScorer(CallableScorer(len, "n"), value),
        )
    yield "StoredScorer without a name", lambda: StoredScorer(CallableScorer(len), "c.db")
    for value in (np.ones(3), np.full((2, 3), "x"), [[1.0]], None):
        yield f"MatrixScorer({value!r:.20})", lambda value=value: ck.MatrixScorer(value)
    for value in ("absent/a/b", "binary.bin", "docs.index", "", " ", "a\0b", "a" * 5000, 5):
        yield f"CrossEncoder({value!r:.20})", lambda value=value: CrossEncoder(value)
    for option in (
        {"max_length": 0},
        {"max_length": "x"},
        {"threads": 0},
        {"threads": 1.5},
        {"tokens_per_run": 0},
        {"nothing": 1},
    ):
        yield f"CrossEncoder({option})", lambda option=option: CrossEncoder(**option)
    for value in (0, -1, 1.5, "x"):
        yield f"add_graph(k={value!r})", lambda value=value: _index(texts).add_graph("bm25", value)
    for value in (None, [], [""], [None], "topic", 5):
        yield (
            f"collect_anchors({value!r})",
            lambda value=value: collect_anchors(
                _index(texts), CallableScorer(lambda pairs: [1.0] * len(pairs), "n"), value
            ),
        )
    lists = ck.ItemIndex.build("docs.jsonl").items.ids
    queries = ck.read_queries("queries.txt")
    for value in ("lists.run", "absent", "a\0b", "binary.bin"):
        yield (
            f"CandidateLists({value!r})",
            lambda value=value: CandidateLists.from_run(value, queries, lists),
        )
    flag = threading.Event()
    yield "filter and a mask of numbers", partial(_search, filter=[1.5, 2.5], cancel=flag)


def _index(texts: list[str]) -> ck.ItemIndex:
    return ck.ItemIndex.build(texts, lsa=1)
