"""Items are added, replaced and deleted, and an index is compacted, without building it again."""

import errno
import os
import pkgutil
import threading
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from index_helpers import FormulaScorer, LengthEncoder, contents, corpus, score_of
from late_helpers import WordStates

import crossknn as ck
from crossknn.data.passages import Passages, whole
from crossknn.errors import IndexFormatError, InputError
from crossknn.fitting.anchors import collect_anchors
from crossknn.fitting.fit import fit as fit_vectors
from crossknn.fitting.kriging import fit_prior, prior_of
from crossknn.index.item_index import ItemIndex
from crossknn.index.storage import Growth, IndexFolder
from crossknn.index.updates import regression
from crossknn.index.vectors import ItemVectors, Linear
from crossknn.methods.kriging import Kriging
from crossknn.retrievers.base import CandidateLists, ItemPriors
from crossknn.retrievers.lexical import BM25
from crossknn.types import Queries


def vectors_of(texts):
    """Distinct vectors (m, 4) of small whole numbers, so that products are exact."""
    rows = [np.frombuffer(f"{text}|{len(text)}".encode().ljust(64)[:64], "u1") for text in texts]
    return (np.array(rows).reshape(-1, 4, 16).astype(int).sum(axis=2) % 31 - 15).astype(np.float32)


def record(number, version=0):
    return {"id": f"i{number}", "text": f"item {number} in version {version}"}


def texts_of(records):
    return [each["text"] for each in records]


def build(records, **options):
    given = {"vectors": {"own": vectors_of(texts_of(records))}, "bm25": False, **options}
    return ItemIndex.build(records, query_vectors={"own": vectors_of}, **given)


def add(index, records, **options):
    index.add(records, vectors={"own": vectors_of(texts_of(records))}, **options)


def load(place):
    return ItemIndex.load(place / "index", query_vectors={"own": vectors_of})


def nearest(index, query, k, **options):
    found = ck.Searcher(index, None, "retrieve(retriever=own)").search(query, k=k, **options)
    return [hit.id for hit in found[0]]


class LivingItems:
    """Ids -> (text, vector), in the order in which they were last added, searched by brute force."""

    def __init__(self, texts, vectors):
        self.items = {}
        self.add(texts, vectors)

    def add(self, texts, vectors):
        for item_id, vector in zip(texts, vectors, strict=True):
            self.items.pop(item_id, None)
            self.items[item_id] = texts[item_id], vector

    def delete(self, ids):
        for item_id in ids:
            del self.items[item_id]

    def nearest(self, query, k):
        """The k ids of the largest inner products, ties to what was added first."""
        products = np.array([query @ vector for _, vector in self.items.values()])
        order = np.argsort(-products, kind="stable")[:k]
        return [list(self.items)[place] for place in order]


class Steps(RuleBasedStateMachine):
    """Random steps on an index and on the dictionary that it must agree with."""

    @initialize(count=st.integers(1, 6), saved=st.integers(0, 4).map(lambda drawn: drawn == 4))
    def begin(self, count, saved):
        records = [record(number) for number in range(count)]
        self.index, self.version, self.folder = build(records), 0, None
        self.model = LivingItems(
            {each["id"]: each["text"] for each in records}, vectors_of(texts_of(records))
        )
        if saved:
            import tempfile
            from pathlib import Path

            self.place = tempfile.TemporaryDirectory()
            self.folder = Path(self.place.name) / "index"
            self.index.save(self.folder)

    def teardown(self):
        if getattr(self, "folder", None) is not None:
            self.place.cleanup()

    @rule(numbers=st.lists(st.integers(0, 30), min_size=1, max_size=4, unique=True))
    def put(self, numbers):
        self.version += 1
        records = [record(number, self.version) for number in numbers]
        known = [each["id"] for each in records if each["id"] in self.model.items]
        if known:
            before = len(self.index)
            with pytest.raises(InputError, match=f"already has an item '{known[0]}'"):
                add(self.index, records)
            assert len(self.index) == before
        add(self.index, records, replace=True)
        texts = {each["id"]: each["text"] for each in records}
        self.model.add(texts, vectors_of(texts.values()))

    @precondition(lambda self: self.model.items)
    @rule(data=st.data())
    def delete(self, data):
        ids = st.lists(st.sampled_from([*self.model.items]), min_size=1, max_size=3, unique=True)
        chosen = data.draw(ids)
        self.index.delete(chosen)
        self.model.delete(chosen)
        with pytest.raises(InputError, match="there is no item with the id"):
            self.index.delete(chosen)

    @precondition(lambda self: self.model.items)
    @rule()
    def compact(self):
        self.index.compact()
        assert self.index.n == len(self.model.items)

    @precondition(lambda self: self.folder is not None)
    @rule()
    def load(self):
        self.index = ItemIndex.load(self.folder, query_vectors={"own": vectors_of})

    @precondition(lambda self: self.model.items)
    @rule(number=st.integers(0, 30), k=st.integers(1, 5))
    def search(self, number, k):
        query = f"query {number}"
        k = min(k, len(self.model.items))
        assert nearest(self.index, query, k) == self.model.nearest(vectors_of([query])[0], k)

    @invariant()
    def the_same_items(self):
        if hasattr(self, "model"):
            items, alive = self.index.items, self.index.items.alive
            rows = range(len(items)) if alive is None else np.flatnonzero(alive).tolist()
            found = {items.ids[row]: items.texts[row] for row in rows}
            assert found == {i: text for i, (text, _) in self.model.items.items()}
            assert len(self.index) == len(found)


TestSteps = Steps.TestCase
TestSteps.settings = settings(max_examples=40, stateful_step_count=10, deadline=None)


def test_a_reader_goes_on_with_what_it_opened(tmp_path):
    build([record(i) for i in range(40)]).save(tmp_path / "index")
    reader = load(tmp_path)
    before = nearest(reader, "query", 40)
    writer = ItemIndex.load(tmp_path / "index")
    add(writer, [record(i) for i in range(40, 2000)])
    writer.delete(["i3", "i1999"])
    assert nearest(reader, "query", 40) == before
    writer.compact()
    assert nearest(reader, "query", 40) == before
    assert reader.items[39].text == record(39)["text"]
    again = load(tmp_path)
    at_once = build([record(i) for i in range(1999) if i != 3])
    assert nearest(again, "query", 1998) == nearest(at_once, "query", 1998)
    assert (again.n, reader.n) == (1998, 40)
    with pytest.raises(IndexFormatError, match="was replaced; load it again"):
        reader.put_artifact("mine", {}, {})
    reader.delete(["i5"])  # of the newest
    assert (len(reader), nearest(reader, "query", 1)) == (1997, nearest(again, "query", 1))
    assert ItemIndex.load(tmp_path / "index").verify() == []


def full(tmp_path=None, n=30):
    """An index with all that is made of items."""
    index = ItemIndex.build(corpus(n), encoder=LengthEncoder(), lsa=4)
    collect_anchors(index, FormulaScorer(), ["one cat", "two dogs", "three birds"])
    fit_prior(index)
    if tmp_path is not None:
        index.save(tmp_path / "index")
    return index


@pytest.mark.parametrize("saved", [False, True])
def test_everything_that_an_index_has_takes_in_new_items(tmp_path, saved):
    index = full(tmp_path if saved else None)
    index.add(corpus(37)[30:])
    index.delete(["i0", "i35"])
    index.add(corpus(38)[37:])
    if saved:
        index = ItemIndex.load(tmp_path / "index", encoder=LengthEncoder())
    n, at_once = 38, full(n=38)
    assert (index.n, len(index)) == (n, 36)
    np.testing.assert_array_equal(index.vectors["dense"], at_once.vectors["dense"])
    assert index.vectors["lsa"].shape == (n, 4)
    assert index.anchors is None  # stale: exact scores are not predicted
    assert index.added == {"artifacts/anchors": 8, "artifacts/kriging": 8}
    scorer = FormulaScorer()
    for method in ("kriging", "axn(rounds=3)", "rerank(retriever=bm25)"):
        hits = ck.Searcher(index, scorer, method).search("a cat in a tree", k=5, budget=20)[0]
        assert len(hits) == 5
        assert not {"i0", "i35"} & {hit.id for hit in hits}
        exact = [score_of("a cat in a tree", hit.text) for hit in hits]
        assert [hit.score for hit in hits] == np.float32(exact).tolist()
    kept = np.array(index.artifacts["anchors"].arrays["scores"])
    late = index.artifacts["kriging"]
    index.compact()
    with pytest.raises(InputError, match="'kriging' was made for 38 items, but the index has 36"):
        index.put_artifact("kriging", late.meta, late.arrays)
    living = [i for i in range(n) if i not in (0, 35)]
    assert (index.n, index.added["artifacts/kriging"]) == (36, 7)
    stale, old = index.artifacts["anchors"], [i for i in living if i < 30]
    np.testing.assert_array_equal(stale.arrays["scores"], kept[:, old])
    np.testing.assert_array_equal(index.vectors["dense"], at_once.vectors["dense"][living])
    assert list(index.items.ids) == [f"i{i}" for i in living]
    assert sorted(index.anchor_items) == list(range(36))
    collect_anchors(index, scorer, ["one cat"])  # the scores of items that were added, too
    assert "artifacts/anchors" not in index.added
    exact = [score_of("two dogs", text) for text in index.items.texts]
    row = list(index.anchors.queries.texts).index("two dogs")
    np.testing.assert_array_equal(index.anchors.scores[row], np.float32(exact))
    assert len(ck.Searcher(index, scorer, "anncur").search("a cat", k=5, budget=20)[0]) == 5


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("fitted", ["prior", "anchors", "vectors"])
def test_what_was_fitted_to_other_items_is_refused(tmp_path, monkeypatch, saved, fitted):
    """As many items as before, but others: one is deleted and one added while something is made."""
    index = full(tmp_path if saved else None)
    if saved:
        index = ItemIndex.load(tmp_path / "index", encoder=LengthEncoder())
    before = dict(index.artifacts), [*index.fitted]

    def change(*given, **options):
        index.delete(["i3"])
        index.add([{"id": "new", "text": "a new one"}])
        index.compact()
        assert index.n == 30
        return make(*given, **options)

    made, scorer = "crossknn.{}".format, FormulaScorer()
    where, fit = {
        "prior": ("fitting.kriging.prior_of", lambda: fit_prior(index)),
        "anchors": ("fitting.anchors.collect", lambda: collect_anchors(index, scorer, ["four"])),
        "vectors": ("fitting.fit.FitTask", lambda: fit_vectors(index, scorer, ["one cat"], "als")),
    }[fitted]
    make = pkgutil.resolve_name(made(where))
    monkeypatch.setattr(made(where), change)
    with pytest.raises(InputError, match="items were added or removed while this was made"):
        fit()
    after = index.artifacts, index.fitted
    assert [[*kind] for kind in after] == [[*kind] for kind in before]
    assert index.artifacts["kriging"].meta["added"] == 1
    monkeypatch.undo()
    if fitted == "prior":
        collect_anchors(index, scorer, ["one cat"])  # they are stale
    fit()  # of the items of now


def test_a_fit_is_kept_though_items_are_deleted_meanwhile(tmp_path, monkeypatch):
    full(tmp_path)
    index, make = ItemIndex.load(tmp_path / "index", encoder=LengthEncoder()), prior_of

    def change(*given, **options):
        index.delete(["i3"])
        return make(*given, **options)

    monkeypatch.setattr("crossknn.fitting.kriging.prior_of", change)
    prior = fit_prior(index)
    again = ItemIndex.load(tmp_path / "index", encoder=LengthEncoder())
    for each in (index, again):
        np.testing.assert_array_equal(each.artifacts["kriging"].arrays["factor"], prior.factor)
        assert len(each) == 29


def test_retrievers_of_other_items_are_dropped(tmp_path):
    build([record(i) for i in range(5)]).save(tmp_path / "index")
    one, other = (ItemIndex.load(tmp_path / "index") for _ in range(2))
    one.add_retriever("mine", ItemPriors(np.arange(5.0)))
    one.delete(["i4"])
    assert "mine" in one.retrievers
    add(other, [record(9)])
    other.compact()
    assert other.n == 5
    one.delete(["i9"])
    assert "mine" not in one.retrievers


def test_approximate_lists_of_points_go_on_after_items_were_added():
    """What the column of mean scores was is not standardised anew, since the lists know it."""
    index = full()
    before = Kriging().prior(index)
    index.add([{"id": "new", "text": "a new item, and a long one"}])
    after = Kriging().prior(index)
    assert np.array_equal(after.column[:30], before.column)
    wanted = (after.mean[30] - before.mean.mean()) / before.mean.std()
    assert after.column[30] == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("saved", [False, True])
def test_states_and_fitted_vectors_of_new_items(tmp_path, saved):
    base, n, k = LengthEncoder(), 30, 12
    index = ItemIndex.build(corpus(n), encoder=base, bm25=False)
    weight, offset = np.float32([[1, 2], [3, 4], [5, 6]]), np.float32([7, 8])
    own = index.vectors["dense"]
    moved = Linear(weight, offset)
    given = {"method": "mf", "base": "dense", "map": moved}
    index.add_fitted("free", ItemVectors(values=moved(own).astype(np.float16), **given))
    index.add_late(WordStates())
    if saved:
        index.save(tmp_path / "index")
    index.add(corpus(n + k)[n:])
    index.delete(["i2"])
    if saved:
        given = {"dense": base, "cmc": WordStates()}
        index = ItemIndex.load(tmp_path / "index", encoder=given)
    assert index.vectors["free"].dtype == np.float16
    assert index.added == {"vectors/free": k}
    for places in (np.arange(n + k), np.delete(np.arange(n + k), 2)):
        states, expected = index.late["cmc"].states, WordStates().encode_items(index.items.texts)
        np.testing.assert_array_equal(states.starts, expected.starts)
        np.testing.assert_array_equal(states.values, expected.values)
        assert index.vectors["free"].shape == (len(places), 2)
        for method in ("axn(vectors=free)", "rerank(retriever=cmc(retriever=dense))"):
            hits = ck.Searcher(index, FormulaScorer(), method).search("a cat", k=5, budget=15)[0]
            assert "i2" not in {hit.id for hit in hits}
        if index.n == n + k:
            index.compact()


def test_lists_name_the_newest_item_of_an_id():
    index = build([record(i) for i in range(4)])
    add(index, [record(1, 1)], replace=True)
    index.delete(["i3"])
    lists = CandidateLists({"query": ["i3", "i1", "i0"]}, index.items.ids)
    index.add_retriever("lists", lists)
    found = ck.Searcher(index, None, "retrieve(retriever=lists)").search("query", k=2)[0]
    assert [hit.text for hit in found] == [record(1, 1)["text"], record(0)["text"]]
    assert lists.scores(Queries(["query"])).shape == (1, 5)


@pytest.mark.parametrize("method", ["axn(rounds=4)", "kriging(mean=dense, retriever=dense)"])
def test_a_grown_index_is_searched_like_one_built_at_once(method):
    given = {"encoder": LengthEncoder(), "bm25": False}
    grown, at_once = ItemIndex.build(corpus(20), **given), ItemIndex.build(corpus(60), **given)
    grown.add(corpus(45)[20:])
    grown.add(corpus(60)[45:])
    for query in ("cat", "a dog by the river", "tree house 33"):
        one, two = (
            ck.Searcher(index, FormulaScorer(), method).search(query, k=8, budget=24, trace=True)
            for index in (grown, at_once)
        )
        assert [hit.id for hit in one.trace[0]] == [hit.id for hit in two.trace[0]]
        assert [hit.id for hit in one[0]] == [hit.id for hit in two[0]]


def test_words_of_added_items_weigh_what_the_fit_gave_them():
    texts = [each["text"] for each in corpus(40)]
    fitted = BM25.fit(texts)
    meta, rows = fitted.rows([texts[7], "an entirely new word", texts[7], ""])
    assert meta["n"] == 44
    grown = BM25.of(Growth(meta, rows).of(fitted.artifact()))
    queries = Queries(["cat dog 7", "new", "house light", "cat entirely"])
    before, after = fitted.scores(queries), grown.scores(queries)
    np.testing.assert_array_equal(after[0::2, :40], before[0::2])
    np.testing.assert_allclose(after[[0, 2], 40], before[[0, 2], 7], rtol=1e-6)
    np.testing.assert_array_equal(after[:, 40], after[:, 42])
    assert after[1].argmax() == 41
    assert not after[:, 43].any()


def test_a_regression_on_vectors_recovers_what_is_linear_in_them():
    rng = np.random.default_rng(0)
    known, new = rng.normal(size=(30_000, 5)), rng.normal(size=(4, 5))
    slopes = rng.normal(size=(5, 2))
    predicted = regression(known, new, 4, 30_000)
    np.testing.assert_allclose(predicted(known @ slopes + 3), new @ slopes + 3, atol=0.05)
    np.testing.assert_allclose(predicted(known[:, 0]), new[:, 0], atol=0.05)
    none = regression(None, None, 2, 9)
    np.testing.assert_allclose(none(known + 7), [(known[:9] + 7).mean(0)] * 2)


def test_bad_input_changes_nothing(tmp_path):
    index = build([record(i) for i in range(5)])
    index.save(tmp_path / "index")
    before = contents(tmp_path / "index")
    new = [record(9)]
    one = vectors_of(["x"])
    for wrong, said in [
        ({}, r"your own item vectors 'own': give vectors of the new items, .* shape .1, 4."),
        ({"vectors": {"own": one[:, :3]}}, "have 3 dimensions, but the item vectors have 4"),
        ({"vectors": {"own": np.vstack([one, one])}}, r"it must be .1, d."),
        (
            {"vectors": {"own": one, "dense": one}},
            "given for 'dense', but the user's own vectors in the index are own",
        ),
        ({"vectors": {"own": one * np.nan}}, "row 0 contains a NaN"),
    ]:
        with pytest.raises(InputError, match=said):
            index.add(new, **wrong)
    with pytest.raises(InputError, match="give a list of ids"):
        index.delete("i1")
    with pytest.raises(InputError, match="there is no item with the id 'i7'"):
        index.delete(["i1", "i7"])
    assert contents(tmp_path / "index") == before
    index.delete([f"i{i}" for i in range(5)])
    with pytest.raises(InputError, match="every item of the index is deleted"):
        index.compact()
    for options in {}, {"k": 1}, {"min_score": 0.0}, {"filter": []}, {"method": "rerank"}:
        with pytest.raises(InputError, match="every item of the index is deleted: add items"):
            ck.Searcher(index, FormulaScorer()).search("query", **options)
    add(index, new)
    assert nearest(index, "query", 1) == ["i9"]
    with pytest.raises(InputError, match=r"5 items are deleted: compact the index first"):
        collect_anchors(index, FormulaScorer(), ["one"])


@pytest.mark.parametrize("change", ["add", "delete", "compact"])
def test_a_full_disk_loses_nothing(tmp_path, monkeypatch, change):
    index = build([record(i) for i in range(50)])
    index.save(tmp_path / "index")
    add(index, [record(50)])
    index.delete(["i7"])
    before = contents(tmp_path / "index")
    change = {
        "add": lambda: add(index, [record(i) for i in range(60, 90)]),
        "delete": lambda: index.delete(["i8"]),
        "compact": index.compact,
    }[change]
    for step in (1, 2):  # of a column, of more columns or the data folder
        calls = []

        def failing(handle, calls=calls, step=step):
            calls.append(handle)
            if len(calls) == step:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", failing)
            with pytest.raises(InputError, match=r"cannot be written: No space left.*was chang"):
                change()
    assert contents(tmp_path / "index") == before
    assert len(index) == 50
    change()
    assert ItemIndex.load(tmp_path / "index").verify() == []


def test_during_a_compaction_searches_go_on_and_writers_wait(tmp_path, monkeypatch):
    build([record(i) for i in range(30)]).save(tmp_path / "index")

    index, other, scorer = load(tmp_path), load(tmp_path), FormulaScorer()
    index.delete(["i3"])
    before, real = nearest(index, "query", 29), IndexFolder.commit
    held, go = threading.Event(), threading.Event()

    def commit(*given):
        monkeypatch.setattr(IndexFolder, "commit", real)
        held.set()
        assert go.wait(60)
        return real(*given)

    monkeypatch.setattr(IndexFolder, "commit", commit)
    with ThreadPoolExecutor(3) as pool:
        try:
            compaction = pool.submit(index.compact)
            assert held.wait(60)
            writing = [pool.submit(index.delete, ["i4"]), pool.submit(other.delete, ["i5"])]
            for reader in (index, load(tmp_path)):
                assert nearest(reader, "query", 29) == before
                kept = ck.StoredScorer(scorer, reader.scores)
                ck.Searcher(reader, kept, "rerank(retriever=own)").search("query", k=5, budget=10)
            assert wait([compaction, *writing], timeout=0.3).done == set()
        finally:
            go.set()
        for job in (compaction, *writing):
            job.result()
    assert len(scorer.asked) == 10  # kept by the first search, read by the second
    after = load(tmp_path)
    assert (after.n, len(after)) == (29, 27)
    assert nearest(after, "query", 27) == [i for i in before if i not in ("i4", "i5")]
    assert len(after.scores) == 10


def test_searches_go_on_while_items_are_added_and_compacted(tmp_path):
    build([record(i) for i in range(30)]).save(tmp_path / "index")
    index = load(tmp_path)
    searcher, done = ck.Searcher(index, None, "retrieve(retriever=own)"), threading.Event()

    def search():
        while not done.is_set():
            assert len({hit.id for hit in searcher.search("query", k=10)[0]}) == 10

    with ThreadPoolExecutor(1) as pool:
        searching = pool.submit(search)
        try:
            for step in range(6):
                add(index, [record(100 + step), record(step, step)], replace=True)
                index.delete([f"i{20 + step}"])
                if step % 3 == 2:
                    index.compact()
        finally:
            done.set()
        searching.result()
    assert len(index) == 30


LONG = ("One sentence stands here. " * 30).strip()


def documents_of(index):
    """{document: its text, put together from its passages}, of passages that are not deleted."""
    items, columns = index.items, {}
    for place, item in enumerate(map(items.__getitem__, range(len(items)))):
        if items.alive is None or items.alive[place]:
            texts, starts = columns.setdefault(item.extra["document"], ([], []))
            texts.append(item.text)
            starts.append(item.extra["start"])
    return {document: whole(*given) for document, given in columns.items()}


@pytest.mark.parametrize("stored", [False, True])
def test_documents_are_added_replaced_and_deleted_with_all_their_passages(tmp_path, stored):
    texts = {"a": LONG, "a#1": "short", "b": LONG[:298]}
    index = ItemIndex.build(texts, passages=30, overlap=6)
    if stored:
        index.save(tmp_path / "index")
        index = ItemIndex.load(tmp_path / "index")
    snapshot, before = index.snapshot(), len(index)
    with pytest.raises(InputError, match="already has a document 'b': give another id, or replace"):
        index.add({"c": "new", "b": "changed"})
    with pytest.raises(InputError, match=r"no document with the id 'a#2' .ids look like 'a'"):
        index.delete(["a", "a#2"])
    assert (documents_of(index), len(index)) == (texts, before)
    for changed in {"b": "changed", "c": LONG}, {"a": "shorter"}:
        index.add(changed, replace=True)
        texts |= changed
        assert documents_of(index) == texts
    assert "c#6" in index.items  # cut as the documents of the build
    assert "a#2" not in index.items
    index.delete(["a", "c"])
    del texts["a"], texts["c"]
    assert (documents_of(index), len(index)) == (texts, 2)
    index.compact()
    assert (documents_of(index), index.n) == (texts, 2)
    index.add({"a": LONG})
    assert documents_of(index) == {**texts, "a": LONG}
    settings = Passages(30, 6)
    reloaded = index.reloaded() if stored else index
    assert settings == index.passages == snapshot.passages == reloaded.passages
    assert index.verify() == []
    assert len(snapshot) == before
    assert ItemIndex.build(["x"]).passages is None


def test_an_index_remembers_the_tokenizer_of_its_passages(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    class Words:
        tokenizer = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()

    model = type("Model", (), {"predict": len, "max_seq_length": 64})()
    model.tokenizer = type("Fast", (), {"backend_tokenizer": Words.tokenizer})()
    index = ItemIndex.build([LONG], passages=10, overlap=0, scorer=model)
    index.save(tmp_path / "index")
    index = ItemIndex.load(tmp_path / "index")
    index.add({"new": LONG})
    assert {len(text.split()) for text in index.items.texts} == {8}  # two sentences, of 4 words
    with pytest.raises(
        InputError, match=r"of 49 tokens are longer than the 48 that .* give at most 48"
    ):
        ItemIndex.build([LONG], passages=49, scorer=model)
    assert ItemIndex.build([LONG], passages=True, scorer=model).passages.length == 48
    assert ItemIndex.build([LONG], passages=900, scorer=len).passages.tokenizer == "bundled"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"passages": 237},
            "237 tokens are longer than the 236 that the bundled cross-encoder reads",
        ),
        ({"passages": 0}, "length of passages is 0"),
        ({"passages": 9, "overlap": 9}, "overlap of 9 tokens is not below the 9 tokens"),
        ({"overlap": 9}, "overlap is only for passages: give their length too"),
        ({"scorer": len}, "scorer is only for passages: give their length too"),
        ({"passages": 9, "vectors": np.ones((1, 2))}, "vectors of documents are given, but"),
    ],
)
def test_passages_that_cannot_be_made_are_refused(options, said):
    with pytest.raises(InputError, match=said):
        ItemIndex.build([LONG], **options)
