"""Pages: one file that needs nothing else, every word as it was given, the same in Markdown."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossknn.errors import InputError
from crossknn_lab.plots import Curve, curves
from crossknn_lab.report import (
    Figure,
    Page,
    Points,
    Section,
    TableOf,
    draw,
    write_html,
    write_markdown,
)
from crossknn_lab.report.html import html_of
from crossknn_lab.report.markdown import markdown_of

PNG = b"\x89PNG\r\n\x1a\n rest"
FIGURE = draw(
    curves,
    {"top 1": [Curve(name="axn(retriever=dense)", x=[1, 2], y=[0.1, 0.2])]},
    title="Both <this> & that",
    x_label="rounds",
    y_label="recall",
    alt='a line "axn"',
    caption="with `code`",
)
TABLE = TableOf(
    head=["method", "recall", "why"],
    rows=[["`axn(a|b)`", "62.5 [50, 75]", "x"], ["rerank", None, "y"], ["gp", 1234, "z"]],
    caption="Of **all**",
    best=frozenset({(0, 1)}),
)
PAGE = Page(
    title="A report",
    lead="In short: <b>not bold</b>, see [there](#two).",
    sections=[
        Section(title="One", blocks=["text with `code <1>`", FIGURE, FIGURE, TABLE]),
        Section(
            title="Two",
            blocks=[Points(items=["first", "second"])],
            sections=[Section(title="One", blocks=[Figure(image=PNG, alt="dots")])],
        ),
    ],
)


class Reader(HTMLParser):
    """What a browser would read: text, ids, addresses, and tags that were not closed."""

    VOID = {"meta", "img", "br"}

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def all(self, name: str) -> list[str]:
        return [attrs[name] for _, attrs in self.tags if name in attrs]


def test_one_file_needs_nothing_beside_it(tmp_path):
    write_html(PAGE, tmp_path / "a" / "index.html")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["index.html"]
    read = Reader((tmp_path / "a" / "index.html").read_text(encoding="utf-8"))
    assert all(src.startswith("data:image/png;base64,") for src in read.all("src"))
    assert not {tag for tag, _ in read.tags} & {"script", "link", "iframe"}
    style = re.search("<style>(.*?)</style>", html_of(PAGE), re.DOTALL)[1]
    assert "url(" not in style
    assert "@import" not in style


def test_names_are_given_once_and_every_link_leads_somewhere():
    read = Reader(html_of(PAGE))
    ids = read.all("id")
    assert len(ids) == len(set(ids))
    inside = [href for href in (*read.all("href"), *read.all("xlink:href")) if href.startswith("#")]
    assert {href[1:] for href in inside} <= set(ids)
    clips = re.findall(r"url\(#([^)]+)\)", html_of(PAGE))
    assert clips
    assert set(clips) <= set(ids)


def test_contents_name_every_section_in_order():
    nav = re.search("<nav.*?</nav>", html_of(PAGE), re.DOTALL)[0]
    assert re.findall(r'href="#([\w-]+)">(\w+)<', nav) == [
        ("one", "One"),
        ("two", "Two"),
        ("one-2", "One"),
    ]


def test_pictures_change_with_the_page_and_are_described():
    html = html_of(PAGE)
    svg = re.search("<svg.*?</svg>", html, re.DOTALL)[0]
    assert 'aria-label="a line &quot;axn&quot;"' in svg
    assert not re.search("#0072b2|#1f2328", svg)
    assert "var(--c0072b2)" in svg
    assert html.count("--c0072b2: ") == 3  # light, dark, print
    assert "<figcaption>with <code>code</code></figcaption>" in html


def test_tables_align_numbers_and_mark_the_best():
    html = html_of(PAGE)
    assert '<td class="n"><b>62.5 [50, 75]</b></td>' in html
    assert '<td class="n">-</td>' in html
    assert '<td class="n">1,234</td>' in html
    assert "<td><code>axn(a|b)</code></td>" in html


def test_an_interval_within_words_stays_on_one_line():
    table = TableOf(head=["k"], rows=[["axn: 62.5 [50, 75]"]])
    section = Section(title="s", blocks=["It is -1.5 [-2.0, +0.5] here, [not, this].", table])
    html = html_of(Page(title="t", lead="", sections=[section]))
    assert 'It is <span class="i">-1.5 [-2.0, +0.5]</span> here, [not, this].' in html
    assert '<td>axn: <span class="i">62.5 [50, 75]</span></td>' in html
    assert ".i { white-space: nowrap; }" in html


def test_a_folded_table_is_opened_by_its_caption():
    page = Page(
        title="t",
        sections=[
            Section(
                title="s", blocks=[TableOf(head=["a"], rows=[[1]], caption="Long", folded=True)]
            )
        ],
    )
    assert "<details><summary>Long</summary>" in html_of(page)
    assert (
        "<details><summary>Long</summary>\n\n| a |\n|---:|\n| 1 |\n\n</details>"
        in markdown_of(page)[0]
    )


def test_a_folded_table_is_open_on_paper():
    before, printed = html_of(Page(title="t", lead="", sections=[])).split("@media print")
    opened = "details::details-content { content-visibility: visible; }"
    assert opened in printed
    assert opened not in before


def test_a_row_of_another_length_is_said():
    with pytest.raises(InputError, match=r"row 2 of the table 'T' has 1 cells under 2 heads"):
        TableOf(head=["a", "b"], rows=[[1, 2], [1]], caption="T")


def test_markdown_has_the_same_words_and_pictures_beside_it(tmp_path):
    write_markdown(PAGE, tmp_path / "out")
    text = (tmp_path / "out" / "page.md").read_text(encoding="utf-8")
    images = re.findall(r"!\[[^\]]*\]\(images/([^)]+)\)", text)
    assert images == ["one-1.svg", "one-2.svg", "one-2-1.png"]
    assert {path.name for path in (tmp_path / "out" / "images").iterdir()} == set(images)
    assert (tmp_path / "out" / "images" / "one-2-1.png").read_bytes() == PNG
    assert (
        '<rect width="100%" height="100%" fill="#ffffff"/>'
        in (tmp_path / "out" / "images" / "one-1.svg").read_text()
    )
    assert "| `axn(a\\|b)` | **62.5 [50, 75]** | x |" in text
    assert "text with `code <1>`" in text
    assert "- first\n- second" in text


def test_writing_again_gives_the_same_bytes(tmp_path):
    for folder in ("a", "b"):
        write_html(PAGE, tmp_path / folder / "index.html")
        write_markdown(PAGE, tmp_path / folder)
    for path in (tmp_path / "a").rglob("*.*"):
        assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes()


@pytest.mark.parametrize("address", ["javascript:alert(1)", "data:text/html,x"])
def test_only_addresses_of_pages_become_links(address):
    page = Page(title="t", lead=f"[here]({address})")
    assert not Reader(html_of(page)).all("href")


WORDS = st.text(st.characters(exclude_characters="`*[]", exclude_categories=["C"]), min_size=1)


@given(WORDS.filter(lambda words: words != "s"))
def test_any_words_stand_as_they_were_given(words):
    page = Page(
        title=words,
        lead=words,
        sections=[Section(title="s", blocks=[TableOf(head=[words], rows=[[words]])])],
    )
    read = Reader(html_of(page))
    assert read.text.count(words) == 5  # title twice, lead, head, cell
    table = markdown_of(page)[0].split("\n## s\n")[1].strip().splitlines()
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 2 for line in table)
