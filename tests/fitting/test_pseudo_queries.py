"""Pseudo-queries: what items give, in every script, and that nothing makes them fail."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossknn.data.items import Items, read_items
from crossknn.data.queries import MARKS
from crossknn.errors import InputError
from crossknn.fitting.pseudo_queries import LONGEST, LONGEST_TEXT, MOST, pseudo_queries


def items_of(texts, titles=None):
    n = len(texts)
    ids = [f"i{p}" for p in range(n)]
    return Items(ids=ids, texts=texts, titles=titles or [""] * n, extra=[{}] * n)


def titled(*pairs):
    """Items as `read_items` renders them."""
    return read_items([{"title": title, "text": text} for title, text in pairs])


def all_of(items, **options):
    return {*pseudo_queries(items, 1000, **options)}


CROWD = [
    ("Harbour", "The town of the coast has a harbour and a market. It is old."),
    ("Market", "The market of the town is on the coast. It has a clock."),
    ("Clock", "The clock of the town is old, and it has a bell on it. It is big."),
]


def test_a_title_a_first_sentence_and_a_telling_span():
    """Of the rare words, five stand together in one clause of the second sentence."""
    text = "The town is on the coast. It has a bell, quartz lantern beacons guiding whalers, oxen."
    found = all_of(titled(("Beacon Point", text), *CROWD))
    assert "Beacon Point" in found
    assert "The town is on the coast." in found
    assert "quartz lantern beacons guiding whalers" in found
    assert len([query for query in found if "lantern" in query]) == 1


def test_a_title_is_only_cut_off_where_it_is_one():
    assert all_of(items_of(["Article of law"], ["Art"])) >= {"Art", "Article of law"}
    assert all_of(titled(("Art", ""))) == {"Art"}
    marked = items_of(["Mercury [ENT] A [Ms] planet [Me] of the sun."], ["Mercury"])
    assert all_of(marked) == {"Mercury", "A planet of the sun."}


def test_a_span_crosses_no_sentence_or_clause_and_has_few_words():
    rare = " ".join(f"Zyx{p}a" for p in range(30))
    found = all_of(titled(("", f"The town is old. {rare}. Quux corge; grault garply."), *CROWD))
    assert [len(query.split()) for query in found if "Zyx" in query] == [MOST]
    assert not [query for query in found if "Quux" in query or "garply" in query]
    text = "The town is old. 17 45 32 99 10, 12 34 amber lighthouse keepers 56 78."
    assert "amber lighthouse keepers" in all_of(titled(("", text), *CROWD))  # numbers tell little


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("Dr. A. B. Smith et al. Found it. It was lost.", "Dr. A. B. Smith et al. Found it."),
        ("Overview. The heart pumps blood. It beats.", "The heart pumps blood."),
        ('He said "stop it now." Then he left.', 'He said "stop it now."'),
        ("lines are\nwrapped here\n\nA new paragraph", "lines are wrapped here"),
        ("心脏是重要的器官。它推动血液流动。", "心脏是重要的器官。"),
        ("यह एक पुराना शहर है। यहाँ बाज़ार है।", "यह एक पुराना शहर है।"),
        ("هل هذه مدينة قديمة؟ نعم إنها كذلك.", "هل هذه مدينة قديمة؟"),
        ("Yes. No.", "Yes."),
    ],
)
def test_first_sentences(text, sentence):
    assert sentence in all_of(items_of([text]))


def test_every_item_gives_one_before_any_gives_two():
    n = 30
    items = titled(*((f"Name {p}a", f"A word {p}b is. Odd thing{p} lies there.") for p in range(n)))
    found = pseudo_queries(items, 1000)
    for part in (found[:n], found[n : 2 * n]):
        assert len({re.search(r"\d+", query)[0] for query in part}) == n
    kinds = [query.startswith("Name") for query in found[:n]]
    assert 3 <= sum(kinds) <= 20
    assert pseudo_queries(items, 20, seed=1) != found[:20]


def test_fewer_than_asked_for_is_said(caplog):
    found = pseudo_queries(titled(("A", "B"), ("a", "b")), 9)
    assert sorted(query.lower() for query in found) == ["a", "b"]
    assert "9 pseudo-queries were asked for; the 2 items give 2" in caplog.text
    assert pseudo_queries(items_of(["!!!", "...", " ", ""], ["?", "", "-", ""]), 9) == []
    with pytest.raises(InputError, match="count is 0; it must be 1 or more"):
        pseudo_queries(titled(("A", "B")), 0)


WORDS = "oak|Elm|the|of|.|!|,|\n\n|(|[ENT]|[Ms]|[Me]|。|心脏|7"
TEXT = st.one_of(
    st.text(max_size=80),
    st.lists(st.sampled_from([*WORDS.split("|"), "x" * 300]), max_size=60).map(" ".join),
)


@settings(deadline=None)
@given(
    st.lists(st.tuples(TEXT, TEXT), max_size=8),
    st.integers(1, 30),
    st.integers(0, 20),
    st.booleans(),
    st.integers(0, 5),
)
def test_any_texts_give_sound_queries(pairs, count, more, rendered, seed):
    texts = [f"{title}\n{text}" if rendered else text for title, text in pairs]
    items = items_of(texts, [title for title, _ in pairs])
    found = pseudo_queries(items, count, seed=seed)
    assert pseudo_queries(items, count + more, seed=seed)[: len(found)] == found
    assert len(found) <= min(count, 3 * len(pairs))
    assert len({query.casefold() for query in found}) == len(found)
    for query in found:
        assert query == query.strip()
        assert len(query) <= LONGEST_TEXT
        assert len(query.split()) <= LONGEST
        assert any(map(str.isalnum, query))
        assert not any(m in query for m in MARKS)


def test_a_long_beginning_is_cut_at_a_word():
    words = [f"word{i:02}xxxxxx" for i in range(LONGEST)]  # 12 letters each
    kept = (LONGEST_TEXT + 1) // 13
    assert " ".join(words[:kept]) in all_of(titled((" ".join(words), "y")))
