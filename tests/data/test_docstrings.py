from __future__ import annotations

import textwrap
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossknn.data.docstrings import (
    DocItem,
    build_corpus,
    collect_package,
    collect_standard_library,
    first_sentence,
    is_held_out,
    merge_identical,
    sentence_bucket,
)

REST = "It has a long explanation of more than eight words in all, so it can be found."


@pytest.fixture(scope="module")
def corpus():
    return collect_standard_library()


@pytest.fixture(scope="module")
def held_out_sentence() -> str:
    return next(s for s in (f"Turn number {n} into words." for n in range(1000)) if is_held_out(s))


@pytest.fixture(scope="module")
def other_sentence() -> str:
    return next(
        s for s in (f"Turn number {n} into words." for n in range(1000)) if not is_held_out(s)
    )


@pytest.mark.parametrize(
    ("docstring", "first", "rest"),
    [
        ("Return x.", "Return x.", ""),
        ("Return x.  Then stop.", "Return x.", "Then stop."),
        ("Return x\nover two lines.\n\nMore.", "Return x over two lines.", "More."),
        ("No full stop\n\nMore text", "No full stop", "More text"),
        (
            "Convert text, e.g. Latin, to bytes. Rest.",
            "Convert text, e.g. Latin, to bytes.",
            "Rest.",
        ),
        ("Use os.path.join here. Rest.", "Use os.path.join here.", "Rest."),
        ("Heading\n=======\n\nBody of it.", "Heading", "Body of it."),
        ("Is it so?  Yes.", "Is it so?", "Yes."),
        ("\n    Indented.\n\n    Body\n        deeper\n", "Indented.", "Body\n    deeper"),
    ],
)
def test_first_sentence(docstring: str, first: str, rest: str) -> None:
    assert first_sentence(docstring) == (first, rest)


@given(st.lists(st.text("abcdefg", min_size=1), min_size=1, max_size=8))
def test_the_bucket_ignores_case_space_and_punctuation(words: list[str]) -> None:
    plain = " ".join(words)
    assert sentence_bucket(plain) == sentence_bucket("  ".join(words).upper() + " .")
    assert 0 <= sentence_bucket(plain) < 100


def test_the_buckets_are_stable_over_versions() -> None:
    assert (sentence_bucket("Return a new list."), sentence_bucket("Open a file.")) == (25, 32)
    assert sum(is_held_out(f"sentence {n}") for n in range(10_000)) == pytest.approx(1000, rel=0.1)


def test_identical_docstrings_keep_the_shortest_public_name() -> None:
    items = [
        DocItem("a.b.c", "()", "Same text."),
        DocItem("a.zz", "()", "Same  text."),
        DocItem("a.y", "()", "Other text."),
    ]
    assert [item.name for item in merge_identical(items)] == ["a.y", "a.zz"]


def test_a_held_out_sentence_becomes_a_query(held_out_sentence: str, other_sentence: str) -> None:
    items = [
        DocItem("m.f", "(x)", f"{held_out_sentence}\n\n{REST}"),
        DocItem("m.g", "(x)", f"{other_sentence}\n\n{REST}"),
    ]
    corpus = build_corpus(items)
    assert list(corpus.queries.values()) == [held_out_sentence]
    assert corpus.qrels == {"q:m.f": {"m.f": 1}}
    assert [item.text for item in corpus.items] == [REST, items[1].text]
    assert corpus.items[0].item_text == f"m.f(x)\n{REST}"


def test_items_that_share_a_sentence_share_the_query(held_out_sentence: str) -> None:
    items = [DocItem(name, "", f"{held_out_sentence}\n\n{REST} {name}") for name in ("m.f", "m.g")]
    assert build_corpus(items).qrels == {"q:m.f": {"m.f": 1, "m.g": 1}}


def test_no_query_if_an_item_would_keep_its_sentence(held_out_sentence: str) -> None:
    items = [
        DocItem("m.f", "", f"{held_out_sentence}\n\n{REST}"),
        DocItem("m.g", "", f"{held_out_sentence} Short rest."),
    ]
    corpus = build_corpus(items)
    assert corpus.queries == {}
    assert list(corpus.items) == items


def test_a_package_is_read_without_importing_it(tmp_path: Path) -> None:
    folder = tmp_path / "sample"
    (folder / "tests").mkdir(parents=True)
    (folder / "tests" / "hidden.py").write_text('"""Not an item, it is a test."""')
    (folder / "__init__.py").write_text('"""A sample package."""\nraise RuntimeError\n')
    source = '''
        def public(a, b: int = 3, *rest, key=None) -> int:
            """Do a thing."""

        def _private():
            """Do a private thing."""

        class Thing:
            """Be a thing."""

            def __init__(self, size=1):
                """Start."""

            @property
            def area(self):
                """The area of it."""

            @classmethod
            def make(cls, text):
                """Make it of text."""
    '''
    (folder / "_code.py").write_text(textwrap.dedent(source))
    found = {item.name: item.signature for item in collect_package(folder)}
    assert found == {
        "sample": "",
        "sample.public": "(a, b=3, *rest, key=None)",
        "sample.Thing": "(size=1)",
        "sample.Thing.area": "",
        "sample.Thing.make": "(text)",
    }


def test_a_missing_package_is_named() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        collect_package("no_such_package")


def test_the_standard_library(corpus) -> None:
    names = {item.name for item in corpus.items}
    assert {"json.loads", "builtins.str.split", "math.sqrt", "struct.pack", "os.path"} & names >= {
        "json.loads",
        "math.sqrt",
    }
    assert {"builtins.str.split", "collections.OrderedDict.popitem", "itertools.chain"} <= names
    assert len(names) == len(corpus.items) > 4000
    assert not any(part.startswith("_") for name in names for part in name.split("."))
    assert not any(name.startswith(("test.", "idlelib", "lib2to3")) for name in names)
    assert all(item.text for item in corpus.items)


def test_queries_of_the_standard_library(corpus) -> None:
    items = {item.name: item for item in corpus.items}
    assert len(corpus.queries) > 150
    assert set(corpus.qrels) == set(corpus.queries)
    for query, text in corpus.queries.items():
        assert is_held_out(text)
        for name in corpus.qrels[query]:
            assert len(items[name].text.split()) >= 8
            assert first_sentence(items[name].text)[0] != text


def test_it_is_repeatable_and_quick(corpus) -> None:
    steps: list[tuple[int, int]] = []
    start = time.perf_counter()
    again = collect_standard_library(lambda done, total: steps.append((done, total)))
    assert time.perf_counter() - start < 20
    assert again == corpus
    assert steps[-1][0] == steps[-1][1] == len(steps)
