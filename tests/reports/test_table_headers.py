"""Tables with a header of any names: its columns are found or asked for, it is no item."""

from __future__ import annotations

import pytest

import crossknn as ck


def written(tmp_path, ending, rows):
    path = tmp_path / f"table.{ending}"
    mark = "," if ending == "csv" else "\t"
    path.write_text("".join(mark.join(row) + "\n" for row in rows))
    return path


ENDINGS = pytest.mark.parametrize("ending", ["tsv", "csv"])


@ENDINGS
@pytest.mark.parametrize(
    "names", [("ID", "Text"), ("_Id", "TEXT"), ("DocNo", "text"), ("pid", "text")]
)
def test_usual_names_in_any_case(tmp_path, ending, names):
    """`ID` and `Text` are the id and the text."""
    items = ck.read_items(written(tmp_path, ending, [names, ("d1", "a tree")]))
    assert [(item.id, item.text, item.extra) for item in items] == [("d1", "a tree", {})]


@ENDINGS
def test_a_title_in_any_case(tmp_path, ending):
    """`Title` goes before the text, as `title` does."""
    rows = [("ID", "URL", "Title", "Text"), ("d1", "web", "Oak", "a tree")]
    items = ck.read_items(written(tmp_path, ending, rows))
    assert [*items.texts] == ["Oak\na tree"]
    assert items.extra[0] == {"URL": "web"}


@ENDINGS
@pytest.mark.parametrize(
    "names",
    [
        ("pid", "passage"),
        ("ID", "Body"),
        ("ID", "URL", "Title", "Body"),
        ("passage_id", "passage_text"),
        ("document id", "contents"),
        ("Document", "Topic"),
        ("doc-no", "story"),
        ("ItemId", "ItemText"),
        ("PMID", "Abstract"),
        ("key", "value"),
    ],
)
def test_other_names_of_items(tmp_path, ending, names):
    """A header without a text says which fields there are, and how to name the right one."""
    path = written(tmp_path, ending, [names, [f"value {n}" for n in range(len(names))]])
    with pytest.raises(ck.InputError, match="line 2 has no field 'text'") as error:
        ck.read_items(path)
    assert "--text-field" in error.value.__notes__[0]
    assert "--id-field" in error.value.__notes__[0]
    how = {"id_field": names[0], "text_field": names[-1]}
    items = ck.read_items(path, **how)
    assert [*items.ids] == ["value 0"]
    assert items.texts[0].endswith(f"value {len(names) - 1}")


@ENDINGS
@pytest.mark.parametrize(
    "names", [("topic_id", "question"), ("Topic", "Title"), ("questionId", "text of it")]
)
def test_other_names_of_queries(tmp_path, ending, names):
    """A header of queries without `text` or `query` is refused, and is no query."""
    path = written(tmp_path, ending, [names, ("7", "where do oaks grow")])
    with pytest.raises(ck.InputError, match="line 2 has no field 'text'"):
        ck.read_queries(path)


@ENDINGS
@pytest.mark.parametrize("names", [("QID", "Query"), ("query_id", "query"), ("Query-ID", "Text")])
def test_usual_names_of_queries(tmp_path, ending, names):
    """The usual names of queries are known in any case."""
    path = written(tmp_path, ending, [names, ("7", "where do oaks grow")])
    assert ck.read_queries(path) == ck.QuerySet(("7",), ("where do oaks grow",))


def test_a_quoted_header(tmp_path):
    """A TSV knows no quotes, but a quoted header is none of its items."""
    path = written(tmp_path, "tsv", [('"id"', '"text"'), ('"d1"', '"a tree"')])
    with pytest.raises(ck.InputError, match="line 2 has no field 'text'"):
        ck.read_items(path)


@ENDINGS
def test_an_id_of_another_name(tmp_path, ending, caplog):
    """Where items are numbered although a column looks like their id, a warning says so."""
    assert [*ck.read_items(written(tmp_path, ending, [("uuid", "text"), ("x7", "a")])).ids] == ["2"]
    assert "if 'uuid' is their id, name it with --id-field" in caplog.text


@pytest.mark.parametrize(
    "row", [("7", "a title"), ("acid", "a substance"), ("d1", "my id"), ("said", "spoken"),
            ("Q42", "Douglas Adams"), ("covid", "a disease"), ("0", "passage")]
)  # fmt: skip
def test_a_first_row_without_a_header(tmp_path, row):
    """A table without a header, as of MS MARCO, loses no row."""
    path = written(tmp_path, "tsv", [row, ("8", "the sea")])
    assert [*ck.read_items(path).ids] == [row[0], "8"]
    assert ck.read_queries(path).texts == (row[1], "the sea")


def test_records_in_any_case():
    """Records and columns of data frames are found in any case, too; the usual case comes first."""
    items = ck.read_items([{"ID": 1, "Text": "a tree", "Title": "Oak", "n": 2}])
    assert [(i.id, i.title, i.text, i.extra) for i in items] == [
        ("1", "Oak", "Oak\na tree", {"n": 2})
    ]
    assert ck.read_items([{"Text": "other", "text": "a tree"}]).extra[0] == {"Text": "other"}
