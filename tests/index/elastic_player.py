"""Plays the part of the HTTP API of Elasticsearch and OpenSearch that is used, as documented.

A node with indices in memory: exact vector search, BM25 by bm25s, filters. It refuses what it does
not know, so that a wrong request fails here, too.
"""

import json
import operator
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import bm25s
import numpy as np


class RefusalError(Exception):
    """An answer with a status, as the server words it."""

    def __init__(self, status, kind, reason):
        self.status, self.cause = status, {"type": kind, "reason": reason}
        self.body = {"error": {**self.cause, "root_cause": [self.cause]}, "status": status}


def bad(reason):
    return RefusalError(400, "illegal_argument_exception", reason)


def only(given, *known):
    """Refuse keys that the API does not have."""
    if unknown := {*given} - {*known}:
        raise RefusalError(400, "parsing_exception", f"unknown key [{unknown.pop()}]")


def _bm25(texts):
    """BM25 of texts, and the words that it knows."""
    texts = [str(text or "").lower().split() for text in texts]
    model = bm25s.BM25(k1=1.2)
    model.index(texts, show_progress=False)
    return model, {word for one in texts for word in one}


class Index:
    """Documents with a mapping; fields that are not in it are mapped by their first value."""

    def __init__(self, elastic, properties, documents=()):
        self.elastic, self.documents, self.properties = elastic, {}, properties
        self._made, self._lock = {}, threading.Lock()  # of all documents
        for key, source in documents:
            self.put(str(key), source)

    def put(self, key, source):
        self.documents[key] = source
        self._made.clear()
        for name, value in source.items():
            first = next((v for v in (value if isinstance(value, list) else [value]) if v), value)
            if name not in self.properties and first is not None and first != []:
                self.properties[name] = self._mapped(first)

    def _mapped(self, value):
        if isinstance(value, dict):
            return {"properties": {name: self._mapped(one) for name, one in value.items()}}
        if isinstance(value, str):
            return {"type": "text", "fields": {"keyword": {"type": "keyword"}}}
        kinds = {bool: "boolean", int: "long", float: "float"}
        return {"type": kinds[type(value)]}

    def about(self, field):
        """A field's definition; that of a subfield or of an entry of an object."""
        found = {"properties": self.properties}
        for part in field.split("."):
            found = (found.get("properties") or found.get("fields") or {}).get(part, {})
        return found

    def values(self, source, field):
        """The values that a field is indexed with."""
        kept = source
        for part in field.split("."):  # a subfield has the values of its field
            kept = kept.get(part) if isinstance(kept, dict) else kept
        values = [one for one in (kept if isinstance(kept, list) else [kept]) if one is not None]
        return [*map(str, values)] if self.about(field).get("type") == "keyword" else values

    def remove(self, key):
        del self.documents[key]
        self._made.clear()

    def made(self, kind, field, make):
        """What is made of a field once for all documents."""
        with self._lock:
            if (kind, field) not in self._made:
                values = [source.get(field) for source in self.documents.values()]
                self._made[kind, field] = make(values)
            return self._made[kind, field]

    def each(self, test):
        return np.array([bool(test(source)) for source in self.documents.values()], np.bool_)

    def match(self, query):
        """Who matches a query, and the scores: two arrays (n,)."""
        ((kind, about),) = query.items()
        if not hasattr(self, f"_{kind}"):
            raise RefusalError(400, "parsing_exception", f"unknown query [{kind}]")
        scores = getattr(self, f"_{kind}")(about)
        is_mask = scores.dtype == np.bool_
        return (scores, np.ones(len(scores))) if is_mask else (scores > 0, scores)

    def _match_none(self, about):
        return np.zeros(len(self.documents), np.bool_)

    def _ids(self, about):
        return np.isin([*self.documents], about["values"])

    def _exists(self, about):
        field = about["field"]
        make = lambda _: self.each(lambda source: self.values(source, field))  # noqa: E731
        return self.made("exists", field, make)

    def _terms(self, about):
        ((field, wanted),) = about.items()
        kind = self.about(field).get("type")
        if kind == "text":
            raise bad(f"a term of the analysed text [{field}] is a mistake in these tests")
        self.check(field, wanted)
        wanted = {*map(str, wanted)} if kind == "keyword" else {*wanted}
        return self.each(lambda source: wanted & {*self.values(source, field)})

    def check(self, field, numbers):
        if self.about(field).get("type") == "long" and any(abs(v) > 2**63 - 1 for v in numbers):
            raise bad(f"Value [{numbers}] is out of range for a long")

    def _range(self, about):
        ((field, bounds),) = about.items()
        self.check(field, bounds.values())
        tests = {"gt": operator.gt, "gte": operator.ge, "lt": operator.lt, "lte": operator.le}

        def lies(value):
            return all(tests[name](value, bound) for name, bound in bounds.items())

        return self.each(lambda source: any(map(lies, self.values(source, field))))

    def _bool(self, about):
        only(about, "must", "filter", "should", "must_not", "minimum_should_match")
        kept, total = np.ones(len(self.documents), np.bool_), np.zeros(len(self.documents))
        for clause in ("must", "filter", "must_not"):
            for query in about.get(clause, []):
                matches, scores = self.match(query)
                kept &= ~matches if clause == "must_not" else matches
                total += scores if clause == "must" else 0
        if should := about.get("should"):
            kept &= np.any([self.match(query)[0] for query in should], axis=0)
        return np.where(kept, total, 0) if "must" in about else kept

    def _match(self, about):
        return self._words_of(*next(iter(about.items())))

    def _multi_match(self, about):
        only(about, "query", "fields", "type")
        parts = [field.partition("^") for field in about["fields"]]
        scores = [self._words_of(f, about["query"]) * float(b or 1) for f, _, b in parts]
        return np.max(scores, axis=0)

    def _words_of(self, field, text):
        if self.about(field).get("type") != "text":
            raise bad(f"[{field}] is no text")
        model, known = self.made("words", field, _bm25)
        asked = [word for word in text.lower().split() if word in known]
        return model.get_scores(asked) if asked else np.zeros(len(self.documents))

    def _script_score(self, about):
        kept, script = self.match(about["query"])[0], about["script"]
        source, params = script["source"], script["params"]
        if script.get("lang") == "knn" and source == "knn_score" and not self.elastic:
            field, asked, how = params["field"], params["query_value"], params["space_type"]
        else:
            place = r"'(\w+)'" if self.elastic else r"doc\['(\w+)'\]"
            call = rf"(dotProduct|cosineSimilarity)\(params.query_vector, {place}\)"
            found = re.search(call, source)
            shape = source.replace(found[0], "c")
            how = {
                "(1.0 + c) / 2": "cosine",
                "double p = c; return p < 0 ? 1 / (1 - p) : p + 1": "max_inner_product",
            }[shape]
            if found[1] == "dotProduct" and not self.elastic:
                raise RefusalError(400, "script_exception", "compile error: unknown dotProduct")
            field, asked = found[2], params["query_vector"]
        if (kept & ~self._exists({"field": field})).any():
            raise RefusalError(400, "script_exception", "A document doesn't have a value")
        return np.where(kept, self.compared(field, asked, how), 0)

    def _knn(self, about):
        if self.elastic:
            raise bad("the query knn is not played for Elasticsearch")
        ((field, asked),) = about.items()
        only(asked, "vector", "k", "filter")
        return self.nearest(field, asked["vector"], asked["k"], asked.get("filter"))

    def nearest(self, field, asked, k, within):
        about = self.about(field)
        if not 1 <= k <= 10_000:
            raise bad(f"k is [{k}]")
        how = about.get("similarity") or about["method"]["space_type"]
        kept = self._exists({"field": field}) & (self.match(within)[0] if within else True)
        scores = np.where(kept, self.compared(field, asked, how), 0)
        order = np.argsort(-scores, kind="stable")
        scores[order[k:]] = 0
        return scores

    def compared(self, field, asked, how):
        """The documented scores of a similarity or a space, in float32."""
        d = self.about(field).get("dims") or self.about(field).get("dimension")
        of = lambda rows: np.array([row or [0.0] * d for row in rows], np.float32)  # noqa: E731
        vectors = self.made("vectors", field, of)
        asked = np.array(asked, np.float32)
        if asked.shape != vectors.shape[1:]:
            raise bad(f"the query vector has a different dimension [{asked.size}]")
        product, length = vectors @ asked, np.linalg.norm(asked)
        if how == "dot_product" and abs(length - 1) > 1e-4:
            raise bad("The [dot_product] similarity can only be used with unit-length vectors")
        if how in ("cosine", "cosinesimil", "dot_product"):
            if not length:
                raise bad("The [cosine] similarity does not support vectors with zero magnitude")
            lengths = np.linalg.norm(vectors, axis=1)
            return (1 + product / np.where(lengths, lengths, 1) / length) / 2
        return np.where(product < 0, 1 / (1 - np.minimum(product, 0)), product + 1)

    def search(self, body, size):
        """All hits of a search, best first."""
        only(body, "query", "knn", "size", "_source", "fields", "sort")
        if size > 10_000:
            raise bad(f"Result window is too large: [{size}]")
        if knn := body.get("knn"):
            only(knn, "field", "query_vector", "k", "num_candidates", "filter")
            if not self.elastic or not knn["k"] <= knn["num_candidates"] <= 10_000:
                raise bad("[num_candidates] cannot be less than [k] or exceed [10000]")
            scores = self.nearest(knn["field"], knn["query_vector"], knn["k"], knn.get("filter"))
            matches = scores > 0
        else:
            matches, scores = self.match(body["query"])
        order = np.argsort(-scores, kind="stable")
        keys, hits = [*self.documents], []
        for row in order[matches[order]].tolist():
            hit = {"_index": "docs", "_id": keys[row], "_score": float(np.float32(scores[row]))}
            if which := body.get("_source", {}) or body.get("fields"):
                hit |= self.read(keys[row], which)
            hits.append(hit)
        return hits

    def read(self, key, which):
        """The `_source` of a document, or its `fields`. From 9.2 on Elasticsearch leaves vectors
        out of `_source`, and OpenSearch has none in `fields`."""
        source = self.documents[key]
        if isinstance(which, list):
            if not self.elastic:
                raise bad("KNN Vector do not support fields search")
            return {"fields": {name: source[name] for name in which if name in source}}
        only(which, "includes", "excludes")
        left_out = {*which.get("excludes", []), *(["embedding"] if self.elastic else [])}
        kept = {*which.get("includes", source)} - left_out
        return {"_source": {name: value for name, value in source.items() if name in kept}}


class Player:
    """A node at `url`. `fault` is a status that it answers, "slow", "cut" (the connection) or
    "shards" (some fail); `calls` are the paths and bodies that were asked."""

    def __init__(self, product="elasticsearch", indices=None):
        self.elastic, self.indices = product == "elasticsearch", dict(indices or {})
        self.fault, self.calls, self.scrolls = None, [], {}
        handler = type("Handler", (_Handler,), {"player": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self):
        self.fault = "cut"  # of the connections that are open
        self.server.shutdown()
        self.server.server_close()

    def index(self, name):
        if name not in self.indices:
            raise RefusalError(404, "index_not_found_exception", f"no such index [{name}]")
        return self.indices[name]

    def answer(self, method, path, params, lines):
        """The answer to a request whose body has these lines of JSON."""
        body, name = lines[0] if lines else {}, path[0] if path else ""
        match (method, *path[-2:]):
            case ("GET" | "HEAD",):
                return {"version": {"number": "9.2.0"}, "tagline": "You Know, for Search"}
            case ("GET", _, "_mapping"):
                only(params, "ignore_unavailable")
                held = {key: index.properties for key, index in self.indices.items() if key == name}
                return {key: {"mappings": {"properties": one}} for key, one in held.items()}
            case ("POST", "_search", "scroll"):
                return self.page(body["scroll_id"])
            case ("DELETE", "_search", "scroll"):
                return {"freed": [self.scrolls.pop(key, None) is None for key in body["scroll_id"]]}
            case ("POST", _, "_search"):
                only(params, "scroll", "size")
                size = int(body.get("size") or params["size"][0])
                self.scrolls[key := str(len(self.calls))] = (
                    size,
                    self.index(name).search(body, size),
                )
                return self.page(key)
            case ("POST", _, "_msearch"):
                return {"responses": [self.one(name, one) for one in lines[1::2]]}
        raise bad(f"{method} /{'/'.join(path)} is not played")

    def hits(self, hits):
        failures = [{"reason": {"type": "node_gone", "reason": "a shard is lost"}}]
        shards = {"total": 2, "successful": 2, "skipped": 0, "failed": 0}
        if self.fault == "shards":
            shards |= {"successful": 1, "failed": 1, "failures": failures}
        return {"timed_out": False, "_shards": shards, "hits": {"hits": hits}}

    def one(self, name, body):
        try:
            return self.hits(self.index(name).search(body, body["size"])[: body["size"]])
        except RefusalError as refusal:
            return refusal.body

    def page(self, key):
        if key not in self.scrolls:
            raise RefusalError(404, "search_context_missing_exception", "No search context found")
        size, hits = self.scrolls[key]
        self.scrolls[key] = size, hits[size:]
        return {"_scroll_id": key, **self.hits(hits[:size])}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _handle(self):
        player, size = self.player, int(self.headers.get("Content-Length") or 0)
        lines = [json.loads(line) for line in self.rfile.read(size).splitlines() if line]
        asked = urlsplit(self.path)
        player.calls.append((asked.path, lines))
        fault, status = player.fault, 200
        if fault == "cut":
            self.close_connection = True
            return
        if fault == "slow":
            time.sleep(0.6)
        try:
            if isinstance(fault, int):
                raise RefusalError(fault, "refused", f"the node answers {fault}")
            path = [part for part in asked.path.split("/") if part]
            body = player.answer(self.command, path, parse_qs(asked.query), lines)
        except RefusalError as refusal:
            status, body = refusal.status, refusal.body
        content = json.dumps(body).encode()
        accepted = self.headers.get("Accept", "").split(",")[0]
        kind = accepted if "elasticsearch" in accepted and player.elastic else "application/json"
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if player.elastic:
            self.send_header("X-Elastic-Product", "Elasticsearch")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *given):
        """Nothing is printed."""


for method in ("GET", "HEAD", "POST", "PUT", "DELETE"):
    setattr(_Handler, f"do_{method}", _Handler._handle)
