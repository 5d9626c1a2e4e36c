"""Elasticsearch and OpenSearch, whose HTTP API `elastic_player` plays, by their official clients."""

import io
import json
import re
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
from database_helpers import FEW, VECTORS, D, N, client_of, played, vectors_mapped
from elastic_player import Index, Player

import crossknn as ck
from crossknn.errors import InputError, StoreError
from crossknn.extend import Queries
from crossknn.types import NO_ITEM

PRODUCTS = ("elasticsearch", "opensearch")
UNIT = VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True)
WORDS = ("zip", "sort", "lock", "read", "file", "list")
DOCS = [
    {"title": f"{WORDS[i % 6]} it", "body": f"how to {WORDS[i % 4]} a {WORDS[4 + i % 2]} {i}"}
    for i in range(N)
]


@pytest.fixture(scope="module", params=PRODUCTS)
def node(request):
    """A player with texts, and a client of it."""
    player, client = played(request.param, payloads=DOCS, ids=range(N))
    yield player, client
    player.close()


@pytest.fixture(scope="module")
def store(node):
    return ck.ElasticStore(node[1], "docs")


HOW = [("elasticsearch", how) for how in ("cosine", "dot_product", "max_inner_product", "l2_norm")]
HOW += [("opensearch", how) for how in ("cosinesimil", "innerproduct", "l2")]


@pytest.mark.parametrize(
    ("product", "how", "exact"),
    [(*kind, exact) for kind in HOW for exact in (False, True) if exact or "l2" not in kind[1]],
)
def test_scores_become_inner_products(product, how, exact):
    given = UNIT if how == "dot_product" else VECTORS
    player, client = played(product, given[:300], how=how)
    store = ck.ElasticStore(client, "docs", exact=exact)
    items = UNIT[:300] if how in ("cosine", "cosinesimil", "dot_product") else VECTORS[:300]
    queries = np.concatenate([3 * VECTORS[:2], np.zeros((1, D), np.float32)])
    found = store.top(queries, 300)
    assert sorted(found.items[2].tolist()) == [*range(300)]
    products = np.take_along_axis(queries @ items.T, found.items, axis=1)
    assert (products[:2].min(axis=1) < -1).all()
    np.testing.assert_allclose(found.scores, products, rtol=2e-5, atol=2e-5)
    assert (np.diff(found.scores) <= 0).all()
    np.testing.assert_allclose(store.vectors(np.arange(300)), items, rtol=1e-5, atol=1e-6)
    player.close()


def test_vectors_without_a_graph_are_compared_by_a_script():
    player, client = played("elasticsearch", FEW)
    about = player.indices["docs"].properties["embedding"]
    del about["similarity"]
    about["index"] = False
    found = ck.ElasticStore(client, "docs").top(np.array([[1, 0.1]], np.float32), 5)
    assert found.items.tolist() == [[2, 0, 3, 4, 1]]
    player.close()


def test_more_hits_than_a_search_returns_are_read_page_by_page(store, node, monkeypatch):
    for module in ("elastic", "elastic_queries"):
        monkeypatch.setattr(f"crossknn.index.{module}.PAGE", 100)
    found = store.top(VECTORS[:2], 250)
    assert found.items.tolist() == np.argsort(-(VECTORS[:2] @ VECTORS.T))[:, :250].tolist()
    assert not node[0].scrolls


def test_filters_and_few_ids_go_to_the_server(node, store):
    player, many = node[0], store.allowed({"title": {"not": "zip it"}})
    no_zip = {"bool": {"must_not": [{"terms": {"title.keyword": ["zip it"]}}]}}
    for allowed, sent in ((many, no_zip), (np.arange(N) < 2, {"ids": {"values": ["0", "1"]}})):
        found = store.top(VECTORS[:1], 20, None, allowed)
        assert allowed[found.items[found.items != NO_ITEM]].all()
        _, (_, body) = player.calls[-1]
        knn = body["knn"] if player.elastic else body["query"]["knn"]["embedding"]
        assert knn["filter"] == {"bool": {"filter": [sent]}}


def expected(text, fields=("title", "body")):
    """The scores (n,) of BM25, field by field."""
    import bm25s

    scores = []
    for field in fields:
        texts = [doc[field].split() for doc in DOCS]
        model = bm25s.BM25(k1=1.2)
        model.index(texts, show_progress=False)
        known = {word for words in texts for word in words}
        scores.append(model.get_scores([word for word in text.split() if word in known]))
    return np.max(scores, axis=0)


def test_words_are_ranked_by_the_index(store):
    queries, scores = Queries(["sort file", "zip 17", "xylophone"]), expected("sort file")
    found = store.words().top(queries, 40)
    np.testing.assert_allclose(found.scores[0], np.sort(scores)[::-1][:40], rtol=1e-5)
    assert found.scores[1, 0] == pytest.approx(expected("zip 17").max())
    assert (found.items[2] == NO_ITEM).all()
    asked = np.array([[3, 5, NO_ITEM], [17, 3, 3], [0, 1, 2]])
    given = store.words().scores(queries, asked)
    np.testing.assert_allclose(given[0, :2], scores[asked[0, :2]], rtol=1e-5)
    np.testing.assert_allclose(given[1], expected("zip 17")[asked[1]], rtol=1e-5)
    assert not given[2].any()
    np.testing.assert_allclose(store.words().scores(queries)[0], scores, rtol=1e-5)
    own = store.words(query=lambda text: {"match": {"title": text}}).scores(queries)[0]
    np.testing.assert_allclose(own, expected("sort file", ["title"]), rtol=1e-5)
    np.testing.assert_allclose(store.words("title^2").scores(queries)[0], 2 * own, rtol=1e-5)


@pytest.mark.parametrize("share", [0.9, 0.1, 0.001])
def test_words_of_allowed_items(store, share):
    allowed = np.random.default_rng(0).random(N) < share
    found = store.words().top(Queries(["sort file", "zip"]), 30, allowed)
    for q, text in enumerate(("sort file", "zip")):
        kept = found.items[q] != NO_ITEM
        assert allowed[found.items[q][kept]].all()
        best = np.sort(expected(text)[allowed])[::-1]
        np.testing.assert_allclose(found.scores[q][kept], best[best > 0][:30], rtol=1e-5)


def test_a_search_from_words_is_that_from_the_same_lists_in_memory(store):
    ids = [str(i) for i in range(N)]
    scores = expected("zip file")
    ranked = np.argsort(-scores, kind="stable")[: (scores > 0).sum()]
    lists = {"zip file": [(ids[i], float(scores[i])) for i in ranked]}
    items = [{"id": str(i), "text": doc["body"]} for i, doc in enumerate(DOCS)]
    memory = ck.ItemIndex.build(
        items, vectors=VECTORS, query_vectors=lambda texts: VECTORS[: len(texts)], bm25=False
    )
    over = ck.ItemIndex.over(store, "body", query_vectors=lambda texts: VECTORS[: len(texts)])
    from crossknn.retrievers.base import CandidateLists

    memory.add_retriever("words", CandidateLists(lists, ids))
    over.add_retriever("words", store.words())
    score = lambda pairs: [float(len(item) * 7 % 11 + len(item)) for _, item in pairs]  # noqa: E731
    for spec in ("rerank(retriever=words)", "axn(retriever=words)"):
        found = [
            ck.Searcher(index, score, spec).search("zip file", budget=60, trace=True)
            for index in (memory, over)
        ]
        assert found[0].n_scored == found[1].n_scored == 60
        picked = [{hit.id for hit in one.trace[0]} for one in found]
        assert picked[0] == picked[1], spec


def test_a_verdict_over_a_store_judges_the_method_with_its_words(store):
    index = ck.ItemIndex.over(store, "body", query_vectors=lambda texts: VECTORS[: len(texts)])
    index.add_retriever("words", store.words())
    queries = {f"q{i}": f"how to {WORDS[i % 4]} a file {i}" for i in range(8)}
    score = lambda pairs: [float(q.split()[-1] == text.split()[-1]) for q, text in pairs]  # noqa: E731
    found = ck.diagnose(
        index,
        score,
        queries,
        {f"q{i}": {str(i): 1} for i in range(8)},
        budgets=[20],
        method="auto(retriever=hybrid(words, vectors), mean=hybrid(words, vectors))",
    )
    assert found.retriever == "hybrid(words, vectors)"
    assert found.queries == 8


FAULTS = {
    429: "the node answers 429",
    503: "the node answers 503",
    "slow": "ConnectionTimeout: .*timed out",
    "cut": "ConnectionError: ",
    "shards": "node_gone: a shard is lost",
    "dropped": r"(index_not_found_exception: )?.*no such index \[docs\]",
    "closed": "ConnectionError: .*closed",
}


@pytest.mark.parametrize("words", [False, True])
@pytest.mark.parametrize(  # the client of OpenSearch connects again after close()
    ("product", "fault"),
    [(product, fault) for product in PRODUCTS for fault in FAULTS][:-1],
)
def test_a_node_that_fails_leaves_the_best_so_far(product, words, fault):
    player, _ = played(product, VECTORS[:200], payloads=DOCS, ids=range(N))
    client = client_of(player, **{"request_timeout" if player.elastic else "timeout": 0.4})
    store = ck.ElasticStore(client, "docs")
    store.whole = 0
    index = ck.ItemIndex.over(store, "body", query_vectors=lambda texts: VECTORS[: len(texts)])
    index.add_retriever("words", store.words())
    asked = []

    def score(pairs):
        asked.extend(pairs)
        if len(asked) == 40:
            player.fault = fault
            if fault == "dropped":
                player.indices.clear()
            elif fault == "closed":
                client.close()
        return [-float(len(text)) for _, text in pairs]

    spec = "axn(rounds=5,retriever=words)" if words else "axn(rounds=5)"
    found = ck.Searcher(index, score, spec).search(["zip a file", "sort"], k=5, budget=50)
    assert (found.stopped_by, found.n_scored) == ("store", 40)
    assert [len(hits) for hits in found.hits] == [5, 5]
    assert "index 'docs' failed: " in found.errors[0]
    with pytest.raises(
        StoreError, match=rf"^the \w+ index 'docs' failed: [^\n]*{FAULTS[fault]}[^\n]*$"
    ):
        store.top(VECTORS[:1], 5)
    with pytest.raises(StoreError, match=r"^the \w+ index 'docs' failed: [^\n]*$"):
        store.words().top(Queries(["zip"]), 5)
    player.close()


def test_documents_that_come_and_go(caplog):
    player, client = played("opensearch", FEW, [{"body": "a text"}] * 5, range(5))
    index = player.indices["docs"]
    index.put("5", {"body": "no vector"})
    store = ck.ElasticStore(client, "docs")
    assert store.shape == (5, 2)
    exact = ck.ElasticStore(client, "docs", exact=True)  # scripts need vectors
    assert exact.top(FEW[:1], 5).items.tolist() == [[0, 2, 3, 4, 1]]
    assert (store.words().top(Queries(["vector"]), 3).items == NO_ITEM).all()
    bare = ck.ElasticStore(played("opensearch", FEW, [{"at": 1}] * 5, range(5))[1], "docs")
    with pytest.raises(InputError, match="no field of the type text: name fields to search"):
        bare.words()
    index.put("3", {"body": "a text"})
    with pytest.raises(InputError, match=r"document '3' of .* has no vector: give it one"):
        store.vectors(np.array([3]))
    index.remove("0")
    with pytest.raises(StoreError, match=r"no longer has the item '0': open the store again"):
        store.vectors(np.array([0]))
    player.close()


def test_an_entry_of_an_object_can_be_the_text():
    payloads = [{"doc": {"body": f"text {i}", "year": 2000 + i}} for i in range(5)]
    player, client = played("elasticsearch", FEW, payloads, range(5))
    store = ck.ElasticStore(client, "docs")
    assert [*ck.ItemIndex.over(store, "doc.body").items.texts] == [f"text {i}" for i in range(5)]
    assert store.allowed({"doc.year": {"gte": 2003}}).tolist() == [False] * 3 + [True] * 2
    player.close()


def search_in(client, texts="body", condition=None, d=2, **options):
    store = ck.ElasticStore(client, "docs", **options)
    index = ck.ItemIndex.over(store, texts, query_vectors=lambda asked: np.ones((len(asked), d)))
    searcher = ck.Searcher(index, lambda pairs: [1.0] * len(pairs), "axn")
    return searcher.search("q", budget=3, filter=condition)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"vector": "embeding"}, r"no vectors in a field 'embeding' \(did you mean embedding\?\)"),
        ({"vector": "body"}, r"no vectors in a field 'body' \(known: embedding\)"),
        ({"d": 3}, "query vectors have 3 dimensions, but the item"),
        ({"texts": "doc"}, "the text of the item '.' of .* is {'year': 200.}: texts= must be"),
        ({"condition": {"doc": "x"}}, "'doc', which is object in .* name an entry of an object"),
        ({"condition": {"plain": "x"}}, "'plain', which is text in .*: map a text as keyword, or"),
        ({"condition": {"doc.yer": 1}}, r"no item of .* has this field \(did you mean doc.year"),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence(options, said):
    payloads = [{"body": "a text", "plain": "x", "doc": {"year": 2000 + i}} for i in range(5)]
    player, client = played("opensearch", FEW, payloads, range(5), plain={"type": "text"})
    with pytest.raises(InputError, match=said) as caught:
        search_in(client, **options)
    assert "\n" not in str(caught.value)
    player.close()


@pytest.mark.parametrize(
    ("product", "about", "said"),
    [
        (PRODUCTS[0], {"similarity": "l2_norm"}, "of float by l2_norm: map them as float with a c"),
        (PRODUCTS[1], {"method": {"engine": "faiss"}}, "by l2 in faiss: map .* exact=True"),
        (PRODUCTS[1], {"method": {"space_type": "innerproduct", "engine": "nmslib"}}, "in nmslib"),
        (PRODUCTS[0], {"element_type": "byte"}, "of byte by max_inner_product: map them as float"),
        (PRODUCTS[0], {"type": "keyword"}, "no field is a dense_vector or a knn_vector"),
        (PRODUCTS[0], {}, "the Elasticsearch index 'docs' holds no vectors"),
        (PRODUCTS[1], None, "OpenSearch has 0 indices 'docs': give one's name"),
    ],
)
def test_an_index_that_cannot_be_searched(product, about, said):
    properties = {"embedding": vectors_mapped(product, 2) | (about or {})}
    index = Index(product == "elasticsearch", properties)
    player = Player(product, {} if about is None else {"docs": index})
    with pytest.raises(InputError, match=said):
        ck.ElasticStore(client_of(player), "docs")
    player.close()


def test_a_client_that_is_none():
    with pytest.raises(InputError, match=r"the client is .*: give an Elasticsearch or OpenSearch"):
        ck.ElasticStore("http://localhost:9200", "docs")


@pytest.mark.parametrize("product", PRODUCTS)
def test_a_server_that_refuses(product):
    player, client = played(product, FEW)
    for fault, said in ((401, "the node answers 401"), ("cut", "ConnectionError")):
        player.fault = fault
        with pytest.raises(StoreError, match=rf"'docs' failed: [^\n]*{said}"):
            ck.ElasticStore(client, "docs")
    player.close()


@pytest.mark.parametrize("engine", ["Solr", "Vespa"])
def test_the_retriever_of_the_page_ranks_what_an_engine_returns(engine):
    page = (Path(__file__).parents[2] / "docs/how-to/search-engines.md").read_text()
    solr, vespa = re.findall(r"(?s)```\n((?:import|    def).*?)```", page)
    exec(solr.split("\n\nindex.")[0], names := {"__name__": "page"})
    found, asked = {"c": 2.5, "unknown": 2, "a": 1}, []
    if engine == "Vespa":
        exec(dedent(vespa), names)
        names["Solr"].ask = names["ask"]
        hits = [{"relevance": score, "fields": {"id": key}} for key, score in found.items()]
        answer = {"root": {"children": hits}}
    else:
        docs = [{"id": key, "score": score} for key, score in found.items()]
        answer = {"response": {"docs": docs}}

    def urlopen(url, timeout):
        asked.append(url)
        return io.StringIO(json.dumps(answer))

    names["urlopen"] = urlopen
    ranked = names["Solr"]("http://engine", ["a", "b", "c"])
    assert ranked.top(Queries(["zip"]), 2).items.tolist() == [[2, 0]]
    assert ranked.scores(Queries(["zip"])).tolist() == [[1, 0, 2.5]]
    assert ranked.top(Queries(["zip"]), 2, np.array([True, True, False])).items.tolist() == [[0]]
    assert "zip" in asked[0]
