"""Pages: every word as it was given, in Markdown and in one HTML file that needs nothing else."""

import re

import pytest

from crossknn.page import Page, Plain, Section, Share, Table, write_page

TABLE = Table(
    head=["method", "recall", "why", "share"],
    rows=[
        ["`axn(a|b)`", "62.5 [50, 75]", "x", Share(0.25)],
        ["rerank", None, "y", Share(1)],
        ["gp", 1234, Plain("*z* [a](b)\n|"), Share(0)],
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


def test_tables_mark_the_best_and_draw_shares(html):
    assert '<td style="text-align:right"><strong>62.5 [50, 75]</strong></td>' in html
    assert '<td style="text-align:right">1,234</td>' in html
    assert "<td><code>axn(a|b)</code></td>" in html
    assert "<td>*z* [a](b) |</td>" in html
    assert '<span class="bar" style="--share: 25.0%"></span> 25.0%' in html
    assert "<details><summary>Long</summary>" in html


def test_markdown_has_the_same_words(html, tmp_path):
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "| `axn(a\\|b)` | **62.5 [50, 75]** | x |" in text
    assert "- first\n- second" in text


def test_in_a_terminal_columns_are_aligned():
    rows = [["exact"], ["1", "62.5 [50, 75]", "a"], ["10", None, Plain("*b*\n c")]]
    assert Table(head=["calls", "recall", "why"], rows=rows).lines() == [
        "calls         recall  why",
        "exact",
        "    1  62.5 [50, 75]  a",
        "   10              -  *b* c",
    ]
