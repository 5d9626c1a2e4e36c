"""Beyond the papers: all methods at equal calls, the task's measures, and the questions asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from crossknn.errors import InputError
from crossknn.evaluation.measures import Comparison
from crossknn.evaluation.task import ACCURACY
from crossknn_lab.report.exhibits import asked
from crossknn_lab.report.exhibits.base import Build, Exhibit
from crossknn_lab.report.exhibits.found import by_data, one
from crossknn_lab.report.numbers import chance, clear, points, versus
from crossknn_lab.report.page import Block, Cell, Section, TableOf
from crossknn_lab.report.presets import Preset
from crossknn_lab.report.study import Study
from crossknn_lab.report.sweep_view import View
from crossknn_lab.report.sweeps import sweep_page
from crossknn_lab.table import Group

PAPER = "Ours"
KS = (1, 10, 100)
MEASURES = (ACCURACY, "nDCG@10")
"""Of the task: of gold items, and of graded or several ones."""

ASKED = "questions"
"""The sweep of all that the questions compare."""


def shown_ks(study: Study) -> list[int]:
    """1, 10 and 100 as far as they were swept."""
    return [k for k in study.k if k in KS] or [study.k[0]]


def rivals(study: Study) -> View:
    """What the sweep of all methods found; InputError if no matrix is fit for it."""
    if (table := study.table("rivals")) is None:
        raise InputError("no matrix has a dual encoder and anchor queries to choose settings on")
    return View.of(table)


def pair_of(
    study: Study, upper: str, lower: str, *, data: str, budget: int
) -> tuple[Group | None, Group | None]:
    """Two methods of the questions on a matrix; None for one that has found nothing there."""
    return (
        one(study, ASKED, upper, data=data, budget=budget),
        one(study, ASKED, lower, data=data, budget=budget),
    )


def equal_calls(study: Study) -> list[Block | Section]:
    """The page of the sweep of all methods: recall, differences, settings, cost, the task."""
    return list(sweep_page(rivals(study).table, "").sections)


def answers(study: Study, pairs: Sequence[asked.Pair]) -> list[Block]:
    """Differences of each pair by matrix, budget and k; before them, how often they are clear."""
    ks, places = shown_ks(study), list(by_data(study, ASKED))
    counted: dict[str, list[Cell]] = {}
    tables: list[Block] = []
    for data in places:
        lines: list[list[Cell]] = []
        for title, upper, lower in pairs:
            signs: list[int] = []
            for budget in study.budgets:
                a, b = pair_of(study, upper, lower, data=data, budget=budget)
                made = [versus(a, b, k) for k in ks]
                if any(made):
                    lines.append([title, budget, *_cells(made)])
                    signs += map(clear, made)
            said = f"{signs.count(1)} / {signs.count(-1)} of {len(signs)}" if signs else None
            counted.setdefault(title, []).append(said)
        if lines:
            heads = [head for k in ks for head in (f"k = {k}", "p")]
            caption = f"{data}: differences in points, 95% intervals over queries."
            tables.append(
                TableOf(head=["", "calls", *heads], rows=lines, caption=caption, folded=True)
            )
    if not tables:
        raise InputError("no matrix has what these methods need")
    counts = TableOf(
        head=["clearly better / worse", *places],
        rows=[[title, *cells] for title, cells in counted.items() if any(cells)],
        caption=f"Over calls {_listed(study.budgets)} and k {_listed(ks)}.",
    )
    return [counts, *tables]


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _cells(found: Sequence[Comparison | None]) -> list[Cell]:
    return [cell for one in found for cell in (points(one), chance(one))]


def best_rival(study: Study) -> list[Block]:
    """The three best methods by mean recall; the best of those that pay nothing offline."""
    view = rivals(study)
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
        caption = (
            f"{place.title}: settings chosen on dev queries for every method alike, reranking's "
            "retriever, too. Which methods are first and second is seen on the test queries "
            "themselves, which favours the first."
        )
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
    view = rivals(study)
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
            f"{view.base} with as many calls, and what the task's measure says of these; "
            f"exact search: points above it at the most calls. Clearly: the 95% interval is on "
            "one side of 0, and p is at most 0.05.",
        )
    ]


def _question(label: str, title: str, here: str, sweep: str, build: Build) -> Exhibit:
    return Exhibit(
        paper=PAPER, label=f"question {label}", title=title, here=here, sweeps=(sweep,), build=build
    )


def _pairs(
    label: str, title: str, here: str, pairs: Callable[[Preset], list[asked.Pair]]
) -> Exhibit:
    return _question(label, title, here, ASKED, lambda study: answers(study, pairs(study.preset)))


EXHIBITS = (
    _pairs(
        "1",
        "ADACUR_X over ANNCUR_X over RNR_X?",
        "ADACUR without a division of its calls; ANNCUR with half of them for anchor items. "
        "Singular values below 3% of the largest are left out (`rcond=0.03`); as published they "
        "are not, and recall collapses where there are about as many anchor items as anchor "
        "queries (ANNCUR, figure 6). Scores are centred, in both.",
        asked.papers_order,
    ),
    _pairs(
        "2",
        "AXN over reranking?",
        "Both begin with the dual encoder.",
        asked.axn_over_reranking,
    ),
    _pairs(
        "3a",
        "what do rounds change?",
        "Each number of rounds against the one before; one round is reranking.",
        asked.rounds,
    ),
    _pairs("3b", "what does the blend change?", "Against blend 0, ten rounds.", asked.blends),
    _pairs(
        "3c",
        "what does the retriever change?",
        "Against the dual encoder as the retriever.",
        asked.first_stages,
    ),
    _question(
        "4",
        "which method is best at equal calls?",
        "By mean recall; the last two columns are of methods that need no cross-encoder calls for "
        "their index.",
        "rivals",
        best_rival,
    ),
    _question(
        "5",
        "when is better k-NN not better for the task?",
        "Of all methods and budgets those with clearly more true neighbours than reranking.",
        "rivals",
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
