"""Clients send null for arguments that they do not set: each is its default then."""

from __future__ import annotations

import asyncio

import pytest
from service_helpers import QUERIES, TEXTS, Words, ids, served

import crossknn as ck
from crossknn.service.shapes import RerankBody, SearchBody


@pytest.fixture
def client():
    with served({"docs": ck.ItemIndex.build(TEXTS, lsa=4)}, Words()) as client:
        yield client


def optional(body, *without):
    return [name for name in body.model_fields if name not in without]


@pytest.mark.parametrize("name", optional(SearchBody, "query"))
def test_search(client, name):
    """A search with null for one field finds what it finds without the field."""
    plain = client.post("/search", json={"query": QUERIES[0]})
    answer = client.post("/search", json={"query": QUERIES[0], name: None})
    assert answer.status_code == 200
    assert ids(answer) == ids(plain)


@pytest.mark.parametrize("budget", [None, {"per_query": None, "target_recall": None}, {}])
def test_the_parts_of_a_budget(client, budget):
    """A budget of nulls is the service's own."""
    answer = client.post("/search", json={"query": QUERIES[0], "budget": budget})
    assert answer.json()["n_scored"] == len(TEXTS)


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
@pytest.mark.parametrize("given", [{"texts": ["sort it", "zip it"]}, {"documents": ["a", "sort"]}])
def test_rerank(client, path, given):
    """All of Cohere's, Jina's, infinity's and TEI's fields as null, one by one and together."""
    body = {"query": "sort"} | given
    plain = client.post(path, json=body).json()
    plain = plain if isinstance(plain, list) else plain["results"]
    names = [name for name in optional(RerankBody, "query") if name not in body]
    for nulls in (*([name] for name in names), names):
        answer = client.post(path, json=body | dict.fromkeys(nulls))
        assert answer.status_code == 200, nulls
        found = answer.json()
        assert (found if isinstance(found, list) else found["results"]) == plain


def test_the_fields_of_a_document(client):
    """A document without title and vector."""
    body = {"query": "sort", "documents": [{"text": "sort", "title": None, "embedding": None}]}
    assert client.post("/rerank", json=body).json()["results"][0]["index"] == 0


def test_the_description_says_so(client):
    """/openapi.json allows null wherever it is taken."""
    bodies = client.get("/openapi.json").json()["components"]["schemas"]
    for name in ("SearchBody", "RerankBody", "BudgetBody"):
        for field, kinds in bodies[name]["properties"].items():
            needed = field in bodies[name].get("required", ())
            assert needed != ({"type": "null"} in kinds.get("anyOf", [])), (name, field)


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/search", {"query": None}, "the body"),
        ("/search", {"queries": ["a", None]}, "queries.1"),
        ("/rerank", {"query": None, "texts": ["a"]}, "query"),
        ("/rerank", {"query": "a", "texts": [None]}, "texts.0"),
        ("/search", {"query": "a", "colour": None}, "colour"),
    ],
)
def test_what_is_needed_is_not_null(client, path, body, field):
    """null for what has no default, or is no field, is refused by name."""
    answer = client.post(path, json=body)
    assert (answer.status_code, answer.json()["error"]["field"]) == (422, field)


def test_mcp():
    """A model that fills in all arguments of the tools, with null where it has nothing to say."""
    mcp = pytest.importorskip("mcp")
    server_of = pytest.importorskip("crossknn.adapters.mcp")
    searcher = ck.Searcher(ck.ItemIndex.build(TEXTS, lsa=4), Words())
    server = server_of.create_server(searcher, "docs", ck.Budget(per_query=12))

    async def run():
        async with mcp.Client(server) as client:
            return [
                await client.call_tool(name, arguments)
                for name, arguments in (
                    ("search", {"query": QUERIES[0], "k": None, "filter": None}),
                    ("fetch", {"id": TEXTS[0]["id"], "offset": None}),
                    ("search", {"query": None}),
                    ("search", {"query": QUERIES[0], "top_k": 3}),
                    ("search", {"query": "word " * 10_000}),
                )
            ]

    found, read, wrong, unknown, long = asyncio.run(run())
    assert len(found.structured_content["results"]) == 10
    assert read.structured_content["text"] == TEXTS[0]["text"]
    assert "query is missing" in wrong.content[0].text
    assert "'top_k' is not known here: known: filter, k, query" in unknown.content[0].text
    assert "query may have at most 32,768 characters" in long.content[0].text
