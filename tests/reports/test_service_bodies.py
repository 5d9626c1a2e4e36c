"""Bodies that are wrong, made to be expensive, or full of nulls: each answer names the field and
what it must be, in plain words, and other requests are answered meanwhile."""

import json
import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.request
from importlib.resources import files

import pytest
from service_helpers import QUERIES, TEXTS, ask, connect, ids, refusal, running, served

from crossknn.service.shapes import RerankBody, SearchBody

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def client():
    with served() as client:
        yield client


@pytest.fixture(scope="module")
def url():
    with running() as port:
        yield f"http://127.0.0.1:{port}"


def nested(depth, how="not"):
    condition = {"lang": "en"}
    for _ in range(depth):
        condition = {how: condition if how == "not" else [condition]}
    return condition


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"budget": "many"}, 'budget must be a valid integer or a valid list, not "many"'),
        ({"budget": 0}, "budget must be greater than or equal to 1, not 0"),
        ({"target_recall": 2}, "target_recall must be less than or equal to 1, not 2"),
        ({"filter": 5}, "filter must be an object or a valid list, not 5"),
        ({"filter": [""]}, "filter.0: String should have at least 1 character"),
        ({"filter": ["a", 3]}, "filter.1 must be a valid string, not 3"),
        ({"k": "5"}, 'k must be a valid integer, not "5"'),
        ({"k": 10**6}, "k must be less than or equal to 1000, not 1000000"),
        ({"explain": "yes"}, 'explain must be a valid boolean, not "yes"'),
        ({"deadline_ms": 5}, "deadline_ms must be greater than or equal to 20, not 5"),
        ({"deadline_ms": 1e300}, "deadline_ms must be less than or equal to 3600000, not 1e+300"),
        ({"": 1}, '"": Extra inputs are not permitted'),
        ({"a\n\x1b[31m": 1}, '"a\\n\\u001b[31m": Extra inputs are not permitted'),
        ({"x" * 9000: 1}, f'"{"x" * 80}": Extra inputs are not permitted'),
        ({"queries": ["b"]}, "queries: Extra inputs are not permitted"),
        ({"query": None}, "query must be a valid string or a valid list, not null"),
        ({"query": ["a", None]}, "query.1 must be a valid string, not null"),
    ],
)
def test_a_wrong_field_of_a_search(client, given, message):
    answer = client.post("/search", json={"query": "a"} | given)
    assert refusal(answer, 422) == message
    assert message.startswith(answer.json()["error"]["field"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"budget": 10**9}, "up to 10,000"),
        ({"method": "exact"}, "not offered here"),
        ({"method": "kriging(rank=3)"}, "not offered here"),
        ({"method": "anncur"}, "anchor"),
        ({"filter": {"colour": "red"}}, "colour"),
        ({"filter": {}}, "filter"),
        ({"filter": ["nobody"]}, "nobody"),
        ({"query": "a" * 40_000}, "query"),
        ({"query": "a\ud800"}, "query"),
        ({"\ud800": 1}, "unicode"),
        ({"query": ["a"] * 101}, "query"),
        ({"query": ["a"] * 100, "k": 101}, "10,100 hits; an answer holds"),
    ],
)
def test_a_search_for_too_much_or_by_what_is_not_there(client, given, message):
    body = json.dumps({"query": "a"} | given)
    assert message in refusal(client.post("/search", content=body, headers=JSON), 422)


VECTORS = [{"text": name, "embedding": [0.5] * d} for name, d in (("a", 2), ("b", 3))]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"documents": [5]}, "documents.0 must be a valid string or an object, not 5"),
        ({"documents": ["a", {"title": "b"}]}, "documents.1.text: Field required"),
        (
            {"documents": [{"text": "a", "embedding": ["b"]}]},
            'documents.0.embedding.0 must be a valid number, not "b"',
        ),
        ({"documents": []}, "documents: List should have at least 1 item"),
        ({"documents": ["b"] * 1001}, "documents: List should have at most 1000 items"),
        ({"texts": [None]}, "texts.0 must be a valid string, not null"),
        ({"texts": ["a"], "truncation_direction": "up"}, "must be 'Right' or 'right'"),
        ({"texts": ["a"], "query": None}, "query must be a valid string, not null"),
        ({"documents": ["a"], "texts": ["a"]}, "either documents or texts"),
        ({"documents": [VECTORS[0], "b"]}, "document 1 has no 'embedding'"),
        ({"documents": [{"text": "a", "embedding": []}]}, "embedding"),
        ({"documents": [{"text": "a", "embedding": [1e300]}]}, "infinity"),
        ({"documents": VECTORS}, "embedding"),
        ({"documents": ["a"], "relevant_spans": {}}, "relevant_spans"),
        ({"documents": ["a"], "budget": 10**9}, "up to 10,000"),
        ({"documents": ["a"], "top_n": 0}, "top_n"),
    ],
)
def test_a_wrong_field_of_documents(client, given, message):
    assert message in refusal(client.post("/rerank", json={"query": "a"} | given), 422)


@pytest.mark.parametrize(
    ("body", "headers", "status", "message"),
    [
        (b"", JSON, 422, "the body is missing"),
        (b"[]", JSON, 422, "the body must be an object, not []"),
        (b'{"query": ', JSON, 400, "the body is not JSON: Expecting value"),
        (b'{"query": "a", "k": NaN}', JSON, 422, "k must be a valid integer, not NaN"),
        (b'{"query": "a", "query": "b"}', JSON, 422, "the body has 'query' twice in one object"),
        (b'{"query": "a", "filter": {"not": {"x": 1}, "not": {"y": 1}}}', JSON, 422, "'not' twice"),
        (b'{"query": "a"}', {"Content-Type": "text/plain"}, 415, "application/json"),
        (b" " * (9 << 20), JSON, 413, "8 MiB"),
        (b'{"query": "a", "index": "../x"}', JSON, 404, "no index"),
    ],
)
def test_what_is_no_request(client, body, headers, status, message):
    assert message in refusal(client.post("/search", content=body, headers=headers), status)


def test_no_message_has_words_of_the_library_that_checks(client):
    wrong = [None, "x", -1, 2.5, True, [], [None], {}, {"x": None}, [[]], {"not": []}]
    for field in SearchBody.model_fields:
        for value in wrong:
            body = json.dumps({"query": "a", field: value})
            answer = client.post("/search", content=body, headers=JSON)
            if answer.status_code >= 400:
                message = answer.json()["error"]["message"]
                for word in ("Body", "constrained", "Input should", "dict[", "model", "Extra"):
                    assert word not in message


def many_keys(count):
    return '{"query": "a", ' + ", ".join(f'"k{n}": 1' for n in range(count)) + "}"


def documents(*embedding):
    return json.dumps({"query": "a", "documents": [{"text": "a", "embedding": embedding}] * 90})


def filtered(condition):
    return json.dumps({"query": "a", "filter": condition})


LARGE = {
    "500,000 unknown keys": ("/search", many_keys(500_000), 413),
    "a filter of 120,000 conditions": ("/search", filtered({"any": [{"lang": "en"}] * 120_000}), 413),
    "a filter of 1,000,000 values": ("/search", filtered({"year": [2000] * 1_000_000}), 422),
    "120,000 wrong ids": ("/search", filtered([1] * 120_000), 422),
    "vectors of texts": ("/rerank", documents(*["a"] * 8000), 413),
    "vectors of nulls": ("/rerank", documents(*[None] * 8000), 422),
    "millions of objects": ("/search", '{"query": "a", "x": [' + "{}," * 2_600_000 + "{}]}", 413),
    "100 nested filters": ("/search", filtered(nested(100)), 422),
    "nested lists": ("/search", '{"query": "a", "x": ' + "[" * 9000 + "]" * 9000 + "}", 400),
    "a wrong list": ("/search", '{"query": ' + "[" * 900 + "]" * 900 + "}", 422),
    "a number of 100,000 digits": ("/search", '{"query": "a", "k": ' + "9" * 100_000 + "}", 400),
    "UTF-16": ("/search", '{"query": "a"}'.encode("utf-16"), 400),
}  # fmt: skip


@pytest.mark.parametrize("name", LARGE)
def test_an_expensive_body_is_refused_while_others_are_answered(url, name):
    """Unknown keys held every request for 6.8 s and took 640 MB; wrong vectors held them, too."""
    path, body, status = LARGE[name]
    raw = body.encode() if isinstance(body, str) else body
    slowest, ended = 0.0, threading.Event()

    def watch():
        nonlocal slowest
        while not ended.wait(0.01):
            began = time.monotonic()
            ask(f"{url}/healthz")
            slowest = max(slowest, time.monotonic() - began)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(urllib.request.Request(f"{url}{path}", raw, JSON), timeout=20)
    finally:
        ended.set()
        watching.join()
    error = json.loads(refused.value.read())["error"]
    assert (refused.value.code, error["status"]) == (status, status)
    assert len(error["message"]) < 300
    assert "\n" not in error["message"]
    assert slowest < 1.5  # 0.01 to 0.16 s on an idle machine; before, 3.3 s for unknown keys


def test_what_is_just_small_enough_is_answered(client):
    looks_nested = "[{" * 50 + 'a: "b", \\"c\\\\' * 5000
    filters = [nested(20), nested(10, "any"), {"any": [{"year": 2000 + n} for n in range(999)]}]
    vectors = [{"text": f"t{n}", "embedding": [n / 8] * 1024} for n in range(100)]
    for condition in filters:
        body = {"query": "sort the list", "k": 1, "budget": 2, "filter": condition}
        assert client.post("/search", json=body).status_code == 200
    for given in (vectors, [looks_nested] * 30):
        body = {"query": "a", "documents": given, "budget": 2}
        assert client.post("/rerank", json=body).status_code == 200


@pytest.mark.parametrize("keys", [(), ("a key of this service",)])
def test_why_a_body_is_refused_is_read_by_a_client_that_sends_all_of_it(keys):
    """The connection was reset before the answer could be read, and is used again now."""
    size = 12 << 20
    head = f"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n"
    with running(keys=keys) as port, connect(port) as connection:
        connection.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode())
        connection.sendall(b" " * size)
        answer = b""
        while not answer.endswith(b"}}"):
            answer += connection.recv(65536)
        assert answer.startswith(b"HTTP/1.1 401" if keys else b"HTTP/1.1 413")
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")


# Clients send null for fields that they do not set: each is its default then.


NULLS = [{name: None} for name in SearchBody.model_fields if name != "query"]


@pytest.mark.parametrize("nulls", NULLS, ids=str)
def test_null_for_a_field_of_a_search(client, nulls):
    plain = client.post("/search", json={"query": QUERIES[0]})
    answer = client.post("/search", json={"query": QUERIES[0]} | nulls)
    assert answer.status_code == 200
    assert answer.json()["n_scored"] == len(TEXTS)
    assert ids(answer) == ids(plain)


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
@pytest.mark.parametrize("given", [{"texts": ["sort it", "zip it"]}, {"documents": ["a", "sort"]}])
def test_nulls_for_fields_of_reranking(client, path, given):
    def results(body):
        answer = client.post(path, json=body)
        assert answer.status_code == 200, body
        entries = answer.json()
        return entries if isinstance(entries, list) else entries["results"]

    body = {"query": "sort"} | given
    names = [name for name in RerankBody.model_fields if name not in body]
    for nulls in (*([name] for name in names), names):
        assert results(body | dict.fromkeys(nulls)) == results(body)
    null = [{"text": "sort", "title": None, "embedding": None}]
    assert results({"query": "sort", "documents": null})[0]["index"] == 0


def test_the_description_says_where_null_is_taken(client):
    bodies = client.get("/openapi.json").json()["components"]["schemas"]
    for name in ("SearchBody", "RerankBody"):
        for field, kinds in bodies[name]["properties"].items():
            needed = field in bodies[name].get("required", ())
            assert needed != ({"type": "null"} in kinds.get("anyOf", [])), (name, field)


NODE = shutil.which("node")
BLANKS = " " * 400_000


def parsed_by_the_page(texts):
    """What the page's own function makes of each text: a filter, or the sentence of its refusal."""
    script = files("crossknn.service").joinpath("page/page.js").read_text(encoding="utf-8")
    start = script.index("function filterOf(")
    code = (
        "class Refused extends Error {}\n"
        + script[start : script.index("\n}\n", start) + 3]
        + "const texts = JSON.parse(require('fs').readFileSync(0));\n"
        "const read = (t) => { try { return filterOf(t); } catch (e) { return e.message; } };\n"
        "console.log(JSON.stringify(texts.map(read)));"
    )
    how = {"capture_output": True, "text": True, "timeout": 60, "check": True}
    return json.loads(subprocess.run([NODE, "-e", code], input=json.dumps(texts), **how).stdout)


@pytest.mark.skipif(NODE is None, reason="needs node")
def test_filters_are_read_and_long_ones_do_not_freeze_the_tab():
    """40,000 blanks, also from `?filter=`, kept the page busy for seconds, and 400,000 for ever."""
    given = {
        "lang = en": {"lang": "en"},
        "year >= 2010": {"year": {"gte": 2010}},
        "year<2036": {"year": {"lt": 2036}},
        "lang != de": {"lang": {"not": "de"}},
        "open = true": {"open": True},
        'year = "2010"': {"year": "2010"},
        "a b = c = d": {"a b": "c = d"},
        "a = 1, b > 2": {"not": {"any": [{"not": {"a": 1}}, {"not": {"b": {"gt": 2}}}]}},
        '{"lang": ["en"]}': {"lang": ["en"]},
        "  ": None,
    }
    refused = ["lang", "= en", "lang =", "lang = en,", "{lang"]
    hard = [f"a{BLANKS}", f"a{BLANKS}b", f"a = b{BLANKS}c", f"a{'=' * 400_000}", "a =" * 100_000]
    began = time.monotonic()
    found = parsed_by_the_page([*given, *refused, *hard, f"a{BLANKS}={BLANKS}b{BLANKS}"])
    assert time.monotonic() - began < 10
    assert found[: len(given)] == list(given.values())
    for said in found[len(given) :][: len(refused)]:
        assert "write it as  lang = en, year >= 2020" in said
