"""The built site, as its readers use it, in a browser: CROSSKNN_SITE=build/site pytest tests/test_site.py."""

import os
import re
import shutil
import threading
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

SITE = os.environ.get("CROSSKNN_SITE")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytest.importorskip("playwright.sync_api")
pytestmark = [
    pytest.mark.skipif(SITE is None, reason="needs a built site: make docs"),
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium"),
]

ANSWERS = {
    "Elasticsearch": ["how-to/vector-stores", "how-to/search-engines"],
    "long documents": ["how-to/documents"],
    "thread safety": ["how-to/serving"],
    "upgrade an index": ["how-to/data"],
    "GPU": ["how-to/scorers", "how-to/installing"],
    "memory": ["how-to/data", "evidence/cost"],
    "endpoint": ["how-to/scorers"],
    "budget": ["how-to/budgets"],
    "filter": ["how-to/vector-stores"],
    "does it pay": ["how-to/verdict"],
    "install": ["how-to/installing"],
    "LangChain": ["how-to/adapters"],
    "own cross-encoder": ["how-to/scorers"],
    "calibrate": ["how-to/calibration"],
    "delete items": ["how-to/data", "reference/cli/crossknn-index"],
}
"""What readers look for, and the pages of which one must be among the first three results."""

PAGES = (
    "",
    "how-to/scorers",
    "how-to/data",
    "reference/api/searching",
    "reference/cli/crossknn-index",
    "evidence/answers",
    "explanation/how-it-works",
    "tutorials/search-your-documents",
)
"""A page of each kind."""

CONTRAST = """() => {
  const numbers = text => text.match(/[\\d.]+/g).map(Number);
  const linear = v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const over = (top, below) => {
    const alpha = top[3] ?? 1;
    return [0, 1, 2].map(at => alpha * top[at] + (1 - alpha) * below[at]);
  };
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const colour = text => {  // of any notation
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = text;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const ground = element => {
    const layers = [];
    for (let at = element; at; at = at.parentElement)
      layers.unshift(colour(getComputedStyle(at).backgroundColor));
    return layers.reduce((below, top) => over(top, below), [255, 255, 255]);
  };
  const found = new Map();
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const element = walk.currentNode.parentElement, style = getComputedStyle(element);
    if (!walk.currentNode.data.trim() || !element.checkVisibility({visibilityProperty: true}))
      continue;
    if (element.closest('svg, script, style, .md-skip, [data-md-component=top]')) continue;
    const box = element.getBoundingClientRect();
    if (box.width < 2 || box.height < 2 || style.clip !== 'auto') continue;
    let opacity = 1;
    for (let at = element; at; at = at.parentElement) opacity *= getComputedStyle(at).opacity;
    if (opacity < 0.05) continue;  // shown by a pointer only
    const below = ground(element), ink = colour(style.color);
    const [a, b] = [light(over([...ink.slice(0, 3), ink[3] * opacity], below)), light(below)];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const size = parseFloat(style.fontSize);
    const least = size >= 24 || (size >= 18.66 && style.fontWeight >= 700) ? 3 : 4.5;
    if (contrast < least)
      found.set(`${element.className || element.tagName} ${style.color}`,
                [contrast.toFixed(2), walk.currentNode.data.trim().slice(0, 40)]);
  }
  return Object.fromEntries(found);
}"""
"""Texts whose contrast with their ground is below what WCAG 2 asks for at level AA."""


@pytest.fixture(scope="module")
def address():
    """The address of a server of the site."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = partial(Quiet, directory=str(Path(SITE).absolute()))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@contextmanager
def opened(browser, **options):
    """A page, and what its console said: nothing."""
    with browser.new_context(reduced_motion="reduce", **options) as context:
        page, said = context.new_page(), []
        page.on("console", lambda note: said.append(f"{note.text} {note.location}"))
        page.on("pageerror", lambda error: said.append(str(error)))
        yield page
        assert said == []


def test_every_command_is_in_the_sidebar_with_its_examples():
    page = Path(SITE, "reference/cli/crossknn-index/index.html").read_text(encoding="utf-8")
    sidebar, text = page.split('data-md-component="content"')
    for name in ("collect", "compare", "demo", "fit", "index", "mcp", "search", "serve", "try"):
        assert f"crossknn {name}\n" in sidebar, name
    text = re.sub(r"<[^>]+>", "", text)
    assert "docs.index 17 42\ncrossknn index delete docs.index --ids gone.txt\n" in text


def turn_dark(page):
    page.locator("header label[for^=__palette]:not([hidden])").click()
    page.wait_for_selector("body[data-md-color-scheme=slate]")


def test_the_search_finds_what_readers_look_for(browser, address):
    missed = {}
    with opened(browser) as page:
        page.goto(f"{address}/")
        state = "document.querySelector('.md-search-result__meta').textContent.includes('Type')"
        for question, pages in ANSWERS.items():
            page.click(".md-search__input")
            page.keyboard.press("Control+A")
            page.keyboard.press("Delete")
            page.wait_for_function(state)
            page.keyboard.type(question)
            page.wait_for_function(f"!{state}")
            before, links = None, []
            while links != before:  # it searches anew for each letter
                page.wait_for_timeout(400)
                before, links = (
                    links,
                    page.eval_on_selector_all(
                        ".md-search-result__item",
                        "all => all.map(each => each.querySelector('a').pathname)",
                    ),
                )
            found = [link.strip("/") for link in links[:3]]
            if not {*found} & {*pages}:
                missed[question] = found
    assert missed == {}


@pytest.mark.parametrize("path", PAGES)
def test_a_page_fits_screens_and_is_easy_to_read(browser, address, path):
    with opened(browser, viewport={"width": 1280, "height": 800}) as page:
        page.goto(f"{address}/{path}")
        code = ".md-content .highlight:not(.language-text) pre > code"
        clipped = "all => all.filter(each => each.scrollWidth > each.clientWidth + 1).length"
        assert page.eval_on_selector_all(code, clipped) == 0
        assert page.evaluate(CONTRAST) == {}
        turn_dark(page)
        page.wait_for_timeout(300)  # colours change slowly
        assert page.evaluate(CONTRAST) == {}, "dark"
        page.set_viewport_size({"width": 360, "height": 800})
        assert page.evaluate("document.scrollingElement.scrollWidth") <= 360


def test_pictures_follow_the_palette_that_is_chosen(browser, address):
    """Not the system's, which is light here."""
    with opened(browser, color_scheme="light") as page:
        page.goto(f"{address}/explanation/how-it-works")
        image = page.locator(".md-content img").first
        light = image.screenshot()
        turn_dark(page)
        assert image.screenshot() != light
