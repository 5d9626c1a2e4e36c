"""An index that is built again in its folder, with more items, in another order, pays what is new."""

import json

import numpy as np
import pytest
from bank_helpers import TellingScorer, texts

from crossknn.cli.app import run
from crossknn.fitting.job import BANK
from crossknn.fitting.run import align
from crossknn.index.item_index import ItemIndex


def vectors(found):
    return np.random.default_rng(0).normal(size=(len(found), 4)).astype(np.float32)


def build(items, folder):
    index = ItemIndex.build(items, vectors=vectors(items), query_vectors=vectors, bm25=False)
    index.save(folder)
    return index


def test_align_pays_new_pairs_alone(tmp_path):
    old, more, queries = (
        [text.strip() for text in texts(count, word)]
        for count, word in ((60, "item"), (15, "another"), (12, "query"))
    )
    new = [*more, *old[:0:-1]]  # one is gone, too
    index, first = build(old, tmp_path / "i"), TellingScorer()
    assert align(index, first, queries, per=60).calls == len(first.asked) == 12 * 60
    index, second = build(new, tmp_path / "i"), TellingScorer()
    found = align(index, second, queries, per=74)
    assert (found.calls, found.reused) == (12 * 15, 12 * 59)
    assert {item for _, item in second.asked} == set(more)
    index, third = build(old, tmp_path / "i"), TellingScorer()
    assert align(index, third, queries, per=60).reused == 12 * 60
    assert not third.asked
    fresh = build(old, tmp_path / "j")
    align(fresh, TellingScorer(), queries, per=60)
    np.testing.assert_array_equal(index.vectors("als"), fresh.vectors("als"))


@pytest.mark.parametrize("stopped", [False, True])
def test_the_commands_pay_new_pairs_alone(tmp_path, capsys, monkeypatch, stopped):
    monkeypatch.chdir(tmp_path)

    def said(*arguments):
        assert run([*arguments, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    def index(numbers, *options):
        items = "".join(json.dumps({"id": f"d{i}", "text": f"part {i}"}) + "\n" for i in numbers)
        (tmp_path / "docs.jsonl").write_text(items)
        return said("index", "docs.jsonl", "docs.index", "--encoder", "none", *options)

    (tmp_path / "queries.txt").write_text("about one\nabout two\n")
    aligning = ("align", "docs.index", "--queries", "queries.txt", "--per", "100")
    index(range(10))
    made = said(*aligning, *(("--max-calls", "15") if stopped else ()))
    paid = made["calls"]
    assert paid == (15 if stopped else 20)
    index(reversed(range(16)), "--replace")
    assert (tmp_path / "docs.index" / BANK / "items.bin").stat().st_size == 10 * 16
    made = said(*aligning)
    assert (made["calls"], made["reused"]) == (2 * 16 - paid, paid)
