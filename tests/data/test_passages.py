"""Documents are cut into passages that cover them, in order, within a number of tokens."""

import time
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from crossknn.data import passages as module
from crossknn.data.items import Items
from crossknn.data.passages import (
    BUNDLED,
    Passages,
    count_longer,
    cut,
    n_documents,
    positions_of,
    tokenizer_of,
    whole,
)
from crossknn.errors import InputError

SENTENCES = "One sentence stands here. " * 40
SETTINGS = st.tuples(st.integers(1, 40), st.integers(0, 39)).filter(lambda s: s[1] < s[0])
PIECES = [
    "a word ",
    "stop. ",
    "\n\n",
    "\n",
    "# Head\n",
    "这是一个测试。",
    "ไทย",
    "مرحبا؟ ",
    "👩‍🚀",
    "x" * 150,
    "e\u0301",
]
TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=300),
    st.lists(st.sampled_from(PIECES), max_size=60).map("".join),
)


def tokens(text, tokenizer=BUNDLED):
    return len(tokenizer_of(tokenizer).encode(text, add_special_tokens=False).ids)


def items_of(texts, extra=None, titles=None):
    n = len(texts)
    columns = {"titles": titles or [""] * n, "extra": extra or [{} for _ in texts]}
    return Items(ids=[f"d{i}" for i in range(n)], texts=texts, **columns)


@cache
def byte_pairs():
    """The JSON of a byte-level tokenizer, in which one character may be several tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator([SENTENCES], trainer)
    return made.to_str()


@settings(deadline=None, max_examples=150)
@given(texts=st.lists(TEXTS, min_size=1, max_size=3), sizes=SETTINGS)
@example(texts=[SENTENCES, "", " \n "], sizes=(10, 9))
def test_passages_cover_documents_in_order_within_their_length(texts, sizes):
    documents = items_of(texts, titles=["T"] * len(texts), extra=[{"lang": "en"}] * len(texts))
    found = cut(documents, Passages(*sizes))
    assert n_documents(found) == len(texts)
    for place, text in enumerate(texts):
        own = [found[p] for p in positions_of(found, f"d{place}")]
        assert [item.id for item in own] == [f"d{place}#{n}" for n in range(1, len(own) + 1)]
        starts, ends = ([item.extra[key] for item in own] for key in ("start", "end"))
        assert (starts[0], ends[-1]) == (0, len(text))
        assert all(after <= end for after, end in zip(starts[1:], ends, strict=False))
        assert starts == sorted({*starts})
        assert ends == sorted({*ends})
        assert [item.text for item in own] == [text[s:e] for s, e in zip(starts, ends, strict=True)]
        assert all(tokens(item.text) <= sizes[0] for item in own)
        shared = [text[a:e] for a, e in zip(starts[1:], ends, strict=False)]
        assert all(tokens(part) <= sizes[1] + 1 for part in shared)  # a word may be cut in two
        assert whole([item.text for item in own], starts) == text
        assert all(
            (i.title, i.extra["lang"], i.extra["document"]) == ("T", "en", f"d{place}") for i in own
        )
    assert len(found) == sum(len(positions_of(found, f"d{i}")) for i in range(len(texts)))


@settings(deadline=None, max_examples=50)
@given(text=TEXTS, length=st.integers(8, 30))
def test_any_tokenizer_counts(text, length):
    spans = [*Passages(length, length // 4, byte_pairs()).spans(text)]
    assert spans[0][0] == 0
    assert spans[-1][1] == len(text)
    assert all(tokens(text[a:b], byte_pairs()) <= length for a, b in spans)
    assert all(start < after <= end for (start, end), (after, _) in pairwise(spans))


def test_passages_are_cut_at_sentences_and_before_headings():
    text = SENTENCES[: 26 * 33] + "\n\n## A heading\n\n" + SENTENCES
    ends = [text[:end] for _, end in Passages(50, 10).spans(text)]
    assert all(end.endswith(". ") or end.endswith("\n\n") for end in ends)
    assert any(text[len(end) :].startswith("## A heading") for end in ends)
    starts = [text[start:] for start, _ in Passages(50, 10).spans(text)]
    assert all(start.startswith(("One ", "## ")) for start in starts)
    titled = "A title\n" + SENTENCES  # a title is no passage of its own
    assert next(Passages(50, 0).spans(titled))[1] > 100


@pytest.mark.parametrize("unit", ["word ", "中", "x", "a b. ", "\n", " "])
def test_time_is_linear_in_the_length(unit):
    """Without full stops or spaces, too: the sentence of a text may be the whole text."""
    seconds = []
    for n in (5_000, 40_000):
        began = time.process_time()
        spans = [*Passages().spans(unit * (n // len(unit)))]
        seconds.append(time.process_time() - began)
        assert spans[-1][1] == n // len(unit) * len(unit)
    assert seconds[1] < 30 * (seconds[0] + 0.02)


def test_no_passage_has_more_characters_than_a_scorer_reads():
    assert max(end - start for start, end in Passages(40, 2).spans("x" * 9_000)) == 64 * 40


@pytest.mark.parametrize(
    ("length", "overlap", "said"),
    [
        (0, 0, "the length of passages is 0; it must be 1 or more"),
        (True, 0, "the length of passages is True; it must be a whole number"),
        (10, -1, "the overlap of passages is -1; it must be 0 or more"),
        (
            10,
            10,
            "overlap of 10 tokens is not below the 10 tokens of a passage: give less, such as 2",
        ),
    ],
)
def test_impossible_lengths_are_refused(length, overlap, said):
    with pytest.raises(InputError, match=said):
        Passages(length, overlap)


def test_documents_that_cannot_be_cut_are_named():
    for name in ("document", "start", "end"):
        with pytest.raises(InputError, match=f"document 'd1' has a field '{name}'.*rename"):
            cut(items_of(["x", "y"], [{}, {name: 1}]), Passages())
    with pytest.raises(InputError, match="document 'd0' has half a surrogate pair"):
        cut(items_of(["a\ud800b"]), Passages())
    with pytest.raises(InputError, match="tokenizer that counts tokens cannot be read"):
        cut(items_of(["x"]), Passages(10, 2, "{}"))


def test_deleted_documents_are_not_cut():
    documents = items_of(["one", "two"])
    left = replace(documents, alive=np.array([False, True]))
    assert cut(left, Passages()).ids == ["d1#1"]


def test_long_texts_are_counted_exactly_or_from_a_sample(monkeypatch):
    texts = ["word " * 30, "word " * 10, "w " * 1_000, "x" * 149] * 10
    assert count_longer(texts, 20) == (20, True)
    assert count_longer(["short"], 20) == (0, True)
    monkeypatch.setattr(module, "_SAMPLE", 20)
    estimate, is_exact = count_longer(texts, 20)
    assert not is_exact
    assert 18 <= estimate <= 22
