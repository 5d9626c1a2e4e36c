"""Documentation of Python code as items, and held-out first sentences as queries."""

from __future__ import annotations

import re
import textwrap

import pytest

from crossknn.demo import (
    DocItem,
    build_corpus,
    first_sentence,
    is_held_out,
    merge_identical,
    python_files,
    source_items,
    standard_library_items,
)

REST = "It has a long explanation of more than eight words in all, so it can be found."
SENTENCES = [f"Turn number {n} into words." for n in range(1000)]
HELD = next(filter(is_held_out, SENTENCES))
OTHER = next(s for s in SENTENCES if not is_held_out(s))


@pytest.mark.parametrize(
    ("docstring", "first", "rest"),
    [
        ("Return x\nover two lines.\n\nMore.", "Return x over two lines.", "More."),
        ("No full stop\n\nMore text", "No full stop", "More text"),
        ("Use e.g. Latin, or I. Newton. Rest.", "Use e.g. Latin, or I. Newton.", "Rest."),
        ("Heading\n=======\n\nBody of it.", "Heading", "Body of it."),
        ("Is it so?  Yes.\n \nMore.", "Is it so?", "Yes.\n\nMore."),
        ("\n    Indented.\n\n    Body\n        deeper\n", "Indented.", "Body\n    deeper"),
    ],
)
def test_first_sentence(docstring, first, rest):
    assert first_sentence(docstring) == (first, rest)
    assert is_held_out(first) == is_held_out(first.upper() + "!")


def test_identical_docstrings_keep_the_shortest_public_name():
    texts = {"a.b.c": "Same text.", "a.zz": "Same  text.", "a.y": "Other text."}
    items = merge_identical([DocItem(name, "()", text) for name, text in texts.items()])
    assert [item.name for item in items] == ["a.y", "a.zz"]


def test_items_that_share_a_sentence_share_the_query_or_have_none():
    items = [DocItem(name, "(x)", f"{HELD}\n\n{REST} {name}") for name in ("m.f", "m.g")]
    corpus = build_corpus([*items, DocItem("m.o", "", f"{OTHER}\n\n{REST}")])
    assert corpus.queries == {"q:m.f": HELD}
    assert corpus.qrels == {"q:m.f": {"m.f": 1, "m.g": 1}}
    assert corpus.items["m.f"] == f"m.f(x)\n{REST} m.f"
    assert corpus.items["m.o"] == f"m.o\n{OTHER}\n\n{REST}"
    items.append(DocItem("m.h", "", f"{HELD} Short rest."))
    corpus = build_corpus(items)
    assert corpus == ({item.name: item.item_text for item in items}, {}, {})


def test_a_package_is_read_without_importing_it(tmp_path):
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
    files = python_files(folder, "sample")
    items = [item for module, path in files for item in source_items(module, path)]
    assert {item.name: item.signature for item in items} == {
        "sample": "",
        "sample.public": "(a, b=3, *rest, key=None)",
        "sample.Thing": "(size=1)",
        "sample.Thing.area": "",
        "sample.Thing.make": "(text)",
    }


@pytest.mark.slow
def test_the_standard_library():
    corpus = build_corpus(standard_library_items())
    texts = corpus.items
    wanted = "json.loads math.sqrt builtins.str.split collections.OrderedDict.popitem struct.pack"
    assert set(wanted.split()) <= set(texts)
    assert len(texts) > 4000
    assert not any(re.search(r"(^|\.)_|^(test|idlelib|lib2to3)\.", name) for name in texts)
    assert len(corpus.queries) > 150
    for query, text in corpus.queries.items():
        assert is_held_out(text)
        rests = [texts[name].partition("\n")[2] for name in corpus.qrels[query]]
        assert all(len(rest.split()) >= 8 and first_sentence(rest)[0] != text for rest in rests)
