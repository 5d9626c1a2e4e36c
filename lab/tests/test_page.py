"""Pages: every word as it was given, in Markdown and in one HTML file that needs nothing else."""

import re

import pytest

from crossknn_lab.page import Page, Section, Table, write_page

TABLE = Table(
    head=["method", "recall", "why"],
    rows=[
        ["`axn(a|b)`", "62.5 [50, 75]", "x"],
        ["rerank", None, "y"],
        ["gp", 1234, "*z*\n|"],
    ],
    caption="Of **all**",
    best=frozenset({(0, 1)}),
)
FOLDED = Table(head=["a"], rows=[[1]], caption="Long", folded=True)
PAGE = Page(
    title="A report",
    lead="In short: <b>not bold</b>, see [there](#two).",
    sections=[
        Section(title="One", blocks=["text with `code <1>`", TABLE, FOLDED]),
        Section(title="Two", blocks=[["first", "second"]], sections=[Section(title="One")]),
    ],
)


@pytest.fixture
def html(tmp_path):
    write_page(PAGE, tmp_path)
    return (tmp_path / "index.html").read_text(encoding="utf-8")


def test_the_html_needs_nothing_beside_it_and_every_link_leads_somewhere(html):
    assert not re.search(r"<(script|link|iframe|img)\b|url\(", html)
    ids = re.findall(r' id="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    assert {"one", "two", "one-2"} | set(re.findall(r'href="#([^"]+)"', html)) <= set(ids)


def test_tables_mark_the_best(html):
    assert '<td style="text-align:right"><strong>62.5 [50, 75]</strong></td>' in html
    assert '<td style="text-align:right">1,234</td>' in html
    assert "<td><code>axn(a|b)</code></td>" in html
    assert "<td>*z* |</td>" in html
    assert "<details><summary>Long</summary>" in html


def test_markdown_has_the_same_words(html, tmp_path):
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "| `axn(a\\|b)` | **62.5 [50, 75]** | x |" in text
    assert "- first\n- second" in text
