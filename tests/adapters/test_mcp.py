"""The tools `search` and `fetch`, asked by the SDK's own client."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from datetime import date

import pytest
from adapter_helpers import overlap

import crossknn as ck


@pytest.fixture(scope="module", autouse=True)
def imported():
    """Where it is used: that takes two seconds."""
    global mcp, server_of
    mcp = pytest.importorskip("mcp")
    server_of = pytest.importorskip("crossknn.adapters.mcp")


def ask(searcher, *calls, budget=None):
    """The answers to (tool, arguments), and what progress was told."""
    server = server_of.create_server(searcher, "docs", budget or ck.Budget(per_query=12))

    async def run():
        told, found = [], []

        async def progress(done, total, message):
            told.append((done, total, message))

        async with mcp.Client(server) as client:
            for name, arguments in calls:
                found.append(await client.call_tool(name, arguments, progress_callback=progress))
        return found, told

    return asyncio.run(run())


def body(answer):
    """What was answered, which is the same as text and as structure."""
    assert not answer.is_error, answer.content
    [part] = answer.content
    assert json.loads(part.text) == answer.structured_content
    return answer.structured_content


def test_search_finds_what_a_search_finds_and_says_how_far_it_is(searcher):
    [answer], told = ask(searcher, ("search", {"query": "sort the list", "k": 3}))
    best = searcher.search("sort the list", k=3, budget=12)[0]
    assert [hit["id"] for hit in body(answer)["results"]] == [hit.id for hit in best]
    first = body(answer)["results"][0]
    assert first == {
        "id": "sort-list",
        "title": "sort list",
        "url": "crossknn://docs/sort-list",
        "snippet": " ".join(best[0].text.split()),
        "score": round(best[0].score, 4),
    }
    rounds = searcher.search("sort the list", 3, 12, trace=True).trace[0]
    assert [done for done, _, _ in told] == sorted({12, *(done for done, _, _ in told)})
    assert len(told) == max(hit.round for hit in rounds) > 1
    assert {total for _, total, _ in told} == {12}


def test_fetch_reads_what_search_found(searcher):
    [answer], _ = ask(searcher, ("fetch", {"id": "copy-page"}))
    item = searcher.index.items[searcher.index.items.position("copy-page")]
    assert body(answer) == {
        "id": item.id,
        "title": item.title,
        "text": item.text,
        "url": "crossknn://docs/copy-page",
        "metadata": dict(item.extra),
    }


def test_the_tools_are_described_and_change_nothing(searcher):
    async def tools():
        async with mcp.Client(server_of.create_server(searcher, "docs", ck.Budget())) as client:
            return (await client.list_tools()).tools

    found = {tool.name: tool for tool in asyncio.run(tools())}
    assert set(found) == {"search", "fetch"}
    assert found["search"].input_schema["required"] == ["query"]
    assert found["fetch"].input_schema["required"] == ["id"]
    assert all(tool.annotations.read_only_hint and tool.description for tool in found.values())


@pytest.mark.parametrize("letter", ["字", '"', "\x00"])
def test_answers_are_short_enough_and_long_texts_come_in_parts(letter):
    long = "".join(f"{letter * 9}{n % 10}" for n in range(6000))
    texts = [{"id": f"{n}-{'i' * 4000}", "text": long} for n in range(20)]
    index = ck.ItemIndex.build(texts, lsa=0, bm25=False)
    searcher = ck.Searcher(index, overlap, "rerank(retriever=random)")
    name = texts[0]["id"]
    [found], _ = ask(searcher, ("search", {"query": "1", "k": 20}))
    assert 0 < len(body(found)["results"]) < 20
    assert f"the first {len(body(found)['results'])} of 20" in body(found)["note"]
    read, answers = "", [found]
    while True:
        [part], _ = ask(searcher, ("fetch", {"id": name, "offset": len(read)}))
        answers.append(part)
        read += body(part)["text"]
        if "note" not in body(part):
            break
        assert f"offset {len(read)} " in body(part)["note"]
    assert read == index.items.texts[0]
    sizes = [len(answer.content[0].text.encode()) for answer in answers]
    assert max(sizes) <= server_of.MAX_BYTES
    assert len(answers) < 3 + len(json.dumps(long)) * 3 / server_of.MAX_BYTES


def search_and_fetch(**fields):
    """The answers of both tools about the one item of an index."""
    index = ck.ItemIndex.build([{"id": "i", "text": "a text", **fields}], lsa=0)
    searcher = ck.Searcher(index, overlap, "rerank(retriever=bm25)")
    answers, _ = ask(searcher, ("search", {"query": "text"}), ("fetch", {"id": "i"}))
    return body(answers[0])["results"][0], body(answers[1])


def test_fields_of_any_kind_can_be_read():
    odd = {"day": date(2026, 1, 2), "half": "a\ud83d"}
    found, read = search_and_fetch(**odd, url="data:," + "x" * 60_000)
    assert found["url"] == "crossknn://docs/i"
    assert read["text"] == "a text"
    assert search_and_fetch(**odd)[1]["metadata"] == {"day": "2026-01-02", "half": "a\ufffd"}


def test_nulls_for_arguments(searcher):
    """Models fill in all arguments, with null where they have nothing to say."""
    nulls = {"query": "sort a list", "k": None, "filter": None}
    found, read = ask(searcher, ("search", nulls), ("fetch", {"id": "zip-file", "offset": None}))[0]
    assert len(body(found)["results"]) == 10
    assert body(read)["title"] == "zip file"


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("search", {"query": None}, "valid string"),
        ("search", {"query": "word " * 10_000}, "at most 32768 characters"),
        ("search", {"query": ""}, "at least 1 character"),
        ("search", {"query": "a", "k": 0}, "greater than or equal to 1"),
        ("search", {}, "Field required"),
        ("search", {"query": "a", "filter": {"colour": "red"}}, "colour"),
        ("fetch", {"id": "nothing"}, "there is no item with the id 'nothing'"),
        ("fetch", {"id": "zip-file", "offset": -1}, "greater than or equal to 0"),
        ("fetch", {"id": "zip-file", "offset": 999}, "the text has"),
        ("write", {}, "write"),
    ],
)
def test_bad_input_is_said_and_the_next_call_is_answered(searcher, name, arguments, said):
    [bad, good], _ = ask(searcher, (name, arguments), ("search", {"query": "sort a list"}))
    [part] = bad.content
    assert bad.is_error
    assert said in part.text
    assert len(body(good)["results"]) == 10


def test_a_scorer_that_fails_is_said_and_a_deadline_gives_the_best_so_far(index):
    def broken(pairs):
        raise RuntimeError("no power")

    [bad], _ = ask(ck.Searcher(index, broken), ("search", {"query": "sort a list"}))
    assert bad.is_error
    assert "no power" in bad.content[0].text
    limit = ck.Budget(per_query=12, deadline=1e-6)
    [late], _ = ask(ck.Searcher(index, overlap), ("search", {"query": "sort"}), budget=limit)
    assert "deadline" in body(late)["note"]


@pytest.mark.slow
def test_the_command_speaks_it_on_standard_input_and_output(index, tmp_path):
    from mcp.client.stdio import StdioServerParameters

    index.save(tmp_path / "docs")
    given = ["-m", "crossknn", "mcp", str(tmp_path / "docs"), "--budget", "5"]

    async def run():
        server = StdioServerParameters(command=sys.executable, args=given, env={**os.environ})
        async with mcp.Client(server) as client:
            return [
                await client.call_tool("search", {"query": "how do I sort a list", "k": 2})
                for _ in range(2)
            ]

    first, second = asyncio.run(run())
    assert body(first) == body(second)
    assert len(body(first)["results"]) == 2
    assert len(ck.ItemIndex.load(tmp_path / "docs").scores) == 5  # both searches together


@pytest.mark.parametrize(
    ("url", "handed_on"),
    [
        ("https://a.example/b?c=d#e", True),
        ("HTTP://a.example", True),
        ("javascript:alert(1)", False),
        ("file:///etc/passwd", False),
        ("data:text/html,x", False),
        (" javascript:alert(1)", False),
        ("http:", False),
        ("https:///etc", False),
        ("https://a.example/\n", False),
        ("vscode://open", False),
    ],
)
def test_only_urls_of_the_web_are_handed_on(url, handed_on):
    found, read = search_and_fetch(url=url)
    assert found["url"] == read["url"] == (url if handed_on else "crossknn://docs/i")
    assert (url in str(read)) == handed_on
