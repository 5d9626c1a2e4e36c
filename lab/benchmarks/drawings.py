"""The three drawings of docs/explanation/how-it-works.md.

python lab/benchmarks/drawings.py writes docs/images/loop-*.svg. The dots are items in the order of a retriever. The search that
is drawn is real: AXN on the sample, five rounds of four calls, for a query that shows what is meant."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

import crossknn as ck
from crossknn.extend import Queries, open_retriever
from crossknn.search.loop import Search

IMAGES = Path(__file__).parents[2] / "docs/images"
INK, GREY, PALE, TEAL, AMBER = "#24292f", "#8c959f", "#d8dee4", "#0f766e", "#d97706"
FIRST, CALLS, ROUNDS, QUERY = 60, 20, 5, 52


def text(
    x: float, y: float, words: str, colour: str = INK, size: int = 13, anchor: str = "start"
) -> str:
    return f'<text x="{x}" y="{y}" fill="{colour}" font-size="{size}" text-anchor="{anchor}">{words}</text>'


def dots(x: float, y: float, colours: list[str], step: float = 10.5) -> Iterator[str]:
    for at, colour in enumerate(colours):
        yield f'<circle cx="{x + step * at:.1f}" cy="{y}" r="4" fill="{colour}"/>'


def arrow(x: float, y: float, to_x: float, to_y: float) -> str:
    return (
        f'<line x1="{x}" y1="{y}" x2="{to_x}" y2="{to_y}" stroke="{INK}" stroke-width="1.4" '
        'marker-end="url(#head)"/>'
    )


def box(x: float, y: float, width: float, words: list[str], colour: str = INK) -> Iterator[str]:
    height = 18 * len(words) + 16
    yield (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="white" '
        f'stroke="{colour}" stroke-width="1.4"/>'
    )
    for line, each in enumerate(words):
        yield text(x + width / 2, y + 23 + 18 * line, each, colour, 13 if line else 14, "middle")


def write(name: str, height: int, parts: list[str]) -> None:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {height}" '
        'font-family="system-ui, sans-serif"><defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" '
        f'markerWidth="7" markerHeight="7" orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="{INK}"/></marker>'
        f'</defs><rect width="760" height="{height}" fill="white"/>'
    )
    (IMAGES / name).write_text("\n".join([head, *parts, "</svg>"]) + "\n", encoding="utf-8")


def found() -> tuple[list[list[int]], set[int]]:
    """Ranks in the retriever's order of what a search scores in each round, and of the ten best."""
    sample = ck.sample()
    queries = Queries(sample.queries.texts[QUERY : QUERY + 1])
    method = ck.parse_method(f"axn(retriever=dense, rounds={ROUNDS})")
    ranked = open_retriever(sample.index, "dense").top(queries, sample.index.n).items[0]
    rank = np.empty(sample.index.n, int)
    rank[ranked] = np.arange(sample.index.n)
    search, rounds = Search(method.plan(sample.index, CALLS, 0), queries, sample.index.n), []
    while len(pairs := search.ask()):
        rounds.append(rank[pairs.item].tolist())
        search.tell(pairs, sample.scores[QUERY + pairs.query, pairs.item])
    best = np.argsort(-sample.scores[QUERY], kind="stable")[:10]
    return rounds, set(rank[best].tolist())


def main() -> None:
    rounds, best = found()
    truth = [AMBER if rank in best else PALE for rank in range(FIRST)]
    key = [
        *dots(20, 24, [AMBER]),
        text(32, 28, "one of the ten that the cross-encoder likes best", GREY, 12),
        *dots(330, 24, [TEAL]),
        text(342, 28, "scored", GREY, 12),
        *dots(410, 24, [PALE]),
        text(422, 28, f"not scored; {FIRST} of 11,587 items, as retrieved", GREY, 12),
    ]
    reranked = [TEAL if rank < CALLS else colour for rank, colour in enumerate(truth)]
    hits = len(best & set(range(CALLS)))
    rings = lambda y, seen: [  # noqa: E731
        f'<circle cx="{100 + 10.5 * rank:.1f}" cy="{y}" r="6.5" fill="none" stroke="{AMBER}" stroke-width="2"/>'
        for rank in sorted(best & seen)
        if rank < FIRST
    ]
    write(
        "loop-rerank.svg",
        150,
        [
            *key,
            text(20, 74, "all items", INK),
            *dots(100, 70, truth),
            text(20, 114, "rerank", INK),
            *dots(100, 110, reranked),
            *rings(110, set(range(CALLS))),
            text(
                100,
                140,
                f"{CALLS} calls, the first {CALLS}: {hits} of the 10 found; the others are never seen",
                GREY,
                12,
            ),
        ],
    )
    parts, seen = [*key, text(20, 74, "all items", INK), *dots(100, 70, truth)], set[int]()
    for number, ranks in enumerate(rounds, 1):
        seen |= set(ranks)
        y = 70 + 32 * number
        colours = [TEAL if rank in seen else colour for rank, colour in enumerate(truth)]
        parts += [text(20, y + 4, f"round {number}", INK), *dots(100, y, colours), *rings(y, seen)]
    beyond = sum(rank >= FIRST for rank in seen)
    y = 70 + 32 * len(rounds) + 30
    told = f"{CALLS} calls in {ROUNDS} rounds: {len(best & seen)} of the 10 found; {beyond} of the calls went beyond rank {FIRST}"
    write("loop-search.svg", y + 14, [*parts, text(100, y, told, GREY, 12)])
    write(
        "loop-store.svg",
        190,
        [
            *box(20, 60, 150, ["search", "chooses pairs"]),
            *box(240, 60, 150, ["cross-encoder", "scores them"], TEAL),
            *box(460, 60, 130, ["store", "every exact score"], AMBER),
            *box(640, 60, 100, ["fit", "no calls"]),
            arrow(170, 86, 236, 86),
            arrow(390, 86, 456, 86),
            arrow(590, 86, 636, 86),
            f'<path d="M690,112 V156 H95 V116" fill="none" stroke="{INK}" stroke-width="1.4" marker-end="url(#head)"/>',
            text(
                392,
                150,
                "what later searches predict from: means of items, what rises and falls together",
                GREY,
                12,
                "middle",
            ),
            f'<path d="M525,60 V28 H95 V56" fill="none" stroke="{INK}" stroke-width="1.4" marker-end="url(#head)"/>',
            text(310, 22, "a pair scored before costs nothing", GREY, 12, "middle"),
        ],
    )


if __name__ == "__main__":
    main()
