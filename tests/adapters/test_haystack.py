"""The real classes of Haystack, in pipelines that are saved and loaded."""

from __future__ import annotations

import json

import pytest
from adapter_helpers import QUERY, TEXTS, overlap

import crossknn as ck

BUNDLED = {"method": "rerank(retriever=lsa)", "budget": 6}


@pytest.fixture(scope="module", autouse=True)
def imported():
    """Where it is used: that takes two seconds."""
    global Document, Pipeline, SerializationError, FilterError, document_matches_filter
    global CrossknnRanker, CrossknnRetriever, filter_of
    pytest.importorskip("haystack")
    from haystack import Document, Pipeline
    from haystack.core.errors import SerializationError
    from haystack.errors import FilterError
    from haystack.utils.filters import document_matches_filter

    from crossknn.adapters.haystack import CrossknnRanker, CrossknnRetriever, filter_of


@pytest.fixture
def documents():
    meta = [{"lang": item["lang"], "year": item["year"]} for item in TEXTS]
    return [
        Document(id=item["id"], content=item["text"], meta=one)
        for item, one in zip(TEXTS, meta, strict=True)
    ]


def test_options_of_a_call_replace_those_of_the_component(index, documents):
    english = {"field": "meta.lang", "operator": "==", "value": "en"}
    retriever = CrossknnRetriever(index, overlap, top_k=3, budget=12, filters=english)
    answers = retriever.run(QUERY)["documents"]
    assert [document.meta["lang"] for document in answers] == ["en"] * 3
    assert len(retriever.run(QUERY, filters={}, top_k=5)["documents"]) == 5
    assert len(CrossknnRanker(overlap).run(QUERY, documents, top_k=4)["documents"]) == 4
    assert CrossknnRanker(overlap).run(QUERY, [])["documents"] == []
    with pytest.raises(ck.InputError, match="not in"):
        retriever.run(QUERY, filters=english | {"value": ["en"]})


def test_a_pipeline_is_saved_and_loaded(tmp_path):
    index = ck.ItemIndex.build(TEXTS, lsa=4)
    index.save(tmp_path / "index")
    pipeline = Pipeline()
    pipeline.add_component("retriever", CrossknnRetriever(tmp_path / "index", **BUNDLED))
    ranker = CrossknnRanker(scorer="bundled", top_k=2, budget={"per_query": 3})
    pipeline.add_component("ranker", ranker)
    pipeline.connect("retriever.documents", "ranker.documents")
    given = {"retriever": {"query": QUERY}, "ranker": {"query": QUERY}}
    found = pipeline.run(given)["ranker"]["documents"]
    assert len(found) == 2
    allowed = ["crossknn.adapters.haystack"]
    loaded = Pipeline.loads(pipeline.dumps(), allowed_modules=allowed)
    assert loaded.run(given)["ranker"]["documents"] == found
    for wrong in (CrossknnRetriever(index), CrossknnRanker(scorer=overlap)):
        unsaved = Pipeline()
        unsaved.add_component("one", wrong)
        with pytest.raises(SerializationError, match="unsupported value of type"):
            unsaved.dumps()


YEAR = {"field": "meta.year", "operator": ">=", "value": 2010}
LANG = {"field": "lang", "operator": "in", "value": ["en", "fr"]}


@pytest.mark.parametrize(
    "conditions",
    [
        YEAR,
        LANG,
        *({"field": "meta.year", "operator": how, "value": 2011} for how in ("==", "!=", ">", "<", "<=")),
        {"field": "meta.lang", "operator": "not in", "value": ["en"]},
        {"field": "meta.lang", "operator": "!=", "value": "en"},
        {"operator": "AND", "conditions": [YEAR, LANG]},
        {"operator": "OR", "conditions": [YEAR, LANG]},
        {"operator": "NOT", "conditions": [YEAR, LANG]},
        {"operator": "NOT", "conditions": [{"operator": "OR", "conditions": [YEAR, LANG]}]},
    ],
    ids=json.dumps,
)  # fmt: skip
def test_filters_allow_what_haystack_s_own_do(index, documents, conditions):
    named = json.loads(json.dumps(conditions).replace('"lang"', '"meta.lang"'))
    wanted = [document_matches_filter(named, document) for document in documents]
    assert index.allowed(filter_of(conditions)).tolist() == wanted
    assert 0 < sum(wanted) < len(wanted)


@pytest.mark.parametrize(
    "conditions",
    [
        {"field": "meta.lang", "operator": "like", "value": "e"},
        {"operator": "XOR", "conditions": [YEAR]},
        {"field": "meta.lang", "operator": "=="},
        {"lang": "en"},
        "year > 2000",
        [{"field": "meta.year"}],
    ],
)
def test_what_is_no_filter_is_refused(documents, conditions):
    with pytest.raises(ck.InputError, match="is no filter: give a mapping, field"):
        filter_of(conditions)
    with pytest.raises((FilterError, KeyError)):  # as Haystack does
        document_matches_filter(conditions, documents[0])
