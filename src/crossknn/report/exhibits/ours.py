"""Beyond the papers: all methods at equal calls, the task's measures, and the questions asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from crossknn.errors import InputError
from crossknn.evaluation.measures import Comparison
from crossknn.evaluation.table import Group
from crossknn.evaluation.task import ACCURACY
from crossknn.report.exhibits.base import Build, Exhibit
from crossknn.report.exhibits.found import by_data, one
from crossknn.report.numbers import chance, points, versus
from crossknn.report.page import Block, Cell, Points, Section, TableOf
from crossknn.report.study import Study
from crossknn.report.sweep_view import View
from crossknn.report.sweeps import sweep_page

PAPER = "Ours"
KS = (1, 10, 100)
MEASURES = (ACCURACY, "nDCG@10")
"""Of the task: of gold items, and of graded or several ones."""

RNR = "rnr(first={})"
ANNCUR = "anncur(anchors=0.5, first={})"
ADACUR = "adacur(first={}, rounds={})"
BLEND = "axn(first=de, rounds={}, blend={}, vectors=de)"
RIDGE = "axn(first={}, rounds={}, ridge=0.3, vectors=de)"

NO_DEV = "no matrix has a dual encoder and anchor queries to choose settings on"


def clear(found: Comparison | None) -> int:
    """1 if better, -1 if worse, 0 if these queries do not say."""
    return 0 if found is None else int(found.low > 0) - int(found.high < 0)


def shown_ks(study: Study) -> list[int]:
    """1, 10 and 100 as far as they were swept."""
    return [k for k in study.k if k in KS] or [study.k[0]]


def equal_calls(study: Study) -> list[Block | Section]:
    """The page of the sweep of all methods: recall, differences, settings, cost, the task."""
    if (table := study.table("rivals")) is None:
        raise InputError(NO_DEV)
    return list(sweep_page(table, "").sections)


def papers_order(study: Study) -> list[Block]:
    """ADACUR_X over ANNCUR_X over reranking X."""
    pairs = []
    for stage in ("de", "bm25"):
        adacur, anncur = ADACUR.format(stage, 5), ANNCUR.format(stage)
        pairs.append((f"ADACUR_{stage} over ANNCUR_{stage}", adacur, anncur))
        pairs.append((f"ANNCUR_{stage} over RNR_{stage}", anncur, RNR.format(stage)))
    return _asked(study, "methods", pairs)


def axn_over_reranking(study: Study) -> list[Block]:
    """AXN against reranking the same first stage, as published and with ridge."""
    return _asked(
        study,
        "query-vectors",
        [
            ("blend 0", BLEND.format(10, 0.0), RNR.format("de")),
            ("blend 0.8", BLEND.format(10, 0.8), RNR.format("de")),
            ("ridge 0.3", RIDGE.format("de", 10), RNR.format("de")),
        ],
    )


def rounds(study: Study) -> list[Block]:
    """More rounds against one."""
    several = [r for r in study.preset.rounds if r > 1]
    forms: dict[str, Callable[[int], str]] = {
        "ADACUR": lambda count: ADACUR.format("de", count),
        "AXN, blend 0.5": lambda count: BLEND.format(count, 0.5),
        "AXN, ridge 0.3": lambda count: RIDGE.format("de", count),
    }
    pairs = [
        (f"{name}: {more} rounds over {less}", form(more), form(less))
        for name, form in forms.items()
        for less, more in zip((1, *several), several, strict=False)
    ]
    return _asked(study, "rounds", pairs)


def blends(study: Study) -> list[Block]:
    """Weights of the parametric vector against none."""
    pairs = [
        (f"blend {value} over 0", BLEND.format(10, value), BLEND.format(10, 0.0))
        for value in study.preset.blends
        if value
    ]
    return _asked(study, "blend", pairs)


def first_stages(study: Study) -> list[Block]:
    """Other first stages against the dual encoder."""
    forms: dict[str, Callable[[str], str]] = {
        "RNR": RNR.format,
        "AXN, ridge 0.3": lambda stage: RIDGE.format(stage, 10),
        "ADACUR": lambda stage: ADACUR.format(stage, 5),
    }
    pairs = [
        (f"{name}: {stage} over de", form(stage), form("de"))
        for name, form in forms.items()
        for stage in ("bm25", "hybrid")
    ]
    return _asked(study, "firsts", pairs)


def _asked(study: Study, sweep: str, pairs: Sequence[tuple[str, str, str]]) -> list[Block]:
    """Differences of each pair by budget and k, on each matrix with the most anchors; counted."""
    ks = shown_ks(study)
    blocks: list[Block] = []
    for data, found in by_data(study, sweep).items():
        anchors = max(group.first.anchors for group in found)
        lines: list[list[Cell]] = []
        signs: dict[str, list[int]] = {}
        for title, upper, lower in pairs:
            for budget in study.budgets:
                a, b = (
                    one(study, sweep, name, data=data, budget=budget, anchors=anchors)
                    for name in (upper, lower)
                )
                made = [versus(a, b, k) for k in ks]
                if any(made):
                    lines.append([title, budget, *_cells(made)])
                    signs.setdefault(title, []).extend(map(clear, made))
        if lines:
            heads = [head for k in ks for head in (f"k = {k}", "p")]
            caption = f"{data}: differences in points, 95% intervals over queries."
            counts = [
                f"{title}: clearly better in {of.count(1)}, clearly worse in {of.count(-1)} of "
                f"{len(of)}"
                for title, of in signs.items()
            ]
            blocks += [f"**{data}**, over calls and k:", Points(items=counts)]
            blocks.append(
                TableOf(head=["", "calls", *heads], rows=lines, caption=caption, folded=True)
            )
    if not blocks:
        raise InputError("no matrix has what these methods need")
    return blocks


def _cells(found: Sequence[Comparison | None]) -> list[Cell]:
    return [cell for one in found for cell in (points(one), chance(one))]


def best_rival(study: Study) -> list[Block]:
    """The three best methods by mean recall; the best of those that pay nothing offline."""
    if (table := study.table("rivals")) is None:
        raise InputError(NO_DEV)
    view = View.of(table)
    blocks: list[Block] = []
    for place in view.places:
        lines: list[list[Cell]] = []
        for budget in place.budgets:
            tried = [group for group in place.at(budget) if not view.is_exact(group)]
            for k in shown_ks(study):

                def recall(group: Group, k: int = k) -> float:
                    return view.mean(group, k).mean

                best = sorted(tried, key=recall, reverse=True)[:3]
                free = max((g for g in tried if not g.cost("index_calls")), key=recall)
                named = [f"`{view.label(g)}` {100 * recall(g):.1f}" for g in best]
                lines.append(
                    [
                        budget,
                        k,
                        "; ".join(named),
                        points(versus(best[0], best[1], k)),
                        f"`{view.label(free)}` {100 * recall(free):.1f}",
                        points(view.gain(place, free, k)),
                    ]
                )
        head = ["calls", "k", "best three, recall (%)", "first over second"]
        caption = f"{place.title}: settings chosen on dev queries for every method alike."
        blocks.append(
            TableOf(
                head=[*head, "best without offline calls", "over reranking"],
                rows=lines,
                caption=caption,
            )
        )
    return blocks


def verdicts(study: Study) -> list[Block]:
    """Of searches with clearly nearer neighbours: how often retrieval was better or worse."""
    if (table := study.table("rivals")) is None:
        raise InputError(NO_DEV)
    view = View.of(table)
    lines: list[list[Cell]] = []
    for place in view.places:
        exact = place.find("exact", place.budgets[-1])
        tried = [group for group in place.groups if not view.is_exact(group)]
        nearer = [group for group in tried if clear(view.gain(place, group, view.k)) > 0]
        for measure in MEASURES:
            if not any(measure in group.measures for group in tried):
                continue
            signs = [clear(view.gain(place, group, measure)) for group in nearer]
            gain = None if exact is None else view.gain(place, exact, measure)
            counts = (signs.count(1), signs.count(0), signs.count(-1))
            lines.append([place.title, measure, len(nearer), *counts, points(gain), chance(gain)])
    if not lines:
        raise InputError("no matrix has labels")
    head = ["matrix", "measure", "more neighbours", "better", "not told apart", "worse"]
    return [
        TableOf(
            head=[*head, "exact search", "p"],
            rows=lines,
            caption=f"Methods and budgets with clearly more neighbours (k = {view.k}) than "
            f"`{table.baseline}` with as many calls, and what the task's measure says of these; "
            f"exact search: points above it at the most calls. Clearly: the 95% interval does not "
            "hold 0.",
        )
    ]


def _question(label: str, title: str, here: str, sweeps: tuple[str, ...], build: Build) -> Exhibit:
    return Exhibit(
        paper=PAPER, label=f"question {label}", title=title, here=here, sweeps=sweeps, build=build
    )


EXHIBITS = (
    _question(
        "1",
        "ADACUR_X over ANNCUR_X over RNR_X?",
        "ADACUR without a division of its calls; ANNCUR with half of them for anchor items.",
        ("methods",),
        papers_order,
    ),
    _question(
        "2",
        "AXN over reranking?",
        "Both begin with the dual encoder.",
        ("query-vectors",),
        axn_over_reranking,
    ),
    _question(
        "3a",
        "what do rounds change?",
        "Each number of rounds against the one before; one round is reranking.",
        ("rounds",),
        rounds,
    ),
    _question(
        "3b", "what does the blend change?", "Against blend 0, ten rounds.", ("blend",), blends
    ),
    _question(
        "3c",
        "what does the first stage change?",
        "Against the dual encoder as the first stage.",
        ("firsts",),
        first_stages,
    ),
    _question(
        "4",
        "which method is best at equal calls?",
        "By mean recall; the last two columns are of methods that need no cross-encoder calls for "
        "their index.",
        ("rivals",),
        best_rival,
    ),
    _question(
        "5",
        "when is better k-NN not better for the task?",
        "Of all methods and budgets those with clearly more true neighbours than reranking.",
        ("rivals",),
        verdicts,
    ),
    Exhibit(
        paper=PAPER,
        label="comparison",
        title="all methods and rivals at equal calls",
        here="Every method with its settings chosen on dev queries, for each budget; paired "
        "differences to reranking; the task's own measures beside recall.",
        sweeps=("rivals",),
        build=equal_calls,
    ),
)
