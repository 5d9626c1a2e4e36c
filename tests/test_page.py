"""Pages: every word as it was given, in Markdown and in one HTML file that needs nothing else."""

from __future__ import annotations

import re

import pytest

from crossknn.page import Figure, Page, Section, Table, write_page

SVG = (
    '<?xml version="1.0"?><svg width="90"><title>t</title><clipPath id="clip"><rect/></clipPath>'
    '<path clip-path="url(#clip)" stroke="#1476ba"/><text fill="#1f2328">rounds</text></svg>'
)
FIGURE = Figure(svg=SVG, alt='a line "axn"', caption="with `code`")
TABLE = Table(
    head=["method", "recall", "why"],
    rows=[["`axn(a|b)`", "62.5 [50, 75]", "x"], ["rerank", None, "y"], ["gp", 1234, "z"]],
    caption="Of **all**",
    best=frozenset({(0, 1)}),
)
FOLDED = Table(head=["a"], rows=[[1]], caption="Long", folded=True)
PAGE = Page(
    title="A report",
    lead="In short: <b>not bold</b>, see [there](#two).",
    sections=[
        Section(title="One", blocks=["text with `code <1>`", FIGURE, FIGURE, TABLE, FOLDED]),
        Section(title="Two", blocks=[["first", "second"]], sections=[Section(title="One")]),
    ],
)


@pytest.fixture
def html(tmp_path):
    write_page(PAGE, tmp_path)
    return (tmp_path / "index.html").read_text(encoding="utf-8")


def test_the_html_needs_nothing_beside_it_and_every_link_leads_somewhere(html):
    assert not re.search(r"<(script|link|iframe|img)\b", html)
    assert "url(" not in re.search("<style>(.*?)</style>", html, re.DOTALL)[1]
    ids = re.findall(r' id="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    inside = set(re.findall(r'href="#([^"]+)"', html))
    clips = set(re.findall(r"url\(#([^)]+)\)", html))
    assert clips
    assert {"one", "two", "one-2"} | inside | clips <= set(ids)


def test_pictures_change_with_the_screen_and_tables_mark_the_best(html):
    svg = re.search("<svg.*?</svg>", html, re.DOTALL)[0]
    assert 'aria-label="a line &quot;axn&quot;"' in svg
    assert not re.search("#1476ba|#1f2328", svg)
    assert "var(--c1476ba)" in svg
    assert html.count("--c1476ba: ") == 2  # light and dark
    assert '<td style="text-align:right"><strong>62.5 [50, 75]</strong></td>' in html
    assert '<td style="text-align:right">1,234</td>' in html
    assert "<td><code>axn(a|b)</code></td>" in html
    assert "<details><summary>Long</summary>" in html


def test_markdown_has_the_same_words_and_pictures_beside_it(html, tmp_path):
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    images = re.findall(r"!\[[^\]]*\]\(images/([^)]+)\)", text)
    assert {path.name for path in (tmp_path / "images").iterdir()} == set(images)
    assert 'height="100%" fill="#ffffff"/>' in (tmp_path / "images" / "one-1.svg").read_text()
    assert "| `axn(a\\|b)` | **62.5 [50, 75]** | x |" in text
    assert "- first\n- second" in text
