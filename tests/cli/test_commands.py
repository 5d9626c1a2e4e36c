"""The commands on right input."""

from __future__ import annotations

import json
import re

import pytest

from crossknn.cli import common
from crossknn.cli.app import run

TOPICS = ("archives", "threads", "files", "strings", "queues")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    items = [
        {"id": f"d{i}", "title": TOPICS[i % 5], "text": f"part {i} on {TOPICS[i % 5]}", "page": i}
        for i in range(40)
    ]
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    queries = [{"id": "q1", "text": "about threads"}, {"id": "q2", "text": "open files"}]
    (tmp_path / "queries.jsonl").write_text("".join(json.dumps(q) + "\n" for q in queries))
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\nq2\td2\t1\n")
    return tmp_path


def output(capsys, *arguments: str) -> list[dict]:
    code = run(list(arguments))
    printed = capsys.readouterr()
    assert code == 0, printed.err
    return [json.loads(line) for line in printed.out.splitlines()]


def test_index_search_compare(folder, capsys):
    (made,) = output(capsys, "index", "docs.jsonl", "docs.index", "--json")
    assert (made["items"], made["first_stages"]) == (40, ["bm25", "dense"])
    (found,) = output(
        capsys,
        "search",
        "docs.index",
        "about threads",
        "-k",
        "3",
        "--budget",
        "20",
        "--explain",
        "--json",
        "--cache",
        "scores.sqlite",
    )
    hits = found["results"][0]["hits"]
    assert hits[0]["extra"]["page"] % 5 == 1
    assert [h["score"] for h in hits] == sorted((h["score"] for h in hits), reverse=True)
    assert len(found["results"][0]["trace"]) == found["calls"] == 20
    rows = output(
        capsys,
        "compare",
        "docs.index",
        "--queries",
        "queries.jsonl",
        "--qrels",
        "qrels.tsv",
        "--budgets",
        "5,10",
        "--k",
        "1,5",
        "--methods",
        "rerank(retriever=bm25), axn(rounds=2)",
        "--cache",
        "scores.sqlite",
        "--plot",
        "recall.png",
        "--json",
    )
    assert [(r["method"], r["budget"], r["k"]) for r in rows[:3]] == [
        ("exact", 40, 1),
        ("exact", 40, 5),
        ("rerank(retriever=bm25)", 5, 1),
    ]
    assert rows[0]["recall"] == rows[1]["recall"] == 1
    assert set(rows[0]["measures"]) == {"nDCG@10", "R@100", "RR@10"}
    assert len(rows) == 2 * (1 + 2 * 2)
    assert (folder / "recall.png").read_bytes()[:4] == b"\x89PNG"


def test_text_output_can_be_read(folder, capsys):
    run(["index", "docs.jsonl", "docs.index", "--encoder", "none"])
    assert (
        run(["search", "docs.index", "about threads", "-k", "2", "--budget", "10", "--explain"])
        == 0
    )
    shown = capsys.readouterr().out
    assert all(head in shown for head in ("round", "predicted", "exact", "the best so far"))
    assert "10 cross-encoder calls" in shown
    assert (
        run(
            [
                "compare",
                "docs.index",
                "--queries",
                "queries.jsonl",
                "--budgets",
                "5",
                "--k",
                "1",
                "--methods",
                "rerank(retriever=bm25)",
            ]
        )
        == 0
    )
    shown = capsys.readouterr().out
    assert "recall of the true neighbours" in shown
    assert re.search(r"^ +40 +100\.0 \[100-100\]$", shown, re.MULTILINE)
    assert run(["estimate", "docs.index", "--seconds", "0.2"]) == 0
    assert "pairs a second here" in capsys.readouterr().out


def test_paid_scores_survive_building_the_index_again(folder, capsys):
    pay = ("index", "docs.jsonl", "docs.index", "--anchors", "queries.jsonl", "--json")
    assert [output(capsys, *pay, "--max-calls", "50")[0]["calls"] for _ in range(3)] == [50, 30, 0]
    (again,) = output(capsys, "index", "docs.jsonl", "docs.index", "--encoder", "none", "--json")
    assert (again["calls"], again["anchor_queries"]) == (0, 2)
    found = output(
        capsys,
        "search",
        "docs.index",
        "open files",
        "--method",
        "adacur",
        "--budget",
        "15",
        "--json",
    )
    assert found[0]["calls"] == 15


def test_item_scores_serve_the_item_methods(folder, capsys):
    output(capsys, "index", "docs.jsonl", "docs.index", "--item-scores", "6", "--json")
    for method in ("itemcur", "fixeditem"):
        (found,) = output(
            capsys,
            "search",
            "docs.index",
            "open files",
            "--method",
            method,
            "--budget",
            "12",
            "--json",
        )
        assert found["n_scored"] == 12


def test_a_filter_file_and_a_deadline(folder, capsys):
    run(["index", "docs.jsonl", "docs.index", "--encoder", "none"])
    (folder / "ids.txt").write_text("d1\nd6\nd11\n")
    capsys.readouterr()
    (found,) = output(
        capsys,
        "search",
        "docs.index",
        "about threads",
        "--filter",
        "ids.txt",
        "--deadline-ms",
        "60000",
        "--json",
    )
    assert {h["id"] for h in found["results"][0]["hits"]} == {"d1", "d6", "d11"}
    assert found["stopped_by"] == "budget"


def test_lists_of_candidates(folder, capsys):
    run(["index", "docs.jsonl", "docs.index", "--encoder", "none"])
    (folder / "run.txt").write_text(
        "q1 Q0 d9 1 3.5 mine\nq1 Q0 d4 2 3.0 mine\nq2 Q0 d7 1 1.0 mine\n"
    )
    capsys.readouterr()
    (found,) = output(
        capsys,
        "search",
        "docs.index",
        "--queries",
        "queries.jsonl",
        "--lists",
        "run.txt",
        "--method",
        "rerank(retriever=lists)",
        "-k",
        "2",
        "--budget",
        "2",
        "--json",
    )
    first, second = ({h["id"] for h in r["hits"]} for r in found["results"])
    assert first == {"d9", "d4"}
    assert "d7" in second
    assert found["n_backfilled"] == 1


def test_help_and_version(capsys):
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("crossknn 0.")
    for command in (
        "index",
        "search",
        "compare",
        "scores",
        "estimate",
        "demo",
    ):
        assert run([command, "--help"]) == 0
        assert "--" in capsys.readouterr().out


def test_time_left_is_that_of_what_is_still_to_do(monkeypatch, capsys):
    now = iter([0.0, 0.0, 10.0, 30.0])
    monkeypatch.setattr(common.time, "perf_counter", lambda: next(now))
    report = common._lines("scoring", "pairs")
    for done in (900, 905, 910):
        report(done, 1000)
    assert capsys.readouterr().err == "scoring: 910 of 1,000 pairs, 270 s left\n"


def test_align_without_train_queries_then_compare_with_what_it_cost(folder, capsys):
    output(capsys, "index", "docs.jsonl", "docs.index", "--json")
    aligning = ("align", "docs.index", "--queries", "auto", "--count", "6", "--per", "4", "--json")
    (made,) = output(capsys, *aligning, "--max-calls", "10")
    assert (made["name"], made["calls"], made["stopped_by"]) == ("als", 10, "max_calls")
    (made,) = output(capsys, *aligning)
    assert (made["calls"], made["reused"], made["cost"]["calls"]) == (14, 10, 24)
    methods = (
        "rerank(retriever=bm25), rerank(retriever=als), axn(retriever=bm25, rounds=2, ridge=0.3)"
    )
    rows = output(
        capsys,
        *("compare", "docs.index", "--queries", "queries.jsonl", "--methods", methods),
        *("--budgets", "5", "-k", "1", "--plot-offline", "offline.png", "--json"),
    )
    assert [row["index_calls"] for row in rows] == [0, 0, 24, 24]
    assert (folder / "offline.png").stat().st_size > 5_000


def test_every_item_scored_within_a_deadline_and_less_what_is_paid(folder, capsys):
    output(capsys, "index", "docs.jsonl", "docs.index", "--json")
    aligning = ("align", "docs.index", "--queries", "queries.jsonl", "--json")
    (als,) = output(capsys, *aligning, "--per", "8")
    assert als["calls"] == 16
    (made,) = output(capsys, *aligning, "--method", "cur", "--deadline", "10m", "--workers", "2")
    assert (made["calls"], made["reused"], made["stopped_by"]) == (64, 16, None)
    assert made["cost"]["calls"] == 80
    assert made["cost"]["scoring_seconds"] > 0


def test_a_line_is_printed_as_it_is(capsys):
    line = f"kept[bold] in {'a long folder/' * 20}: 12 [95%]"
    common.say(line)
    common.note(line)
    assert capsys.readouterr() == (line + "\n", line + "\n")
