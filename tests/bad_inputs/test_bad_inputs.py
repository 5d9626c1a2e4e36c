"""Wrong input, some hundred kinds, of the command line and of Python: one sentence each, never a
traceback, and nothing hangs."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import crossknn as ck
from crossknn import CallableScorer, CrossEncoder, HttpScorer
from crossknn.cli.app import run
from crossknn.errors import CrossknnError
from crossknn.fitting.anchors import collect_anchors
from crossknn.retrievers.base import CandidateLists
from crossknn.scorers.opening import as_scorer
from crossknn.scorers.plain import MatrixScorer
from crossknn.scores.stored import StoredScorer
from crossknn_lab.stored import StoredMatrix

LONG = "x" * 5000
HUGE = "9" * 30
NUMBERS = ("0", "-1", "1.5", "x", "", "1e300", "nan", "inf", HUGE)
REALS = ("0", "-1", "nan", "-inf", "x", "")
NO_QUERIES = (7, {"query": "a tree"}, {"q1": ["a tree"]}, {"a": 1}, [["a tree"]], b"topic")
PATHS = ("absent", ".", "a\0b", LONG, "binary.bin", "", "docs.jsonl/inside", "empty")
MATRICES = ("text.npz", "anchors.npz", "pickled.npz", "huge.npz")
URLS = (
    *("http://host:99999/rerank", "http://host:x/rerank", "http://host:-1", "http://[::1"),
    *("http://", "http:///rerank", "http://a b/", "http://host\n/rerank", "http://\0/"),
    *("https://" + "h" * 300, "http://user:secret-word@host:99999/?key=secret-word"),
    *("http://[zz::1]/", "http://\ud800/"),
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
adacur(center=sometimes);anncur(anchor_share=-0.5);tour(lr=x);tour(lr=nan);tour(loss=hinge)
kriging(rounds=0);kriging(k=0)
kriging(target_recall=nan);gar(neighbours=0);gar(softmax=loud);ladr(mode=lazy)
greedy(retriever_share=-1);feedback(b=nan);reformir(depth=0);acurank(uncertain=0);refit(lr=nan);cmc(depth=0)
retrieve(first=);exact(retriever=bm25)""".replace(";", "\n").splitlines(),
)


def make_files():
    """The files that the inputs name, in the current folder."""
    lines = [f'{{"id": "d{i}", "text": "text number {i} about topic {i % 5}"}}' for i in range(30)]
    Path("docs.jsonl").write_text("\n".join(lines) + "\n")
    Path("queries.txt").write_text("topic 3\ntopic 4\n")
    Path("binary.bin").write_bytes(bytes(range(256)) * 40)
    Path("empty").write_text("")
    Path("lists.run").write_text("0 Q0 d1 1 nan run\n")
    Path("deep.json").write_text("[" * 100_000)
    Path("ids.txt").write_text("nobody\n")
    index = ck.ItemIndex.build("docs.jsonl")
    index.save("docs.index")
    scores = np.random.default_rng(0).normal(size=(6, 30))
    np.savez("huge.npz", scores=np.where(scores > 0, 1e300, 0), n_anchors=2)
    np.savez("text.npz", scores=np.full((6, 30), "x"), n_anchors=2)
    np.savez("anchors.npz", scores=scores, n_anchors=np.array([1, 2]))
    np.save("pickled.npy", np.array([{}], dtype=object), allow_pickle=True)
    Path("pickled.npz").write_bytes(Path("pickled.npy").read_bytes())


SEARCH = "search docs.index topic --method rerank(retriever=bm25)"
BUILD = "index build docs.jsonl new.index --encoder none"
COMPARE = "compare docs.index --queries queries.txt"
COMMANDS = {
    "search docs.index {}": ("", " ", "\n\t"),
    "search {} topic": PATHS,
    f"{SEARCH} -k {{}}": NUMBERS,
    f"{SEARCH} --budget {{}}": NUMBERS[:-1],  # a huge budget is exact search
    f"{SEARCH} --deadline {{}}": REALS,
    f"{SEARCH} --scorer {{}}": (
        *URLS,
        *("", " ", "absent/model", "./absent", "binary.bin", "a\0b", LONG, "docs.index"),
    ),
    f"{SEARCH} --scorer http://127.0.0.1:9/ --scorer-option {{}}": (
        *("timeout", "=5", "timeout=nan", "timeout=0", "timeout=-1", "timeout=x", "timeout=true"),
        *("timeout=1e300", "batch=0", "batch=x", "batch=1.5", "concurrency=0", "concurrency=many"),
        *("retries=-1", "api=round", "api=5", "probabilities=perhaps", "probabilities=1"),
        *("nothing=1", "api_key=secret", "timeuot=5"),
    ),
    f"{SEARCH} --scorer-option {{}}": ("max_length=0", "max_length=x", "threads=-1", "timeout=5"),
    f"{SEARCH} --endpoint-model {{}}": ("m",),
    f"{SEARCH} --scorer http://127.0.0.1:9/ --store {{}}": ("c.db",),
    f"{SEARCH} --queries {{}}": PATHS,
    f"{SEARCH} --filter {{}}": (*PATHS, "ids.txt", "{", "{}", '{"x": 1}'),
    f"{SEARCH} --lists {{}}": (*PATHS, "lists.run"),
    f"{SEARCH} --store {{}}": PATHS[1:-1],
    "index build {} new.index --encoder none": (*PATHS, "deep.json"),
    "index build docs.jsonl {} --encoder none": ("a\0b", LONG, "docs.jsonl"),
    "index build docs.jsonl new.index --encoder {}": ("absent/x/y", "", "docs.index"),
    f"{BUILD} --lsa {{}}": ("-1", "x", "1.5"),
    f"{BUILD} --template {{}}": ("{", "{0}", "{nothing}", "{text.x}", "}"),
    f"{BUILD} --text-field {{}}": ("nothing", "a\0b"),
    "collect docs.index --anchors {}": PATHS,
    "collect docs.index --anchors queries.txt --max-calls {}": ("0", "x", "nan"),
    f"{COMPARE} --budgets {{}}": ("", "x", "0", "1,,x", "nan", "1e300"),
    f"{COMPARE} -k {{}}": ("0", "x", "31", "-1", HUGE),
    f"{COMPARE} --methods {{}}": ("", ";", "rerank(", "nothing"),
    f"{COMPARE} --qrels {{}}": PATHS,
    f"{COMPARE} --scorer {{}}": URLS[:6],
    f"{COMPARE} --measures {{}}": ("nDCG@10",),
    "fit docs.index --queries queries.txt --deadline {}": ("x", "-1s", "nan", "0m", ""),
    "{}": ("nothing", "--nothing", "sea\0rch", LONG, "search"),
}
"""Arguments of `crossknn`, and what makes them wrong in place of `{}`."""


def command_lines():
    """Arguments of `crossknn` that are wrong."""
    for line, values in COMMANDS.items():
        for value in values:
            yield [part.replace("{}", value) for part in line.split()]


def _searcher(scorer=None, method="rerank(retriever=bm25)"):
    index = ck.ItemIndex.load("docs.index")
    return ck.Searcher(index, scorer or (lambda pairs: [float(len(t)) for _, t in pairs]), method)


def _search(**options):
    return _searcher().search(**{"queries": "topic 3", "k": 2, "budget": 5, **options})


def _scored(fn):
    return _searcher(CallableScorer(fn)).search("topic 3", k=2, budget=5)


def _each(name, call, values):
    """`call` with each of these values, by name."""
    yield from ((f"{name}({value!r:.40})", partial(call, value)) for value in values)


def _with(make, options):
    """`make` with each of the values of each option."""
    for name, values in options.items():
        yield from _each(name, lambda value, name=name: make(**{name: value}), values)


def calls():
    """Calls of the Python interface that are wrong, by name."""
    nan, inf, texts, vectors = float("nan"), float("inf"), ["a", "b", "c"], np.ones((3, 4))
    files = ("absent", "a\0b", LONG, "binary.bin", "empty", 5, ".")
    wrong = (None, "5", 1.5, nan, -1, 0, True, [], inf)
    masks = (np.ones(7, bool), np.ones(30), np.ones((30, 2), bool))
    searches = {
        "k": wrong[1:],
        "budget": wrong[1:],
        "queries": ("", " ", "\t\n", [], [""], [None], [5], 5, None, *NO_QUERIES),
        "filter": ("d1", ["nobody"], [5], [None], 5, [1.5, 2.5], {"x": 1}, {}, {1: 2}, *masks),
        "seed": ("x", 1.5, -1, []),
    }
    yield from _with(_search, searches)
    yield from _each(
        "method",
        lambda spec: _searcher(method=spec).search("topic", k=2, budget=5),
        (5, [], b"rerank", object(), *SPECS),
    )
    yield from _each("scorer", as_scorer, (5, object(), np.zeros(3), [], {}, b"x"))
    yield from _each("HttpScorer", HttpScorer, (*URLS, 5, b"http://host"))
    options = {"timeout": (nan, "x", 0, None, True), "batch": (0, 1.5, "x"), "retries": (-1, None)}
    options |= {"concurrency": (0, 2.0), "api": ("round", []), "probabilities": ("yes",)}
    options |= {"api_key": ("line\nbreak", "schlüssel"), "model": (5,)}
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
    given = {
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
    yield from _each("read_queries", ck.read_queries, NO_QUERIES)
    for reader in (ck.read_items, ck.read_queries, ck.read_qrels):
        yield from _each(reader.__name__, reader, (*files, None))
    yield from _each(
        "StoredScorer",
        partial(StoredScorer, CallableScorer(len, "n")),
        ("a\0b", ".", "binary.bin", LONG, "docs.jsonl/x", 5),
    )
    yield "StoredScorer without a name", lambda: StoredScorer(CallableScorer(len), "c.db")
    wrong = (np.ones(3), np.full((2, 3), "x"), [[1.0]], None)
    yield from _each("MatrixScorer", MatrixScorer, wrong)
    models = ("absent/a/b", "binary.bin", "docs.index", "", " ", "a\0b", LONG, 5)
    yield from _each("CrossEncoder", CrossEncoder, models)
    options = {"max_length": (0, "x"), "threads": (0, 1.5), "nothing": (1,)}
    yield from _with(CrossEncoder, options)
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


def _index(texts):
    return ck.ItemIndex.build(texts, lsa=1)


SECONDS = 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("hostile"))
        make_files()
        yield


@pytest.mark.slow
@pytest.mark.parametrize("arguments", list(command_lines()))
def test_the_command_line_says_one_sentence(folder, capsys, arguments):
    began, code = time.perf_counter(), run(arguments)
    said = capsys.readouterr().err.strip()
    last = said.splitlines()[-1]
    assert 1 <= code <= 6
    assert last.startswith("crossknn: ")
    assert not any(word in said for word in ("Traceback", "secret-word"))
    assert len(last) < 12_000
    assert not any(ord(c) < 32 for c in last)
    assert time.perf_counter() - began < SECONDS


def test_python_raises_one_error_with_a_sentence(folder):
    wrong, made = [], list(calls())
    for name, call in made:
        began = time.perf_counter()
        try:
            call()
        except CrossknnError as error:
            if not str(error).strip() or "\n" in str(error) or "secret-word" in str(error):
                wrong.append(f"{name}: said {str(error)[:200]!r}")
        except Exception as error:
            wrong.append(f"{name}: raised {type(error).__name__}: {str(error)[:150]}")
        else:
            wrong.append(f"{name}: raised nothing")
        if time.perf_counter() - began > SECONDS:
            wrong.append(f"{name}: took too long")
    assert not wrong, "\n".join(wrong)
    assert len(made) >= 280
