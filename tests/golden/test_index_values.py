"""Golden values of an index: what its retrievers find and score, its scales, graphs and samples."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from late_helpers import WordStates, vector
from recorded import check, plain

import crossknn as ck
from crossknn.data.items import read_items
from crossknn.fitting.anchors import collect_anchors
from crossknn.index.view import IndexView
from crossknn.retrievers.base import CandidateLists
from crossknn.retrievers.specs import open_retriever
from crossknn.scorers.opening import as_scorer
from crossknn.spec import parse
from crossknn.types import NO_ITEM, Queries
from crossknn_lab.rivals.graphs import item_graph

N, K = 120, 12
WORDS = (  # noqa: SIM905
    "archive buffer cache decode encode file format header index join key list lock map merge name "
    "object parse path query queue read record sort split stream string table thread token tree "
    "value write zip the of a in to and"
).split()
RNG = np.random.default_rng(16)
WEIGHTS = 1 / np.arange(1, len(WORDS) + 1) ** 0.7
RECORDS = [
    {
        "id": f"d{i}",
        "title": str(RNG.choice(WORDS)).title(),
        "text": " ".join(RNG.choice(WORDS, size=RNG.integers(4, 30), p=WEIGHTS / WEIGHTS.sum())),
        "year": str(1990 + i % 7),
    }
    for i in range(N)
]
QUERIES = ["zip a file archive", "Sort the table of keys by value", "lock thread queue", "nothing"]
ALLOWED = np.arange(N) % 3 != 0
GRAPHS = ("dense", "bm25", "own")


class MeanStates(WordStates):
    """A late-interaction model: an item scores its states' mean product, less the list's mean."""

    def compare(self, queries, items, lists):
        asked, _ = queries.padded(np.arange(len(lists)))
        found, known = items.padded(lists)
        scores = np.einsum("mqd,mctd->mc", asked, found) / known.sum(-1).clip(1) / 10
        there = lists != NO_ITEM
        mean = np.where(there, scores, 0).sum(1) / np.maximum(there.sum(1), 1)
        return np.where(there, scores - mean[:, None], -np.inf).astype(np.float32)


class WordEncoder:
    """A dual encoder that gives the same vectors on every machine: means of words' own vectors."""

    fingerprint, dimensions = "words", 24

    def encode_items(self, texts, progress=None):
        words = [[*text.lower().split(), "."] for text in texts]
        return np.stack([np.mean([vector(word, 24) for word in each], axis=0) for each in words])

    encode_queries = encode_items


TRAIN = [f"{word} {word} file" for word in WORDS[:6]]
RNG = np.random.default_rng(5)
OWN = RNG.normal(size=(N, 6)).astype(np.float32)
OWN_QUERIES = {text: RNG.normal(size=6).astype(np.float32) for text in [*QUERIES, *TRAIN]}
MODELS = {"cmc": MeanStates(), "dense": WordEncoder()}
LISTS = {QUERIES[0]: ["d3", "d1", "d40"], QUERIES[1]: [("d5", 2.5), ("d9", -1.0), ("d2", 2.5)]}


def own_vectors(texts):
    return np.stack([OWN_QUERIES[text] for text in texts])


def exact(pairs):
    return [zlib.crc32(f"{q}|{t}".encode()) / 2**31 - 1 for q, t in pairs]


@pytest.fixture
def index(monkeypatch):
    drawn = property(lambda index: np.random.default_rng(3).permutation(index.n))
    monkeypatch.setattr(IndexView, "anchor_items", drawn)
    made = ck.ItemIndex.build(
        read_items(RECORDS, template="{title} ({year})\n{text}"),
        encoder=MODELS["dense"],
        vectors={"own": OWN},
        query_vectors={"own": own_vectors},
        lsa=16,
    )
    made.add_late(MODELS["cmc"])
    collect_anchors(made, as_scorer(exact), TRAIN)
    made.add_retriever("mine", CandidateLists(LISTS, made.items.ids))
    return made


SPECS = {
    "bm25": "bm25",
    "lsa": "lsa",
    "dense": "dense",
    "own": "own",
    "hybrid": "hybrid",
    "random": "random",
    "fixed": "fixed",
    "lists": "mine",
    "late over bm25": "cmc(retriever=bm25, depth=9)",
    "late over hybrid": "cmc",
}


def values(index):
    found = {"texts": [index.items.texts[p] for p in (0, 17, 119)]}
    found["anchor_items"] = index.anchor_items[:40].tolist()
    scales = {name: index.scale(name) for name in ("dense", "lsa", "own")}
    found["scales"] = {name: [scale.alpha, scale.beta] for name, scale in scales.items()}
    found["scales"]["center"] = index.anchors.center
    found["graphs"] = {name: item_graph(index, name, 5)[::5].tolist() for name in GRAPHS}
    for name, spec in SPECS.items():
        made = open_retriever(index, parse(spec), 7)
        top, few = made.top(Queries(QUERIES), K), made.top(Queries(QUERIES), 4, ALLOWED)
        scores = made.scores(Queries(QUERIES))
        found[name] = {
            "top": [row[row != NO_ITEM].tolist() for row in top.items],
            "top_scores": [row[row > -np.inf].tolist() for row in top.scores],
            "allowed": [row[row != NO_ITEM].tolist() for row in few.items],
            "scores": np.where(np.isfinite(scores[:, ::7]), scores[:, ::7], -1e9).tolist(),
        }
    return found


def test_values_are_those_of_the_first_release_from_memory_and_from_the_disk(index, tmp_path):
    now = values(index)
    check("index_values.json", now, close=2e-4, floor=0.1)
    index.save(tmp_path / "index")
    given = {"encoder": MODELS, "query_vectors": {"own": own_vectors}}
    for folder in ("again", "index"):  # copied, and written over itself
        ck.ItemIndex.load(tmp_path / "index", **given).save(tmp_path / folder)
    for folder in ("again", "index"):
        loaded = ck.ItemIndex.load(tmp_path / folder, **given)
        metas = [{name: a.meta for name, a in each.artifacts.items()} for each in (loaded, index)]
        assert metas[0] == metas[1]
        loaded.add_retriever("mine", index.retrievers["mine"])
        assert plain(values(loaded)) == plain(now)
