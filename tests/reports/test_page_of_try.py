"""Somebody reads the page of `crossknn try`: which queries, and what did each way find and miss?"""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np
import pytest

import crossknn as ck
from crossknn.page import write_page
from crossknn.trial.result import Trial


@pytest.fixture(scope="module")
def trial():
    sample = ck.sample()
    chosen = sample.queries.take(range(5))
    return Trial.run(sample.index, chosen, sample.scores[:5], sample.qrels, budget=50)


def folded(page):
    """(summary, rows) of each folded table of a page in HTML."""
    for part in page.split("<details>")[1:]:
        rows = [
            [re.sub(r"<[^>]+>", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)]
            for row in re.findall(r"<tr>(.*?)</tr>", part.split("</details>")[0], re.DOTALL)[1:]
        ]
        yield re.search(r"<summary>(.*?)</summary>", part)[1], rows


def test_every_query_is_named_with_what_was_found_and_missed(trial, tmp_path):
    """The places in both answers, and `missed`, are those of the two searches."""
    write_page(trial.page("a title", "a lead"), tmp_path)
    shown = [*folded((tmp_path / "index.html").read_text())]
    assert len(shown) == 5
    ways = [trial.answers[way] for way in ("rerank", "crossknn")]
    for q, (summary, rows) in enumerate(shown):
        counts = [round(10 * trial.neighbours[way][q]) for way in ("rerank", "crossknn")]
        assert summary.endswith(f"of 10 reranking finds {counts[0]}, searching {counts[1]}")
        assert " ".join(trial.queries.texts[q].split())[:40] in summary.replace(
            "&#91;", "["
        ).replace("&#93;", "]")
        ids = [trial.index.items.ids[item] for item in trial.answers["exact"][q, :10]]
        right = trial.index.items.ids[trial.right[q][0]]
        assert [row[1].split(":")[0] for row in rows] == [*dict.fromkeys([*ids, right])]
        for place, row in enumerate(rows[:10]):
            for way, told in zip(ways, row[2:], strict=True):
                at = np.flatnonzero(way[q, : trial.n_returned] == trial.answers["exact"][q, place])
                assert told == (str(at[0] + 1) if len(at) else "missed")
        assert [row for row in rows if "(right)" in row[1]] == [
            row for row in rows if row[1].startswith(f"{right}:")
        ]


def test_texts_of_strangers_stay_texts(tmp_path):
    """Queries and items full of Markdown and HTML are shown as they are, and load nothing."""
    marks = (
        "*a* **b** _c_ `d` [e](http://evil.example) ![f](http://evil.example/f) <img src=x> | \\"
    )
    texts = [f"{marks} number {n}" for n in range(30)]
    index = ck.ItemIndex.build(
        [{"id": f"`{n}` {marks}", "text": t} for n, t in enumerate(texts)], lsa=4
    )
    queries = ck.QuerySet(("q",), (f"query {marks}",))
    write_page(Trial.run(index, queries, np.arange(30.0)[None], budget=10).page("t", "l"), tmp_path)
    page = (tmp_path / "index.html").read_text()
    assert "<img" not in page
    assert not re.search(r'(href|src)="http', page)
    details = page[page.index("<details>") :]
    assert not re.search("<(em|strong|code)>", details)
    shown = Text()
    shown.feed(details)
    assert " ".join(f"query {marks}".split()) in " ".join("".join(shown.parts).split())


class Text(HTMLParser):
    """What a reader sees of a page."""

    def __init__(self):
        super().__init__()
        self.parts = []

    def handle_data(self, data):
        self.parts.append(data)


def test_an_answer_holds_what_was_scored(tmp_path):
    """With five calls an answer has five items: what would fill it up to twenty has no score."""
    texts = [f"tree {n}" if n < 10 else f"river {n}" for n in range(30)]
    index = ck.ItemIndex.build(texts, lsa=4)
    queries = ck.QuerySet(("q",), ("tree",))
    wrong = np.arange(30.0)[None]  # likes the rivers
    qrels = {"q": {index.items.ids[n]: 1 for n in range(10)}}
    trial = Trial.run(index, queries, wrong, qrels, budget=5)
    assert "right items among the 5 returned" in trial.groups()
    assert max(share[0] for share in trial.returned.values()) <= 0.5


def test_the_query_itself_takes_no_place():
    """A query that is an item: twenty others are returned beside it."""
    texts = [f"tree number {n}" for n in range(40)]
    index = ck.ItemIndex.build([{"id": f"d{n}", "text": t} for n, t in enumerate(texts)], lsa=4)
    scores = -np.arange(40.0)[None]
    trial = Trial.run(index, ck.QuerySet(("d0",), (texts[0],)), scores, {"d0": {"d20": 1}})
    assert trial.answers["exact"][0, :20].tolist() == [*range(1, 21)]
    assert trial.returned["exact"][0] == 1
