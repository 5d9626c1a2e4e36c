"""Pictures of measurements, as lines over calls, rounds or ranks.

Lines are named at their ends, and panels are stacked for phones. A method has the same colour and
marker in all pictures (`styles_of`).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from io import BytesIO
from itertools import chain, count
from pathlib import Path
from textwrap import fill
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from crossknn.errors import SpecError
from crossknn.evaluation.measures import Estimate
from crossknn.files import make_folder, write_file
from crossknn.retrievers.base import KINDS
from crossknn.spec import Spec, parse
from crossknn_lab.page import STYLE, Page, Section, write_page

Target: TypeAlias = str | Path | BinaryIO
"""A file, whose suffix sets the format, or an open file, which gets SVG."""

FAMILIES: Mapping[str, tuple[str, str]] = {
    "rerank": ("#4f5764", "s"),
    "axn": ("#1476ba", "o"),
    "adacur": ("#b23b06", "D"),
    "anncur": ("#c98500", "^"),
    "gp": ("#c75a9b", "X"),
    "kriging": ("#7d0d41", "P"),
    "gar": ("#009e73", "v"),
    "ladr": ("#5b9616", "<"),
    "greedy": ("#1b5e20", ">"),
    "tour": ("#2c9bd0", "p"),
    "refit": ("#4b3fa8", "h"),
    "feedback": ("#00868b", "8"),
    "reformir": ("#a3561f", "x"),
    "acurank": ("#5c6b1e", "+"),
    "fixeditem": ("#8c564b", "d"),
    "itemcur": ("#b07d62", "H"),
    "retrieve": ("#8d3391", "*"),
    "exact": ("#333a42", "|"),
}
"""Colour and marker of each method, whatever its options."""

INK, QUIET, RULE, PAPER = "#1f2328", "#59636e", "#d8dee4", "#ffffff"

OTHERS = ("#1476ba", "#b23b06", "#009e73", "#c75a9b", "#c98500", "#4f5764")
"""Colours of lines that are not methods, in order."""

DASHES = ("-", (0, (5, 1.6)), (0, (1.2, 1.4)), (0, (6, 1.4, 1.2, 1.4)), (0, (10, 3)), (0, (3, 5)))
"""Dashes of a method's variants, in order."""

LINES, WIDTH = 6, 5.0
"""Maximum number of lines with a name and a colour, and the size of a panel in inches."""

GREY: Mapping[str, Any] = {"color": QUIET, "lw": 0.8, "ls": "-", "alpha": 0.4, "zorder": 1}
"""The style of all other lines."""

_RC = {
    "font.size": 10,
    "axes.titlesize": 10,
    "svg.fonttype": "none",
    "svg.hashsalt": "crossknn",
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.titlecolor"), INK),
    **dict.fromkeys(("xtick.labelcolor", "ytick.labelcolor"), INK),
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), QUIET),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right"), False),
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "grid.color": RULE,
}


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A line: `y` over `x` (p,), with the ends of the 95% intervals if they are known.

    A curve that does not depend on x has one point with `x` (None,): a horizontal line.
    """

    name: str
    x: Sequence[float | None]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()

    @classmethod
    def through(cls, name: str, x: Sequence[float | None], estimates: Sequence[Estimate]) -> Curve:
        """Make a curve of means with their intervals, one for each x (p,)."""
        y, low, high = zip(*[(e.mean, e.low, e.high) for e in estimates], strict=True)
        return cls(name=name, x=x, y=y, low=low, high=high)


class Figure(str):
    """A picture of a page, as Markdown that names the file of its `svg`."""

    svg: str
    file: str


def draw(
    plot: Callable[..., None], shown: Any, /, *, alt: str, caption: str = "", **options: Any
) -> Figure:
    """Draw `shown` with a function that saves a picture, as one of a page (`write_report`)."""
    made = BytesIO()
    plot(shown, made, **options)
    file = f"{blake2b(made.getvalue(), digest_size=8).hexdigest()}.svg"
    said = alt.replace("[", "(").replace("]", ")").replace("\n", " ")
    figure = Figure(f"![{said}](images/{file})" + (f"\n\n{caption}" if caption else ""))
    figure.svg, figure.file = made.getvalue().decode(), file
    return figure


def write_report(page: Page, folder: str | Path) -> None:
    """Write a page, its pictures in `images/`, and `index.html` with the pictures inside."""
    folder = Path(folder)
    write_page(page, folder)
    make_folder(folder / "images")
    svgs = {figure.file: figure.svg for figure in _figures(page.sections)}
    paper = f'<rect width="100%" height="100%" fill="{PAPER}"/>'  # a viewer's ground may be black
    for file, svg in svgs.items():
        on_paper = re.sub(r"(<svg\b[^>]*>)", rf"\1{paper}", svg, count=1)
        write_file(folder, f"images/{file}", both_palettes(on_paper).encode())
    numbers = count()

    def inline(image: re.Match[str]) -> str:
        svg = svgs[image[1]]
        svg = re.sub(r"<(metadata|title)>.*?</\1>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
        # Several pictures in one document must not share names, nor take each other's clip paths.
        svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>f{next(numbers)}-", svg)
        for colour in set(re.findall(r"--c\w+: (#\w+);", STYLE.split("@media")[0])):
            svg = svg.replace(colour, f"var(--c{colour[1:]})")  # another one on a dark screen
        return svg.replace("<svg", f'<svg role="img" aria-label="{image[2]}"', 1)

    html = (folder / "index.html").read_text(encoding="utf-8")
    html = re.sub(r'<img src="images/([^"]+)" alt="([^"]*)" />', inline, html)
    write_file(folder, "index.html", html.encode())


def _figures(sections: Sequence[Section]) -> Iterator[Figure]:
    for section in sections:
        yield from (block for block in section.blocks if isinstance(block, Figure))
        yield from _figures(section.sections)


def curves(
    panels: Mapping[str, Sequence[Curve]],
    path: Target,
    *,
    title: str,
    x_label: str,
    y_label: str = "recall against exact search",
    log: bool = True,
    percent: bool = True,
    highlight: Sequence[str] = (),
    note: str = "",
) -> None:
    """Save a plot with a panel for each title and a line for each of its curves, named at its end.

    `log` makes the x axis logarithmic. Values are shares (0-1), or drawn as they are on a
    logarithmic axis. `highlight` names the lines that are not grey, at most six.
    """
    names = list(dict.fromkeys(curve.name for found in panels.values() for curve in found))
    chosen = list(highlight) or highlights(chain(*panels.values()))
    said, looks = labels_of(chosen), styles_of(chosen)
    if len(names) > len(chosen):
        note += f" Grey: {len(names) - len(chosen)} others."
    with picture(path, title=title, note=note.strip(), panels=len(panels)) as axes:
        for panel, (head, found) in zip(axes, panels.items(), strict=True):
            panel.set_title(f"{head}: {y_label}" if head else y_label)
            places = [x for curve in found for x in curve.x if x is not None] or [1]
            if log:
                _logarithmic(panel, min(places), max(places))
            for curve in found:
                look = looks.get(curve.name, GREY)
                _draw(panel, curve, places, said.get(curve.name, ""), look, 100 if percent else 1)
            if percent:  # the same for all, so that plots beside each other can be compared
                panel.set(ylim=(0, 103), yticks=range(0, 101, 25))
                panel.yaxis.set_major_formatter("{x:.0f}%")
            else:
                panel.set_yscale("log")
                panel.yaxis.set_major_formatter("{x:,.10g}")
            panel.grid(axis="y")
        axes[-1].set_xlabel(x_label)


def highlights(found: Iterable[Curve]) -> list[str]:
    """Choose at most six lines to highlight: the best reranking and the highest others.

    Lines are ordered by their mean, and every method gets one before any gets a second.
    """
    heights: dict[str, list[float]] = {}
    for curve in found:
        heights.setdefault(curve.name, []).extend(curve.y)
    places, seen = {}, Counter[str]()
    for name in sorted(heights, key=lambda name: -np.mean(heights[name])):
        like = family(name) or name
        places[name] = seen[like], like != "rerank"
        seen[like] += 1
    return sorted(places, key=places.__getitem__)[:LINES]


def _draw(
    panel: Any, curve: Curve, places: Sequence[float], label: str, look: Any, scale: int
) -> None:
    x, y = curve.x, scale * np.array([curve.y, curve.low or curve.y, curve.high or curve.y])
    if None in x:
        low, high = min(places), max(places)
        x = [low, high] if low < high else [low / 2, high * 2]
        y, look = y[:, [-1, -1]], {**look, "marker": ""}
    panel.plot(x, y[0], **look)
    if label:
        panel.fill_between(x, *y[1:], color=look["color"], alpha=0.1, lw=0)
        colour = look["color"]  # the name stands at the line's end, beside the panel
        leader = {"arrowstyle": "-", "color": colour, "lw": 0.8, "ls": ":", "relpos": (0, 0.5)}
        look = {"color": colour, "va": "center", "arrowprops": leader, "annotation_clip": False}
        where = {"xytext": (1.06, 0.5), "textcoords": "axes fraction"}
        named = fill(label, 16, break_long_words=False)
        panel.annotate(named, (x[-1], y[0, -1]), **where, **look)


def _move_apart(panel: Any) -> None:
    """Move the names beside a panel apart, as near as possible to the ends of their lines."""
    from matplotlib.text import Text
    from scipy.optimize import isotonic_regression

    named = sorted((t for t in panel.texts if hasattr(t, "xyann")), key=lambda text: text.xy[1])
    box, sizes = panel.bbox, np.array([Text.get_window_extent(text).height for text in named])
    # Less the names below it, the height of each is at least that of the one before: the least
    # squares under this order are an isotonic regression.
    ends = [panel.transData.transform((1, text.xy[1]))[1] - box.y0 for text in named]
    stacked, room = sizes.cumsum() - sizes / 2, max(0, box.height - sizes.sum())
    free = np.clip(isotonic_regression(ends - stacked).x, 0, room)
    for text, place in zip(named, (free + stacked) / box.height, strict=True):
        text.xyann = (text.xyann[0], place)


def _logarithmic(panel: Any, low: float, high: float) -> None:
    """Set a logarithmic x axis with ticks at 1, 2 and 5, or only at 1 if those would overlap."""
    wide = len(f"{high:,.0f}") * math.log10(high / low) > 9
    powers = [s * 10.0**e for e in range(-3, 10) for s in ((1,) if wide else (1, 2, 5))]
    ticks = [tick for tick in powers if low <= tick <= high] or [low]
    panel.set_xscale("log")
    panel.set_xticks(ticks, [f"{tick:,.10g}" for tick in ticks])
    panel.minorticks_off()


def family(name: str) -> str:
    """Return the method that a specification or a label begins with; "" if none.

    >>> family("axn(retriever=dense, rounds=5)"), family("CMC"), family("auto"), family("wordnet")
    ('axn', 'retrieve', 'kriging', '')
    """
    found = re.match(r"[A-Za-z]+", name)
    word = found[0].lower() if found else ""
    word = "retrieve" if word in KINDS else "kriging" if word == "auto" else word
    return word if word in FAMILIES else ""


def styles_of(names: Iterable[str]) -> dict[str, Mapping[str, Any]]:
    """Return styles by name: colour and marker from the method, dashes for its variants."""
    found: dict[str, Mapping[str, Any]] = {}
    seen: Counter[str] = Counter()
    for name in dict.fromkeys(names):
        like = family(name)
        place = seen[like] % LINES
        seen[like] += 1
        colour, marker = FAMILIES.get(like, (OTHERS[place], "oDv^Ps"[place]))
        look = {"ls": DASHES[place]} if like else {"ls": "-", "mfc": PAPER}
        found[name] = {"color": colour, "marker": marker, "ms": 4.6, "lw": 1.7, **look}
    return found


def labels_of(names: Iterable[str]) -> dict[str, str]:
    """Return short names: the method, and the options in which it differs from others of its name.

    >>> list(labels_of(["rerank(retriever=dense)", "rerank(retriever=bm25)", "axn"]).values())
    ['rerank dense', 'rerank bm25', 'axn']
    """
    parsed = {name: _parsed(name) for name in names}
    found = {}
    for name, spec in parsed.items():
        said = [spec.name if spec else name]
        like = [other.options for other in parsed.values() if other and other.name == said[0]]
        for option, value in spec.options.items() if spec else ():
            if len({str(options.get(option)) for options in like}) > 1:
                said.append(str(value) if option == "retriever" else f"{option}={value}")
        found[name] = " ".join(said)
    return found


def _parsed(name: str) -> Spec | None:
    """Parse a specification, whose settings may still have to be chosen; None if it is invalid."""
    try:
        return parse(re.sub(r"\{\w+\}", "chosen", name))
    except SpecError:
        return None


@contextmanager
def picture(
    path: Target,
    *,
    title: str,
    note: str = "",
    panels: int = 1,
    size: tuple[float, float] | None = None,
) -> Iterator[list[Any]]:
    """Make panels of `size` inches, stacked if they are wide, and save them at the end.

    A file that ends in `.svg` has a light and a dark palette (`both_palettes`).
    """
    import matplotlib.figure

    width, height = size or (WIDTH, 3.3 if panels == 1 else 2.4)
    columns = max(1, min(panels, int(WIDTH // width)))
    rows = -(-panels // columns)
    with matplotlib.rc_context(_RC):
        figure = matplotlib.figure.Figure(
            figsize=(width * columns, height * rows), layout="constrained"
        )
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
        for unused in grid[panels:]:
            unused.remove()
        yield list(grid[:panels])
        about = fill(title, int(10.5 * width * columns))
        figure.suptitle(about, x=0.01, ha="left", fontsize=11, fontweight="bold")
        if note:
            below = fill(note, int(14 * width * columns))
            figure.supxlabel(below, x=0.01, ha="left", fontsize=8.5, color=QUIET)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # panels stay where they are now
        for panel in (panel for panel in grid[:panels] if panel.texts):
            _move_apart(panel)
        if isinstance(path, str | Path) and Path(path).suffix != ".svg":
            figure.savefig(path, dpi=150)
            return
        made, on_page = BytesIO(), not isinstance(path, str | Path)
        figure.savefig(made, format="svg", transparent=on_page, metadata={"Date": None})
    if isinstance(path, str | Path):
        Path(path).write_text(both_palettes(made.getvalue().decode()), encoding="utf-8")
    else:
        path.write(made.getvalue())


def both_palettes(svg: str) -> str:
    """Give an SVG whose colours are those of `page.css` their dark values too, for dark screens.

    The colours must be written as `fill: #1f2328` in a style, or as `fill="#1f2328"`; the same holds
    for strokes. The picture itself stays light, for programs that know no `prefers-color-scheme`.
    """
    light, dark = (re.findall(r"--c\w+: (#\w+);", part) for part in STYLE.split("@media screen"))
    rules = [
        f'[style*="{kind}: {colour}"],[{kind}="{colour}"]{{{kind}:{other}!important}}'
        for colour, other in zip(light, dark, strict=True)
        for kind in ("fill", "stroke")
        if re.search(rf'{kind}(: |="){colour}', svg)
    ]
    style = "\n".join(["<style>@media (prefers-color-scheme: dark) {", *rules, "}</style>"])
    return re.sub(r"<svg\b[^>]*>", rf"\g<0>\n{style}", svg, count=1)
