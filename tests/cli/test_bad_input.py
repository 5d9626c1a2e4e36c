"""Wrong input through the real command line: an exit code and one clear sentence."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from faulty_server import Faulty, answer
from late_helpers import WordStates

from crossknn import CallableScorer, CrossEncoder
from crossknn.cli.app import run
from crossknn.fitting.anchors import collect_anchors
from crossknn.index import storage
from crossknn.index.item_index import ItemIndex
from crossknn.scorers.opening import bundled_folder
from crossknn.scores.stored import StoredScorer
from crossknn.search.searcher import Searcher


def lines(records) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


GOOD = [{"id": f"d{i}", "text": f"text number {i} about topic {i % 5}"} for i in range(30)]
FILES: dict[str, bytes] = {
    "docs.jsonl": lines(GOOD).encode(),
    "empty.jsonl": b"",
    "twice.jsonl": lines([{"id": "a", "text": "x"}, {"id": "b", "text": "y"}] * 2).encode(),
    "broken.jsonl": b'{"id": "a", "text": "x"}\n{"id": "b", "text": \n',
    "body.jsonl": b'{"key": 1, "body": "x"}\n',
    "queries.txt": b"topic one\ntopic two\n",
    "short.txt": b"abc",
    "qrels.tsv": b"query-id\tcorpus-id\tscore\nq9\td1\t1\n",
    "ids.txt": b"d1\nnobody\n",
}
BERT = {"model_type": "bert", "architectures": ["BertForSequenceClassification"]}
CASES = """
2 holds no items: index build empty.jsonl new.index
2 repeats the id 'a': index build twice.jsonl new.index
2 broken.jsonl, line 2: index build broken.jsonl new.index
2 absent.jsonl: index build absent.jsonl new.index
2 name it with --text-field: index build body.jsonl new.index
2 name it with --text-field: try body.jsonl
2 'text' or 'query': search docs.index --queries body.jsonl
2 'body': index build docs.jsonl new.index --template {body}
2 give at most 236: index build docs.jsonl new.index --encoder none --passages 300
2 not below the 20: index build docs.jsonl new.index --encoder none --passages 20 --overlap 20
2 (passages=200, --passages 200): index build docs.jsonl new.index --encoder none --overlap 20
2 torch-model: index build docs.jsonl torch-model --encoder none
2 docs.jsonl: index build docs.jsonl docs.jsonl/new.index --encoder none
2 no-index: index prepare docs.index --late no-index
2 dual: index prepare docs.index --late DUAL
2 serch: serch docs.index
2 k is 0: SEARCH -k 0
2 budget is 0: SEARCH --budget 0
2 either as arguments: search docs.index
2 empty query: search docs.index ' '
2 'nobody': SEARCH --filter ids.txt
2 not valid JSON: SEARCH --filter '{"lang"'
2 'lang', but no item has this field: SEARCH --filter '{"lang": "en"}'
2 did you mean bm25: SEARCH --method rerank(retriever=bm52)
2 anchor: SEARCH --method adacur
2 --budget: SEARCH --budgets 5
2 create it first: SEARCH --run absent/run.trec
2 is a folder: SEARCH --run docs.index
2 equal to 1000: demo --budget 5000
6 absent: serve absent
2 two indexes are called 'docs.index': serve docs.index docs.index
2 no-such-file: serve docs.index --keys no-such-file
2 8 printable: serve docs.index --keys short.txt
2 nonsense: serve docs.index --method nonsense
2 not a duration: serve docs.index --deadline soon
2 torch-model: index build docs.jsonl torch-model
2 did you mean rerank: serve docs.index --offer rerankk
2 give a --budget of 30 or less: try docs.jsonl --budget 70
2 --zzz (see: SEARCH --zzz 5
2 there is no model folder 'bundle': SEARCH --scorer bundle
2 no-index: SEARCH --scorer no-index
2 a URL that begins with http: SEARCH --scorer localhost:8080/rerank
2 two: SEARCH --scorer two-logits
2 dual-encoder: SEARCH --scorer DUAL
2 late: SEARCH --method rerank(retriever=cmc(retriever=bm25))
2 cmc: search late.index topic --method cmc(retriever=bm25)
2 made with scores: search two-anchors.index topic --method adacur --scorer URL/few
6 no-index: search no-index topic
6 absent.index: search absent.index topic
6 cut.index: search cut.index topic
6 another version: search newer.index topic
6 still being written: search unfinished.index topic
2 no scores to fit: fit docs.index stored
2 cannot read: fit docs.index stored --retriever rerank(bm52
2 did you mean als: fit docs.index alz
2 stored: fit docs.index kriging
2 bm25: FIT --name bm25
2 mine: FIT --vectors mine
2 500ms: FIT --deadline soon
2 50: FIT --strategy i --per 50
2 model: FIT --endpoint-model m
2 fingerprint: FIT --scorer URL/nan
2 --queries: fit docs.index als
2 --endpoint-model: fit docs.index stored --scorer URL/few
2 leave --queries out: fit docs.index stored --queries queries.txt
2 makes no item vectors: fit docs.index fusion --queries queries.txt --name x
2 makes no item vectors: fit docs.index calibration --queries queries.txt --strategy i
2 nothing to add was named: index prepare docs.index
2 KEY=VALUE: SEARCH --scorer-option batch
2 CROSSKNN_API_KEY: SEARCH --scorer-option api_key=x
2 either as arguments: SEARCH --queries queries.txt
2 --queries FILE: SEARCH --lists ids.txt
2 --measures: compare docs.index --queries queries.txt --measures nDCG@10
2 give a file of queries to score: collect docs.index
2 budgets: compare docs.index --queries queries.txt --budgets 5,0
2 give --qrels FILE: compare docs.index --queries queries.txt --no-exact
2 leave out -k: compare docs.index --queries queries.txt --qrels qrels.tsv --no-exact -k 1
2 quer: compare docs.index --queries queries.txt --qrels qrels.tsv -k 1
2 --queries: compare docs.index
4 cannot be reached: SEARCH --scorer http://127.0.0.1:9/rerank
4 is the server running, and are host and port right?: SEARCH --scorer http://127.0.0.1:9
4 not 8 scores: SEARCH --scorer URL/nonsense
4 not 8 scores: SEARCH --scorer URL/few
4 nan: SEARCH --scorer URL/nan --method rerank(retriever=bm25)
"""
SHORT = {
    "SEARCH": "search docs.index topic",
    "FIT": "fit docs.index als --queries queries.txt",
    "DUAL": str(bundled_folder("dual-encoder")),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A working folder with good and bad files, indexes, and damaged copies."""
    with pytest.MonkeyPatch.context() as patch:
        where = tmp_path_factory.mktemp("bad")
        patch.chdir(where)
        for name, content in FILES.items():
            Path(name).write_bytes(content)
        _make_indexes()
        for name, labels in (("torch-model", ["LABEL_0"]), ("two-logits", ["no", "yes"])):
            Path(name).mkdir()
            config = BERT | {"id2label": dict(enumerate(labels)), "num_labels": len(labels)}
            Path(name, "config.json").write_text(json.dumps(config))
        yield where


def _make_indexes():
    index = ItemIndex.build("docs.jsonl")
    for name in ("docs.index", "cut.index", "newer.index"):
        index.save(name)
    index.add_late(WordStates())
    index.save("late.index")
    files = [path for path in Path("cut.index").rglob("*") if path.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-5])
    manifest = Path("newer.index", storage.MANIFEST)
    changed = json.loads(manifest.read_text()) | {"version": 99}
    manifest.write_text(json.dumps(changed | {"checksum": storage.checksum_of(changed)}))
    Path("no-index").mkdir()
    Path("unfinished.index", "data-0123456789abcdef").mkdir(parents=True)
    index = ItemIndex.build("docs.jsonl")
    scorer = CallableScorer(lambda pairs: [len(text) for _, text in pairs], "length")
    collect_anchors(index, scorer, ["one"])
    index.save("anchored.index")
    collect_anchors(index, scorer, ["one", "two"])
    index.save("two-anchors.index")
    scorer = StoredScorer(CrossEncoder(), "queries.db")
    Searcher(index, scorer, "rerank(retriever=bm25)").search(["topic one", "two"], k=2, budget=4)
    scorer.store.close()


@pytest.fixture(scope="module")
def endpoints():
    """Endpoints that answer wrongly, by the last part of their URLs."""
    nan = {"relevance_score": float("nan")}
    bodies = {
        "nonsense": lambda n: "<html>",
        "few": lambda n: json.dumps({"results": [{"index": 0, "relevance_score": 1.0}]}),
        "nan": lambda n: json.dumps({"results": [{"index": i} | nan for i in range(n)]}),
    }

    def fault(make):
        return lambda body: [answer(make(len(body.get("documents") or body["texts"])).encode())]

    servers = {f"URL/{name}": Faulty(fault(make)) for name, make in bodies.items()}
    yield {name: server.url for name, server in servers.items()}
    for server in servers.values():
        server.close()


@pytest.mark.parametrize("case", CASES.strip().splitlines())
def test_one_sentence_and_nothing_half_written(folder, endpoints, capsys, case):
    what, _, text = case.partition(": ")
    code, words = what.split(" ", 1)
    for short, whole in (SHORT | endpoints).items():
        text = text.replace(short, whole)
    before = _names(folder)
    quoted = " ".join(shlex.quote(part) if "(" in part else part for part in text.split(" "))
    assert run(shlex.split(quoted)) == int(code)
    out, said = capsys.readouterr()
    assert len(said.strip().splitlines()) == 1, said
    assert said.startswith("crossknn: ")
    assert words in said
    assert out == ""
    assert _names(folder) == before


def _names(folder):
    """The files there, but for those that SQLite keeps beside an open store."""
    names = sorted(path.name for path in folder.iterdir())
    return [name for name in names if not name.endswith(("-wal", "-shm", ".lock"))]


def test_a_missing_extra_names_the_command_that_installs_it(folder, capsys, monkeypatch):
    monkeypatch.setattr("crossknn.cli.index.find_spec", lambda name: None)
    assert run(["index", "build", "docs.jsonl", "new.index", "--nearest"]) == 5
    assert "--nearest needs an extra: run  pip install 'crossknn[faiss]'" in capsys.readouterr().err
