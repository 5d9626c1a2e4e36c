"""The commands on right input, one after the other, as a user would run them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from faulty_server import Faulty, good, score
from tiny_models import jsonl, save_beir

import crossknn as ck
from crossknn.cli import app as application
from crossknn.cli.app import run

TOPICS = ("archives", "threads", "files", "strings", "queues")
N = 40
BM25 = ("--method", "rerank(retriever=bm25)")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("crossknn.trial.data.SECONDS", 0.1)
    items = [{"title": TOPICS[i % 5], "text": f"part {i} on {TOPICS[i % 5]}"} for i in range(N)]
    jsonl(tmp_path / "docs.jsonl", ({"id": f"d{i}", "page": i} | r for i, r in enumerate(items)))
    queries = ({"id": f"q{i}", "text": f"about {topic}"} for i, topic in enumerate(TOPICS))
    jsonl(tmp_path / "queries.jsonl", queries)
    (tmp_path / "train.txt").write_text("open threads\nclose files\n")
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td99\t1\n")
    return tmp_path


@pytest.fixture
def command(folder, capsys):
    """Run a command with --json: the objects it prints."""

    def call(*arguments: str) -> list[dict]:
        capsys.readouterr()
        code = run([*arguments, "--json"])
        printed = capsys.readouterr()
        assert code == 0, printed.err
        return [json.loads(line) for line in printed.out.splitlines()]

    return call


@pytest.fixture
def build(command):
    return lambda *options: command(
        "index", "build", "docs.jsonl", "docs.index", "--encoder", "none", *options
    )[0]


@pytest.fixture
def endpoint():
    server = Faulty(lambda body: [good(body)])
    yield ("--scorer", server.url, "--endpoint-model", "m", "--scorer-option", "timeout=20"), server
    server.close()


def test_index_search_and_compare(command, folder):
    (made,) = command("index", "build", "docs.jsonl", "docs.index")
    assert (made["items"], made["retrievers"]) == (N, ["bm25", "dense"])
    (found,) = command(
        *("search", "docs.index", "about threads", "-k", "3", "--budget", "20", "--explain"),
        *("--run", "answers.trec"),
    )
    hits = found["results"][0]["hits"]
    assert hits[0]["extra"]["page"] % 5 == 1
    assert [h["score"] for h in hits] == sorted((h["score"] for h in hits), reverse=True)
    assert len(found["results"][0]["trace"]) == found["n_calls"] == 20
    lines = (folder / "answers.trec").read_text().splitlines()
    assert [line.split()[2] for line in lines] == [hit["id"] for hit in hits]
    again = command("search", "docs.index", "about threads", "-k", "3", "--budget", "20")[0]
    assert (again["n_calls"], again["n_scored"]) == (0, 20)  # the index has kept the scores
    rows = command(
        *("compare", "docs.index", "--queries", "queries.jsonl", "--qrels", "qrels.tsv"),
        *("--budgets", "5,10", "-k", "1,5"),
        *("--methods", "rerank(retriever=bm25), axn(rounds=2)"),
    )
    assert [(r["method"], r["budget"], r["k"]) for r in rows[::2]] == [
        ("exact", N, 1),
        ("retrieve(retriever=dense)", 0, 1),
        *((f"rerank(retriever={name})", b, 1) for name in ("dense", "bm25") for b in (5, 10)),
        *(("axn(rounds=2)", b, 1) for b in (5, 10)),
    ]
    assert rows[0]["recall"] == rows[1]["recall"] == 1
    assert "rcond=" in rows[-1]["settings"]
    assert list(rows[0]["measures"]) == ["nDCG@10", "R@10", "R@20", "R@100", "RR@10"]


def test_text_output_can_be_read(build, folder, capsys):
    build()
    searching = ["search", "docs.index", "about threads", "-k", "2", "--budget", "10", "--explain"]
    assert run(searching) == 0
    shown = capsys.readouterr().out
    assert all(head in shown for head in ("round", "predicted", "exact", "the best so far"))
    assert "10 cross-encoder calls" in shown
    comparing = ["compare", "docs.index", "--queries", "queries.jsonl", "--budgets", "5", "-k", "1"]
    assert run([*comparing, "--methods", "rerank(retriever=bm25), auto"]) == 0
    shown = capsys.readouterr().out
    assert "\nauto\n" in shown  # as it was given, without all of its settings
    assert "recall of the k best items" in shown
    assert re.search(rf"^ +{N} +100\.0 \[100-100\]$", shown, re.MULTILINE)
    assert run(["index", "info", "docs.index"]) == 0
    shown = capsys.readouterr().out
    assert "retrievers: bm25, lsa" in shown
    assert "nothing learned yet: learning needs the scores of 30 searched queries" in shown


def test_a_cheap_scorer_searches_before_an_expensive_one(build, command, endpoint, capsys):
    build()
    options, server = endpoint
    both = ("--scorer", "bundled", "--budget", "12", *options, "--budget", "3")
    (found,) = command("search", "docs.index", "about threads", "-k", "5", *both)
    assert (found["n_calls"], found["cheaper"][0]["n_calls"]) == (3, 12)
    assert sum(len(body["documents"]) for _, _, body in server.requests) == 3
    hits = found["results"][0]["hits"]
    assert [(hit["rung"], hit["predicted"]) for hit in hits[:3]] == [(2, False)] * 3
    assert all(hit["predicted"] and hit["rung"] < 2 for hit in hits[3:])
    assert run(["search", "docs.index", "about threads", "-k", "5", *both]) == 0
    shown = capsys.readouterr().out
    assert "0 + 0 cross-encoder calls (12 + 3 scores used)" in shown  # the index keeps both
    assert "scored by a cheaper scorer only" in shown
    assert run(["search", "docs.index", "files", *both, "--budget", "2"]) == 2
    assert "there are 3 budgets for 2 scorers" in capsys.readouterr().err
    assert run(["search", "docs.index", "files", "--scorer", "bundled", "--scorer", "bundled"]) == 2
    assert "names the same cross-encoder twice" in capsys.readouterr().err
    twice = ["search", "docs.index", "files", *both, "--endpoint-model", "another"]
    assert run(twice) == 2
    assert "names 2 models, and --scorer 1 URL" in capsys.readouterr().err
    assert run(["collect", "docs.index", "--anchors", "train.txt", *both[:2], *options]) == 2
    assert "works with one --scorer" in capsys.readouterr().err


def test_a_comparison_says_whether_a_cheap_scorer_pays(build, command, endpoint, capsys):
    build()
    both = ("--scorer", "bundled", *endpoint[0])
    comparing = ["compare", "docs.index", "--queries", "queries.jsonl"]
    comparing += ["--budgets", "4,8", "-k", "5"]
    rows = command(*comparing, "--methods", "auto", *both)
    after = [row for row in rows if "after" in row["method"]]
    names = ("rerank(retriever=search), after 100 cheaper calls", "auto, after 100 cheaper calls")
    assert [(r["method"], r["calls"]) for r in after] == [(n, b) for b in (4, 8) for n in names]
    assert all(0 <= row["recall"] <= 1 for row in after)
    assert run([*comparing, *both]) == 0
    shown = capsys.readouterr().out
    assert re.search(
        r"4 calls after 100 of the cheaper scorer find .* alone \(recall of the 5", shown
    )
    assert "s of scoring instead of" in shown


def test_a_trial_shows_what_a_share_of_the_time_for_a_cheap_scorer_finds(command, endpoint, capsys):
    rows = ({"id": f"d{i}", "text": f"part {i} on {TOPICS[i % 5]}"} for i in range(120))
    jsonl(Path("many.jsonl"), rows)
    both = ("--scorer", "bundled", *endpoint[0])
    trying = ("try", "many.jsonl", "--queries", "queries.jsonl", "--budget", "20", *both)
    (shown,) = command(*trying, "--encoder", "none")
    alone, *splits = shown["splits"]
    found = 100 * shown["shares"]["exact top 10 found"]["crossknn, 20 calls"]
    assert (alone["calls"], alone["top 10 found, %"]) == ("20", pytest.approx(found))
    for row in splits:
        cheap, expensive = map(int, row["calls"].split(" + "))
        assert cheap >= 1
        assert 1 <= expensive <= 20
        assert 0 <= row["top 10 found, %"] <= 100
    assert run([*trying, "--encoder", "none"]) == 0
    assert "in the time of 20 of the last one" in capsys.readouterr().out


@pytest.mark.slow
def test_anchors_are_collected_with_limits(build, command):
    build()
    collecting = ("collect", "docs.index", "--anchors", "train.txt")
    calls = [command(*collecting, "--max-calls", "50")[0]["calls"] for _ in range(3)]
    assert calls == [50, 2 * N - 50, 0]
    again = build()
    assert (again["anchor_queries"], again["scores"]) == (2, 2 * N)
    for method in ("adacur", "anncur", "kriging(retriever=bm25)"):
        found = command("search", "docs.index", "open files", "--method", method, "--budget", "15")
        assert found[0]["n_scored"] == 15


def test_an_approximate_index_is_built_on_request_and_for_many_items(command, build, monkeypatch):
    pytest.importorskip("faiss")
    lists = Path("docs.index") / "nearest-lsa" / "lists.faiss"
    build()
    assert not lists.exists()
    command("index", "prepare", "docs.index", "--nearest")
    assert lists.exists()
    lists.unlink()
    monkeypatch.setattr("crossknn.cli.index.LARGE", N)
    build("--no-nearest")
    assert not lists.exists()
    build()
    assert lists.exists()
    assert command("search", "docs.index", "about queues", "--budget", "10")[0]["n_calls"] == 10
    assert run(["index", "prepare", "docs.index"]) == 2


def test_verify_names_what_is_damaged(build, command, folder, capsys):
    build()
    (whole,) = command("index", "verify", "docs.index")
    assert whole["damages"] == []
    largest = max((folder / "docs.index").rglob("*.npy"), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[-20] ^= 255
    largest.write_bytes(bytes(content))
    assert run(["index", "verify", "docs.index"]) == 6
    assert largest.name in capsys.readouterr().out


def test_long_documents_are_counted_or_cut(command, folder, capsys):
    texts = {"l0": "One sentence stands here. " * 100, "l1": "Another one stands. " * 90, "s": "x"}
    jsonl(folder / "long.jsonl", ({"id": i, "text": text} for i, text in texts.items()))
    plain = ["index", "build", "long.jsonl", "long.index", "--encoder", "none"]
    assert run(plain) == 0
    said = "2 of 3 items are longer than the 236 tokens that the bundled cross-encoder reads beside"
    assert said in capsys.readouterr().err
    assert run([*plain, "--passages", "100"]) == 0
    shown = capsys.readouterr()
    assert "passages of 3 documents" in shown.err
    assert "items are longer" not in shown.err
    assert "passages: length 100, overlap 20" in shown.out
    [before] = command("index", "info", "long.index")
    assert before["passages"] == {"length": 100, "overlap": 20}
    [after] = command("index", "insert", "long.index", "long.jsonl", "--replace")
    assert (after["items"], after["documents"]) == (before["items"], 3)
    [after] = command("index", "delete", "long.index", "l0", "l1")
    assert (after["items"], after["documents"]) == (1, 1)


def test_fitting_and_what_it_cost(build, command):
    build()
    fitting = ("fit", "docs.index", "als", "--queries", "queries.jsonl", "--per", "4")
    (made,) = command(*fitting, "--max-calls", "10")
    assert (made["name"], made["calls"], made["stopped_by"]) == ("als", 10, "max_calls")
    (made,) = command(*fitting)
    assert (made["calls"], made["reused"], made["cost"]["calls"]) == (10, 10, 20)
    methods = "rerank(retriever=bm25), rerank(retriever=als)"
    rows = command(
        *("compare", "docs.index", "--queries", "queries.jsonl", "--methods", methods),
        *("--budgets", "5", "-k", "1"),
    )
    assert [row["index_calls"] for row in rows] == [0, 0, 0, 20]


def test_searches_are_learned_from_and_a_store_is_shared(build, command):
    build()
    for query in TOPICS:
        command("search", "docs.index", f"on {query}", *BM25, "--budget", "9", "-k", "3")
    (found,) = command("fit", "docs.index", "stored", "--retriever", "bm25")
    assert (found["queries"], found["pairs"]) == (5, 45)
    options = ("--method", "kriging(retriever=bm25)", "--budget", "10", "-k", "3")
    assert command("search", "docs.index", "on files", *options)[0]["n_scored"] == 10
    command("index", "build", "docs.jsonl", "other.index", "--encoder", "none")
    for index, calls in (("docs.index", 9), ("other.index", 0)):
        options = ("about files", *BM25, "--budget", "9", "-k", "3", "--store", "scores.sqlite")
        assert command("search", index, *options)[0]["n_calls"] == calls


def test_fusion_is_fitted_and_searched_for(build, command, capsys):
    build()
    (made,) = command("fit", "docs.index", "fusion", "--queries", "queries.jsonl")
    assert (made["queries"], made["judged"], {*made["weights"]}) == (5, 0, {"lsa", "bm25"})
    (found,) = command("search", "docs.index", "about files", "--budget", "20")
    hits = found["results"][0]["hits"]
    assert [h["final_score"] for h in hits] == sorted(h["final_score"] for h in hits)[::-1]
    assert any(h["final_score"] != h["score"] for h in hits)
    assert run(["search", "docs.index", "about files", "--fuse", "bm25=2", "-k", "2"]) == 0
    assert capsys.readouterr().out.count("(exact ") == 2
    assert run(["search", "docs.index", "about files", "--fuse", "none", "-k", "2"]) == 0
    assert capsys.readouterr().out.count("(exact ") == 0
    assert run(["search", "docs.index", "about files", "--fuse", "bm25=much"]) == 2
    assert "--fuse is 'bm25=much'; give auto, none, or weights" in capsys.readouterr().err


@pytest.mark.slow
def test_compare_diagnoses_with_fusion_and_without_exact_search(build, command, folder, capsys):
    build()
    jsonl(folder / "many.jsonl", ({"id": f"m{i}", "text": f"on {TOPICS[i % 5]}"} for i in range(7)))
    lines = [f"m{i}\td{j}\t1" for i in range(6) for j in (i % 5, i % 5 + 10)]
    (folder / "judged.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]))
    command("fit", "docs.index", "fusion", "--queries", "queries.jsonl")
    given = ["compare", "docs.index", "--queries", "many.jsonl", "--qrels", "judged.tsv"]
    given += ["--budgets", "5,10", "--methods", "axn(rounds=3)", "--measures", "R@5"]
    *rows, said = command(*given, "--no-exact")
    methods = "retrieve(retriever=bm25)", "rerank(retriever=bm25)", "axn(rounds=3)"
    assert [r["method"] for r in rows] == [methods[0], *methods[1:2] * 2, *methods[2:] * 2]
    assert [r.get("fused", False) for r in rows] == [False] * 3 + [True] * 2
    assert not any("recall" in r for r in rows)
    found = said["diagnosis"]
    means = found["figures"][1]["means"]
    assert (found["queries"], found["measure"], found["retriever"]) == (6, "R@5", "bm25")
    assert means["search fused"] == pytest.approx(rows[-1]["measures"]["R@5"], abs=1e-5)
    assert means["rerank"] == pytest.approx(rows[2]["measures"]["R@5"], abs=1e-5)
    *rows, again = command(*given, "-k", "1")
    assert again == said
    assert [(r["method"], r.get("fused")) for r in rows if r["recall"] == 1][:1] == [
        ("exact", None)
    ]
    assert sum(r["method"] == "exact" and r.get("fused", False) for r in rows) == 1
    assert run(given) == 0
    shown = capsys.readouterr().out
    assert found["sentence"] in shown
    assert "axn(rounds=3), fused" in shown
    few = Path("many.jsonl").read_text().splitlines()[:4]
    Path("many.jsonl").write_text("\n".join(few))
    assert run([*given, "--no-exact"]) == 0
    printed = capsys.readouterr()
    assert "a verdict needs 5 judged queries" in printed.err
    assert "and got 4" in printed.err
    assert "fused" not in printed.out


def test_calibration_is_fitted_and_shown(build, command, folder, capsys):
    build()
    lines = [f"q{i}\td{j}\t1" for i in range(5) for j in range(i, N, 10)]
    (folder / "judged.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]))
    fit = ("fit", "docs.index", "calibration", "--queries", "queries.jsonl")
    (made,) = command(*fit, "--qrels", "judged.tsv", "--per", "20")
    assert (made["queries"], made["items"], made["budget"]) == (5, 50, 20)
    (found,) = command("search", "docs.index", "about files", "--budget", "20")
    hits = found["results"][0]["hits"]
    assert all(hit["probability"] == hit["calibrated"] for hit in hits)
    assert 0 <= found["results"][0]["none_relevant"] <= 1
    assert run(["search", "docs.index", "about files", "--budget", "20", "-k", "2"]) == 0
    assert capsys.readouterr().out.count("% relevant") == 2
    assert run([*fit]) == 2
    assert "calibration needs relevance judgements" in capsys.readouterr().err


def test_all_items_above_a_score(build, command, capsys):
    build()
    search = ("search", "docs.index", "about files", "--method", "kriging(retriever=bm25)")
    (whole,) = command(*search, "--budget", "20", "-k", "20")
    best = [hit["score"] for hit in whole["results"][0]["hits"]]
    (found,) = command(*search, "--budget", "20", "--min-score", str(best[6]))
    answer = found["results"][0]
    assert [h["score"] for h in answer["hits"]] == [score for score in best if score >= best[6]]
    assert answer["best_score"] == best[0]
    assert run([*search, "--budget", "20", "--min-score", "99"]) == 0
    assert f"no scored item reaches 99: the best score is {best[0]:.2f}" in capsys.readouterr().out


def test_a_filter_and_a_deadline(build, command, folder):
    build()
    (folder / "ids.txt").write_text("d1\nd6\nd11\n")
    options = ("--filter", "ids.txt", "--deadline", "1m")
    (found,) = command("search", "docs.index", "about threads", *options)
    assert {h["id"] for h in found["results"][0]["hits"]} == {"d1", "d6", "d11"}
    assert found["stopped_by"] == "budget"
    tagged = [{"id": f"t{i}", "text": TOPICS[i % 5], "part": i} for i in range(10)]
    (folder / "tagged.jsonl").write_text("\n".join(map(json.dumps, tagged)))
    assert run(["index", "build", "tagged.jsonl", "tagged.index", "--encoder", "none"]) == 0
    (found,) = command("search", "tagged.index", "about", "--filter", '{"part": {"gte": 8}}')
    assert {h["id"] for h in found["results"][0]["hits"]} == {"t8", "t9"}


def test_the_page_of_formats_has_the_keys_of_an_answer(build, command):
    build()
    [found] = command("search", "docs.index", "open threads", "-k", "1", "--budget", "2")
    page = (Path(__file__).parents[2] / "docs/reference/formats.md").read_text()
    part = page.split("### Output of `search`")[1].split("### ")[0]
    shown = json.loads(re.findall(r"```json\n(.*?)```", part, re.DOTALL)[0])
    assert shown.keys() == found.keys()
    shown, found = shown["results"][0], found["results"][0]
    assert shown.keys() == found.keys()
    assert shown["hits"][0].keys() == found["hits"][0].keys() - {"extra"}
    named = {*re.findall(r"`(\w+)`", part)}
    assert named >= found["hits"][0].keys() - {"extra", "id", "title", "text", "position"}


def test_a_filter_that_allows_no_item_is_said_and_is_no_error(build, folder, capsys):
    build()
    capsys.readouterr()
    assert run(["search", "docs.index", "files", "--filter", '{"page": 7000}']) == 0
    out, said = capsys.readouterr()
    assert "0 cross-encoder calls" in out
    assert said.endswith("the filter allows no item\n")


def test_compare_keeps_exact_scores_and_checks_measures_first(build, command, endpoint, capsys):
    build()
    given, server = endpoint
    options = ("--queries", "queries.jsonl", "--methods", BM25[1], "--budgets", "5", "-k", "1,5")
    wrong = ("compare", "docs.index", *options, "--qrels", "qrels.tsv", "--measures", "nDCG@x")
    assert run([*wrong, *given]) == 2
    assert "unknown measure 'nDCG@x'" in capsys.readouterr().err
    assert server.count == 0
    first = command("compare", "docs.index", *options, *given)
    asked = server.count
    again = command("compare", "docs.index", *options, "--qrels", "qrels.tsv", *given)
    assert server.count == asked
    assert [r["recall"] for r in first] == [r["recall"] for r in again]
    assert again[0]["measures"]["R@100"] == 0.5


def test_an_endpoint_serves_every_command_that_scores(build, command, endpoint, capsys):
    build()
    given, server = endpoint
    command("collect", "docs.index", "--anchors", "train.txt", *given)
    anchors = ck.ItemIndex.load("docs.index").anchors
    text = ck.ItemIndex.load("docs.index").items.texts[4]
    assert anchors.scores[0, 4] == pytest.approx(score("open threads", text))
    asked = server.count
    (found,) = command(
        "search", "docs.index", "open threads", *BM25, "--budget", "9", "-k", "3", *given
    )
    assert (found["n_calls"], server.count) == (0, asked)  # an anchor's scores are there
    unnamed = ["search", "docs.index", "topic", *BM25, *given[:2], "--store", "scores.db"]
    assert run(unnamed) == 2
    assert "name the model behind the URL with --endpoint-model" in capsys.readouterr().err


def registered():
    """Every command, by name, with the names of its options and its help."""
    groups = [("", application.app)]
    groups += [(f"{g.name} ", g.typer_instance) for g in application.app.registered_groups]
    return {
        f"{name}{c.name or c.callback.__name__}": c
        for name, app in groups
        for c in app.registered_commands
    }


def test_every_command_has_help_examples_and_json(capsys):
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("crossknn 0.")
    for name, found in registered().items():
        assert run([*name.split(), "--help"]) == 0
        shown = capsys.readouterr().out
        assert "--json" in shown or name in ("serve", "mcp"), name
        assert name.split()[-1] in ("compact", "info", "verify") or found.epilog.count("$ ") == 2


def test_control_characters_are_shown_and_not_sent(folder, capsys):
    item = {"id": "a\x1b[2Jb", "text": "red \x1b]0;title\x07 text \x9b31m"}
    (folder / "docs.jsonl").write_text(json.dumps(item) + "\n")
    assert run(["index", "build", "docs.jsonl", "docs.index", "--encoder", "none"]) == 0
    searching = ["search", "docs.index", "red\x1b[1m", "-k", "1", "--budget", "1", "--explain"]
    for more in ([], ["--json"]):
        assert run([*searching, *BM25, *more]) == 0
        said = capsys.readouterr().out
        assert not [c for c in said if (ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160]
        assert "x1b" in said or "u001b" in said


def test_an_endpoint_that_fails_midway_gives_what_was_found(build, capsys):
    build()
    server = Faulty(lambda body: [], start=1)
    searching = ("search", "docs.index", "open threads", *BM25, "--budget", "20", "-k", "3")
    options = ("--scorer-option", "batch=4", "--scorer-option", "retries=0")
    given = ("--scorer", server.url, *options)
    assert run([*searching, *given, "--json"]) == 3
    out, said = capsys.readouterr()
    server.close()
    found = json.loads(out)
    assert found["stopped_by"] == "scorer"
    assert found["results"][0]["error"] == found["error"]
    assert len(found["results"][0]["hits"]) == 3
    assert f"crossknn: {found['error']}; the results above were found before the failure" in said


def test_an_answer_beyond_the_budget_shows_no_score_of_what_is_predicted(build, capsys):
    build()
    assert run(["search", "docs.index", "open threads", "--budget", "3", "-k", "5"]) == 0
    out = capsys.readouterr().out
    assert len(re.findall(r"^  [1-3]  +-?[\d.]+  d\d+", out, re.MULTILINE)) == 3
    assert len(re.findall(r"^  [45]  predicted  d\d+$", out, re.MULTILINE)) == 2


def test_each_query_is_answered_by_a_line_when_the_endpoint_is_gone(build, endpoint, capsys):
    build()
    asked = ("search", "docs.index", "open threads", *BM25, "--budget", "10", *endpoint[0])
    assert run([*asked]) == 0
    endpoint[1].close()
    capsys.readouterr()
    assert run([*asked, "close files", "long queues", "--scorer-option", "retries=0"]) == 3
    out, said = capsys.readouterr()
    assert re.findall(r"^(?:close|long|no answer: .*reached).*$", out, re.MULTILINE)[::2] == [
        "close files",
        "long queues",
    ]
    assert out.count("\nno answer: http") == 2
    assert "crossknn: 2 of 3 queries ended early; the results above" in said
    assert "reached" not in said


def test_the_demo_in_json(folder, capsys):
    assert run(["demo", "--budget", "20", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["budget"] == 20
    for shares in found["shares"].values():
        assert shares["rerank the first 20"] < shares["crossknn, 20 calls"] <= 1


def own_texts(folder, n=60):
    """Titled items, in fields of other names."""
    texts = (f"It is made of {TOPICS[i % 5]} and is used every day number {i}." for i in range(n))
    rows = (
        {"key": f"i{i}", "name": f"A thing of kind {i}", "body": t} for i, t in enumerate(texts)
    )
    jsonl(folder / "own.jsonl", rows)


FIELDS = {"id_field": "key", "title_field": "name", "text_field": "body"}
TRY = ("try", "own.jsonl", "--n-queries", "5", "--minutes", "1", "--budget", "20")
NAMED = [f"--{name.replace('_', '-')}={field}" for name, field in FIELDS.items()]


def test_try_ends_with_a_verdict_and_scores_no_pair_twice(folder, endpoint, capsys):
    own_texts(folder)
    given, _ = endpoint
    assert run([*TRY, *NAMED, *given]) == 0
    out, said = capsys.readouterr()
    assert "60 items, 5 queries made of items" in said
    assert "With 20 calls for each of 5 made-up queries" in out
    assert "reach: share of" in out
    before = len(ck.ItemIndex.load("crossknn-try/index").scores)
    assert run([*TRY, *NAMED, *given, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["queries"], found["made_up_queries"]) == (5, True)
    assert found["diagnosis"]["queries"] == 5
    assert len(ck.ItemIndex.load("crossknn-try/index").scores) == before


def test_try_takes_the_queries_and_judgements_of_a_beir_folder(folder, endpoint, capsys):
    own_texts(folder)
    options = (*TRY[2:], "--encoder", "none", *endpoint[0])
    items = ck.read_items("own.jsonl", **FIELDS)
    texts = dict(zip(items.ids, items.texts, strict=True))
    queries = {f"q{i}": f"what is thing {i} made of" for i in range(6)}
    judged = {f"q{i}": {f"i{i}": 1} for i in range(5)}
    save_beir(Path("mini"), texts, queries, dev=judged, train=judged)
    mini = ["try", "mini", *options]
    assert run(mini) == 2
    said = "mini has judgements of dev, train: name one, such as --qrels mini/qrels/dev.tsv"
    assert said in " ".join(capsys.readouterr().err.split())
    Path("mini/qrels/train.tsv").rename("mini/qrels/test.tsv")
    assert run(mini) == 0
    out, said = capsys.readouterr()
    assert "60 items, 5 queries of mini, judged by its split test;" in said
    assert "made-up" not in out
    assert re.findall(r"^ *(\d+) .*%\]", out, re.MULTILINE) == ["20"]  # what was asked for
    given = ["own.jsonl", *NAMED, "--queries", "mini", "--qrels", "mini/qrels/dev.tsv"]
    assert run(["try", *given, *options]) == 0
    assert "60 items, 6 queries of mini, judged by mini/qrels/dev.tsv;" in capsys.readouterr().err


def test_try_takes_queries_and_judgements_of_yours(folder, endpoint, capsys):
    own_texts(folder, 120)
    asked = ({"id": f"q{i}", "text": f"what is thing {i} made of"} for i in range(6))
    jsonl(folder / "q.jsonl", asked)
    Path("qrels.tsv").write_text("".join(f"q{i}\t0\ti{i}\t1\n" for i in range(6)))
    given = (*NAMED, "--queries", "q.jsonl", "--qrels", "qrels.tsv", "--max-items", "100")
    assert run([*TRY, *given, *endpoint[0]]) == 0
    out, said = capsys.readouterr()
    assert "100 items, 6 queries;" in said
    assert "Undecided: 6 queries judged, " in out or "Keep the first stage: on 6 judged" in out
    assert run([*TRY, *NAMED, "--qrels", "qrels.tsv"]) == 2
    assert "--queries FILE" in capsys.readouterr().err
    Path("wrong.tsv").write_text("".join(f"q{i}\t0\tnone{i}\t1\n" for i in range(6)))
    assert run([*TRY, *given[:5], "--qrels", "wrong.tsv", "--out", "new"]) == 2
    assert "relevant item in the index, and got 0" in capsys.readouterr().err


def test_try_cuts_long_documents_and_judges_whole_ones(folder, endpoint, capsys):
    parts = lambda d: (f"Part {p} of it is {TOPICS[(d + p) % 5]} of {d}." for p in range(40))  # noqa: E731
    jsonl(folder / "long.jsonl", ({"id": f"d{d}", "text": "\n".join(parts(d))} for d in range(30)))
    jsonl(folder / "q.jsonl", ({"id": f"q{d}", "text": f"part 39 of {d}"} for d in range(6)))
    Path("qrels.tsv").write_text("".join(f"q{d}\t0\td{d}\t1\n" for d in range(6)))
    given = ("--queries", "q.jsonl", "--qrels", "qrels.tsv", "--budget", "80", *TRY[2:6])
    assert run(["try", "long.jsonl", *given, *endpoint[0], "--passages", "40"]) == 0
    out, said = capsys.readouterr()
    n = ck.ItemIndex.load("crossknn-try/index").n
    assert n > 120
    assert "30 items, 6 queries; the cross-encoder scores" in said
    assert f"all items for 5 queries are {5 * n:,} pairs" in said
    assert "Undecided: 6 queries judged" in out
    assert run(["try", "long.jsonl", *given, *endpoint[0], "--out", "whole", "--budget", "14"]) == 0
    assert "cut them into passages with --passages 200" in capsys.readouterr().err


def test_items_come_and_go(command, build, folder, capsys):
    build("--lsa", "8")
    new = [{"id": "d1", "text": "walruses on files"}, {"id": "w", "text": "about a walrus"}]
    jsonl(folder / "new.jsonl", new)
    made = command("index", "insert", "docs.index", "new.jsonl", "--replace")[0]
    assert (made["items"], made["deleted"]) == (N + 1, 1)
    search = ("search", "docs.index", "walrus", "-k", "1", "--method", "retrieve(retriever=bm25)")
    assert command(*search)[0]["results"][0]["hits"][0]["id"] == "w"
    (folder / "gone.txt").write_text("w\nd7\n")
    made = command("index", "delete", "docs.index", "d3", "--ids", "gone.txt")[0]
    assert (made["items"], made["deleted"]) == (N - 2, 4)
    capsys.readouterr()
    assert run(["compare", "docs.index", "--queries", "queries.jsonl", "--scorer", "bundled"]) == 2
    assert "4 items are deleted: compact the index first" in capsys.readouterr().err
    assert len(ck.ItemIndex.load("docs.index").scores) == 0
    made = command("index", "compact", "docs.index")[0]
    assert made["items"] == N - 2
    assert "deleted" not in made
    assert command("index", "verify", "docs.index")[0]["damages"] == []
