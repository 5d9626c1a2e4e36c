"""Wrong input through the real command line: an exit code and one clear sentence.

`docs/errors.md` is made of what happens here:

    CROSSKNN_WRITE_DOCS=1 python -m pytest tests/cli/test_bad_input.py
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from commands import LAB
from errors_table import check_table
from late_helpers import WordStates

from crossknn.fitting.anchors import collect_anchors
from crossknn.index.item_index import ItemIndex
from crossknn.scorers import CallableScorer, CrossEncoder
from crossknn.scores.stored import StoredScorer
from crossknn.search.searcher import Searcher

MARKS = "<!-- table made by tests/cli/test_bad_input.py -->", "<!-- end of table -->"
GOOD = [{"id": f"d{i}", "text": f"text number {i} about topic {i % 5}"} for i in range(30)]


def lines(records) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


FILES: dict[str, bytes] = {
    "docs.jsonl": lines(GOOD).encode(),
    "empty.jsonl": b"",
    "twice.jsonl": lines([{"id": "a", "text": "x"}, {"id": "b", "text": "y"}] * 2).encode(),
    "blank.jsonl": lines([{"id": "a", "text": "x"}, {"id": "b", "text": " "}]).encode(),
    "fields.jsonl": lines([{"id": "a", "texts": "x"}]).encode(),
    "broken.jsonl": b'{"id": "a", "text": "x"}\n{"id": "b", "text": \n',
    "latin.jsonl": b'{"id": "a", "text": "caf\xe9"}\n',
    "docs.pdf": b"%PDF",
    "header.csv": b"id,body\na,x\n",
    "queries.txt": b"topic one\ntopic two\n",
    "qrels.tsv": b"query-id\tcorpus-id\tscore\nq9\td1\t1\n",
    "ids.txt": b"d1\nnobody\n",
    "m.npz": b"not a zip",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A working folder with good and bad files, an index, damaged copies, and matrices."""
    where = tmp_path_factory.mktemp("bad")
    for name, content in FILES.items():
        (where / name).write_bytes(content)
    done = crossknn(where, "index", "build", "docs.jsonl", "docs.index", "--encoder", "none")
    assert done.returncode == 0, done.stderr
    index = ItemIndex.build(where / "docs.jsonl")
    index.add_late(WordStates())
    index.save(where / "late.index")
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(6, 20))
    np.savez(where / "good.npz", scores=scores, n_anchors=2)
    vectors = {"item_vectors": rng.normal(size=(20, 4)), "query_vectors": rng.normal(size=(6, 4))}
    np.savez(where / "one.npz", scores=scores, n_anchors=1, **vectors)
    bad = scores.copy()
    bad[3, 7] = np.nan
    np.savez(where / "nan.npz", scores=bad, n_anchors=2)
    np.savez(where / "width.npz", scores=scores, item_vectors=np.ones((19, 4)))
    damaged(where)
    anchored(where)
    (where / "no-index").mkdir()
    (where / "torch-model").mkdir()
    (where / "torch-model" / "config.json").write_text(
        json.dumps(
            {
                "model_type": "bert",
                "architectures": ["BertForSequenceClassification"],
                "id2label": {"0": "LABEL_0"},
                "num_labels": 1,
            }
        )
    )
    (where / "two-logits").mkdir()
    (where / "two-logits" / "config.json").write_text(
        json.dumps(
            {
                "model_type": "bert",
                "architectures": ["BertForSequenceClassification"],
                "id2label": {"0": "no", "1": "yes"},
                "num_labels": 2,
            }
        )
    )
    return where


def damaged(where: Path) -> None:
    import shutil

    for name in ("cut.index", "newer.index"):
        shutil.copytree(where / "docs.index", where / name)
    largest = max((where / "cut.index").rglob("*"), key=lambda p: p.stat().st_size * p.is_file())
    largest.write_bytes(largest.read_bytes()[:-5])
    manifest = where / "newer.index" / "crossknn-index.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"version": 99}))


def anchored(where: Path) -> None:
    """An index with anchors of a cross-encoder that is a function."""
    index = ItemIndex.build(where / "docs.jsonl")
    collect_anchors(
        index, CallableScorer(lambda pairs: [len(t) for _, t in pairs], "length"), ["one"]
    )
    index.save(where / "anchored.index")
    scorer = StoredScorer(CrossEncoder(), where / "queries.db")
    Searcher(index, scorer, "rerank(retriever=bm25)").search(["topic one", "two"], k=2, budget=4)
    scorer.store.close()


def crossknn(where: Path, *arguments: str, limit: int | None = None, code: str | None = None):
    """Run the command line in `where`; `limit` caps the size of files, `code` runs first."""
    module = "crossknn_lab" if arguments[0] in LAB else "crossknn"
    start = ["-c", f"{code}; from crossknn.cli import main; main()"] if code else ["-m", module]
    environment = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "PYTHONWARNINGS": "ignore"}
    return subprocess.run(
        [sys.executable, *start, *arguments],
        cwd=where,
        capture_output=True,
        text=True,
        timeout=180,
        env=environment,
        preexec_fn=(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
        if limit
        else None,
    )


FIT = ("fit", "docs.index", "als", "--queries", "queries.txt")
COLLECT = ("collect", "docs.index", "--queries", "queries.txt", "--out")
SEARCH = ("search", "docs.index", "topic")
LATE = ("search", "late.index", "topic", "--method")
CALLS: list[tuple[str, tuple[str, ...], int]] = [
    ("empty corpus", ("index", "build", "empty.jsonl", "new.index"), 2),
    ("duplicate ids", ("index", "build", "twice.jsonl", "new.index"), 2),
    ("an empty text", ("index", "build", "blank.jsonl", "new.index"), 2),
    ("a missing field", ("index", "build", "fields.jsonl", "new.index"), 2),
    ("a missing column", ("index", "build", "header.csv", "new.index"), 2),
    ("a malformed line", ("index", "build", "broken.jsonl", "new.index"), 2),
    ("not UTF-8", ("index", "build", "latin.jsonl", "new.index"), 2),
    ("an unknown kind of file", ("index", "build", "docs.pdf", "new.index"), 2),
    ("no such file", ("index", "build", "absent.jsonl", "new.index"), 2),
    (
        "a template with an unknown field",
        ("index", "build", "docs.jsonl", "new.index", "--template", "{body}"),
        2,
    ),
    ("k of 0", (*SEARCH, "-k", "0"), 2),
    ("a budget of 0", (*SEARCH, "--budget", "0"), 2),
    ("k above the number of items", (*SEARCH, "-k", "31"), 2),
    ("k above the budget", (*SEARCH, "-k", "20", "--budget", "10"), 2),
    ("no query", ("search", "docs.index"), 2),
    ("an empty query", ("search", "docs.index", " "), 2),
    ("an unknown id in a filter", (*SEARCH, "--filter", "ids.txt"), 2),
    ("an unknown method", (*SEARCH, "--method", "axm"), 2),
    ("an unknown option of a method", (*SEARCH, "--method", "axn(round=5)"), 2),
    ("an option's value", (*SEARCH, "--method", "axn(blend=2)"), 2),
    ("an unknown retriever", (*SEARCH, "--method", "rerank(retriever=bm52)"), 2),
    ("a retriever that the index lacks", (*SEARCH, "--method", "rerank(retriever=dense)"), 2),
    ("a method that needs anchors", (*SEARCH, "--method", "adacur"), 2),
    ("kriging with a scale of 0", (*SEARCH, "--method", "kriging(scale=0)"), 2),
    ("kriging with a share below 0", (*SEARCH, "--method", "kriging(share=-1)"), 2),
    ("kriging with a rank of 0", (*SEARCH, "--method", "kriging(rank=0)"), 2),
    ("target_recall without anchors", (*SEARCH, "--method", "kriging(target_recall=0.9)"), 2),
    ("a target above 1", (*SEARCH, "--method", "kriging(target_recall=2)"), 2),
    ("a total budget below k for each", (*SEARCH, "--total-budget", "5"), 2),
    (
        "a total budget for a method that knows no deviations",
        (*SEARCH, "--total-budget", "20", "--method", "rerank(retriever=bm25)"),
        2,
    ),
    ("kriging over vectors that are not there", (*SEARCH, "--method", "kriging(vectors=nope)"), 2),
    (
        "kriging without vectors",
        ("replay", "good.npz", "--methods", "kriging(retriever=random)"),
        2,
    ),
    (
        "kriging with a single anchor",
        ("replay", "one.npz", "--methods", "kriging(retriever=dense)"),
        2,
    ),
    (
        "anchors of another cross-encoder",
        (*("search", "anchored.index", "topic", "--method", "kriging"), "--scorer", "URL/few"),
        2,
    ),
    ("nothing to fit to", ("fit", "docs.index", "log"), 2),
    ("fitting to a store that is not there", ("fit", "docs.index", "log", "--store", "no.db"), 2),
    (
        "fitting to a file that is no store",
        ("fit", "docs.index", "log", "--store", "docs.jsonl"),
        2,
    ),
    ("a rank of 0", ("fit", "docs.index", "log", "--rank", "0"), 2),
    (
        "fitting for an unknown retriever",
        ("fit", "anchored.index", "log", "--retriever", "bm52"),
        2,
    ),
    (
        "fitting to one cross-encoder what another has scored",
        ("fit", "anchored.index", "log", "--store", "queries.db"),
        2,
    ),
    ("an unknown command", ("serch", "docs.index"), 2),
    ("an unknown flag", (*SEARCH, "--budgets", "5"), 2),
    ("not a number", (*SEARCH, "--budget", "many"), 2),
    ("a folder that is no index", ("search", "no-index", "topic"), 6),
    ("no such index", ("search", "absent.index", "topic"), 6),
    ("a truncated index", ("search", "cut.index", "topic"), 6),
    ("an index of a newer format", ("search", "newer.index", "topic"), 6),
    (
        "saving over something else",
        ("index", "build", "docs.jsonl", "torch-model", "--encoder", "none"),
        2,
    ),
    (
        "a place that cannot be written",
        ("index", "build", "docs.jsonl", "docs.jsonl/new.index", "--encoder", "none"),
        2,
    ),
    ("a model that is none", (*SEARCH, "--scorer", "no-index"), 2),
    ("a cross-encoder with two logits", (*SEARCH, "--scorer", "two-logits"), 2),
    ("a dual encoder as cross-encoder", (*SEARCH, "--scorer", "DUAL"), 2),
    ("a matrix that is no matrix", ("replay", "m.npz", "--methods", "exact"), 2),
    ("NaN in a matrix", ("replay", "nan.npz", "--methods", "exact"), 2),
    ("item vectors of the wrong length", ("replay", "width.npz", "--methods", "exact"), 2),
    ("item pairs that a matrix lacks", ("replay", "good.npz", "--methods", "itemcur"), 2),
    ("nothing to score", ("collect", "docs.index", "--out", "new.npz"), 2),
    (
        "a score matrix of something else",
        (*COLLECT, "good.npz"),
        2,
    ),
    (
        "a score matrix in a folder that is not there",
        (*COLLECT, "absent/new.npz"),
        2,
    ),
    (
        "more anchors than queries",
        (
            *(*COLLECT, "new.npz"),
            *("--n-anchors", "5"),
        ),
        2,
    ),
    (
        "more items in the query's place than there are",
        ("collect", "docs.index", "--item-scores", "50"),
        2,
    ),
    (
        "an endpoint whose model is not named",
        (
            *(*COLLECT, "new.npz"),
            *("--scorer", "URL/few"),
        ),
        2,
    ),
    (
        "more anchor queries than a matrix has",
        ("analyze", "good.npz", "--out", "figures", "--k-q", "6"),
        2,
    ),
    (
        "budgets that are no numbers",
        ("replay", "good.npz", "--methods", "exact", "--budgets", "5,x"),
        2,
    ),
    (
        "a budget of 0 among budgets",
        ("compare", "docs.index", "--queries", "queries.txt", "--budgets", "5,0"),
        2,
    ),
    (
        "qrels of other queries",
        ("compare", "docs.index", "--queries", "queries.txt", "--qrels", "qrels.tsv", "-k", "1"),
        2,
    ),
    (
        "a plot that is no picture",
        ("compare", "docs.index", "--queries", "queries.txt", "--plot", "r.txt"),
        2,
    ),
    ("an unknown way to fit", ("fit", "docs.index", "alz", "--queries", "queries.txt"), 2),
    ("fitted vectors with a name that is taken", (*FIT, "--name", "bm25"), 2),
    ("vectors to fit that are not there", (*FIT, "--vectors", "mine"), 2),
    ("no items per train query", (*FIT, "--per", "0"), 2),
    ("a deadline that is no duration", (*FIT, "--deadline", "soon"), 2),
    ("more queries per item than there are", (*FIT, "--strategy", "i", "--per", "50"), 2),
    ("a model's name for no URL", (*FIT, "--model", "m"), 2),
    ("a URL on Ray", (*FIT, "--scorer", "URL/nan", "--model", "m", "--ray", "local"), 2),
    ("train queries for an endpoint without a model's name", (*FIT, "--scorer", "URL/nan"), 2),
    (
        "items without states of a late-interaction model",
        (*SEARCH, "--method", "rerank(retriever=cmc(retriever=bm25))"),
        2,
    ),
    ("an unknown option of a late-interaction model", (*LATE, "cmc(dept=3)"), 2),
    ("a depth of 0", (*LATE, "rerank(retriever=cmc(depth=0))"), 2),
    ("a late-interaction model that cannot be opened", (*LATE, "cmc(retriever=bm25)"), 2),
    (
        "a late-interaction model that is none",
        ("index", "add", "docs.index", "--late", "no-index"),
        2,
    ),
    (
        "a dual encoder as late-interaction model",
        ("index", "add", "docs.index", "--late", "DUAL"),
        2,
    ),
    ("an endpoint that is down", (*SEARCH, "--scorer", "http://127.0.0.1:9/rerank"), 4),
    ("an endpoint that answers nonsense", (*SEARCH, "--scorer", "URL/nonsense"), 4),
    ("an endpoint with too few scores", (*SEARCH, "--scorer", "URL/few"), 4),
    (
        "an endpoint that answers NaN",  # BM25, because LSA's order may differ between machines
        (*SEARCH, "--scorer", "URL/nan", "--method", "rerank(retriever=bm25)"),
        4,
    ),
]


class Rerank(BaseHTTPRequestHandler):
    """A real endpoint that answers wrongly, in the way its path says."""

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        documents = asked.get("documents") or asked.get("texts") or []
        answers = {
            "/nonsense": "<html>hello</html>",
            "/few": json.dumps({"results": [{"index": 0, "relevance_score": 1.0}]}),
            "/nan": json.dumps(
                {
                    "results": [
                        {"index": i, "relevance_score": float("nan")} for i in range(len(documents))
                    ]
                }
            ),
        }
        body = answers[self.path].encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def url():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Rerank)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture(scope="module")
def table():
    """Collects what happened; written or compared with the docs at the end."""
    rows: dict[str, str] = {}
    yield rows
    if len(rows) == len(CALLS):
        check_table(*MARKS, [rows[what] for what, _, _ in CALLS])


@pytest.mark.parametrize(("what", "arguments", "code"), CALLS, ids=[c[0] for c in CALLS])
def test_one_sentence_and_nothing_half_written(folder, url, table, what, arguments, code):
    from crossknn.scorers.opening import bundled_folder

    dual = str(bundled_folder("dual-encoder"))
    given = [a.replace("URL", url).replace("DUAL", dual) for a in arguments]
    before = sorted(p.name for p in folder.iterdir())
    done = crossknn(folder, *given)
    assert done.returncode == code, done.stderr
    sentences = done.stderr.strip().splitlines()
    assert len(sentences) == 1, done.stderr
    assert sentences[0].startswith("crossknn: ")
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert sorted(p.name for p in folder.iterdir()) == before
    shown = sentences[0].replace(url, "http://127.0.0.1:8080").replace(dual, "dual-encoder")
    shown = shown.replace(f"{folder}/", "")
    sentence = shown.removeprefix("crossknn: ").replace("|", "/")
    table[what] = f"| {what} | {code} | `{sentence}` |"


def test_a_budget_above_the_number_of_items_means_exact_search(folder):
    done = crossknn(folder, *SEARCH, "--budget", "500", "-k", "2", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["n_calls"] == 30


def test_replay_allows_a_k_above_the_budget_and_caps_recall(folder):
    done = crossknn(
        folder,
        "replay",
        "good.npz",
        "--methods",
        "rerank(retriever=random)",
        "--budgets",
        "5",
        "--k",
        "20",
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["recall"] == 0.25


def test_a_missing_extra_names_the_command_that_installs_it(folder):
    hide = "import sys; sys.modules['sentence_transformers'] = None"
    np.save(folder / "torch-model" / "x.npy", np.zeros(1))
    done = crossknn(folder, *SEARCH, "--scorer", "torch-model", code=hide)
    assert "Traceback" not in done.stderr
    assert done.returncode in (2, 5)
    if done.returncode == 5:
        assert "pip install 'crossknn[torch]'" in done.stderr


def test_a_missing_plots_extra(folder):
    hide = "import importlib.util as u; f = u.find_spec; u.find_spec = lambda n, *a: None if n == 'matplotlib' else f(n, *a)"
    done = crossknn(
        folder, "compare", "docs.index", "--queries", "queries.txt", "--plot", "p.png", code=hide
    )
    assert done.returncode == 5
    assert done.stderr.strip() == (
        "crossknn: --plot needs an extra: run  pip install 'crossknn[plots]'"
    )


def test_a_full_disk_leaves_nothing_half_written(folder):
    before = sorted(p.name for p in folder.iterdir())
    done = crossknn(
        folder, "index", "build", "docs.jsonl", "full.index", "--encoder", "none", limit=1500
    )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert "cannot be written: File too large; nothing was changed" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert sorted(p.name for p in folder.iterdir()) == before


def test_an_index_being_written_is_not_opened(folder):
    unfinished = folder / "unfinished.index"
    (unfinished / "data-0123456789abcdef").mkdir(parents=True)
    done = crossknn(folder, "search", "unfinished.index", "topic")
    assert done.returncode == 6
    assert "is still being written, or its writing was interrupted" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_slow_endpoint_is_given_up_in_a_sentence(folder):
    class Slow(BaseHTTPRequestHandler):
        def do_POST(self):
            time.sleep(3)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    from crossknn.errors import ScorerError
    from crossknn.scorers import HttpScorer
    from crossknn.types import Pairs

    scorer = HttpScorer(f"http://127.0.0.1:{server.server_port}/rerank", timeout=0.2, retries=0)
    with pytest.raises(ScorerError, match=r"0\.2 ?s"):
        list(scorer.score(Pairs(np.array([0]), np.array([0])), ["q"], ["t"]))
    server.shutdown()


def test_ctrl_c_during_indexing(folder):
    (folder / "large.jsonl").write_text(
        lines({"id": str(i), "text": f"a longer text number {i} " * 20} for i in range(20_000))
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "crossknn", "index", "build", "large.jsonl", "large.index"],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "NO_COLOR": "1"},
    )
    time.sleep(4)
    assert process.poll() is None, "indexing ended before it could be interrupted"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert "interrupted" in said
    assert not [p.name for p in folder.iterdir() if "large.index" in p.name]
    (folder / "large.jsonl").unlink()
