"""The report of a sweep: one page from its table alone, nothing is searched again."""

from __future__ import annotations

from collections.abc import Sequence

from crossknn.methods import in_full
from crossknn_lab.choose import mean_recall
from crossknn_lab.report.environment import environment_text
from crossknn_lab.report.numbers import percent
from crossknn_lab.report.page import Block, Cell, Page, Points, Section, TableOf
from crossknn_lab.report.sweep_costs import costs, tasks
from crossknn_lab.report.sweep_recall import differences, recalls
from crossknn_lab.report.sweep_view import View
from crossknn_lab.report.text import others
from crossknn_lab.table import Entry, Group, Table


def sweep_page(table: Table, title: str) -> Page:
    """What a sweep compared, found, cost and could not do.

    Pictures need matplotlib: raises MissingExtraError without. A sweep in which nothing could be
    searched gives a page that says so.
    """
    view = View.of(table)
    sections = [_best(view), _compared(view), recalls(view)] if view.places else [_compared(view)]
    others = (part(view) for part in (differences, costs, tasks, _chosen, _not_done))
    sections += [made for made in others if made]
    return Page(title=title, lead=_lead(view), sections=sections)


def _lead(view: View) -> str:
    table = view.table
    methods = len({entry.method for entry in table.entries})
    matrices = len({entry.data for entry in table.entries})
    seeds = len({entry.seed for entry in table.entries})
    failed = sum(bool(entry.error) for entry in table.entries)
    lost = f" ({failed:,} of them could not be made)" if failed else ""
    return (
        f"{_several(methods, 'method')} on {_several(matrices, 'stored score matrix', 'matrices')} "
        f"by {_several(seeds, 'seed')}, {len(table.entries):,} searches{lost}. Every method is "
        "asked for the same number of cross-encoder calls per query; recall is the share of exact "
        "search's k nearest neighbours that were found. Intervals are 95%, by bootstrap over "
        "queries."
    )


def _compared(view: View) -> Section:
    table = view.table
    rows: list[list[Cell]] = []
    for name in dict.fromkeys(entry.data for entry in table.entries):
        here = [entry for entry in table.entries if entry.data == name]
        tests = {len(e.found.queries) for e in here if e.found}
        labelled = {
            len(e.found.queries) - e.found.outcome.unjudged
            for e in here
            if e.found and e.found.outcome.task
        }
        rows.append(
            [
                name,
                here[0].items,
                ", ".join(f"{count:,}" for count in sorted({e.anchors for e in here})),
                ", ".join(map(str, sorted(tests))) or None,
                ", ".join(map(str, sorted(labelled))) or None,
            ]
        )
    budgets = sorted({e.budget for e in table.entries if e.budget})
    facts = [
        f"calls per query: {', '.join(map(str, budgets))}",
        f"k: {', '.join(map(str, table.k))}",
        f"seeds: {', '.join(map(str, sorted({e.seed for e in table.entries})))}",
        f"baseline: `{table.baseline}`" if table.baseline else "no baseline was named",
    ]
    methods = [f"`{in_full(name)}`" for name in dict.fromkeys(e.method for e in table.entries)]
    blocks: list[Block] = [
        TableOf(
            head=["matrix", "items", "anchor queries", "test queries by a seed", "with labels"],
            rows=rows,
        ),
        Points(items=facts),
        "Methods, as they were asked for (what stands in braces was varied):",
        Points(items=methods),
        f"This page was made on: {environment_text()}.",
    ]
    if table.notes:
        blocks += ["To be noted:", Points(items=table.notes)]
    return Section(title="What was compared", blocks=blocks)


def _best(view: View) -> Section:
    blocks: list[Block] = [
        "The method with the highest mean recall (%), by k and calls per query, and how many "
        "others have the same. Where intervals overlap, another one may be as good: see the paired "
        "differences. No method is named where so many calls are exact search."
    ]
    for place in view.places:
        rows: list[list[Cell]] = []
        for k in view.table.k:
            cells: list[Cell] = []
            for budget in place.budgets:
                known = [g for g in place.at(budget) if not view.is_exact(g)]
                best = view.highest(known, k)
                cells.append(_named(view, best, k) if best else None)
            rows.append([f"k = {k}", *cells])
        head = [place.title, *(f"{budget} calls" for budget in place.budgets)]
        blocks.append(TableOf(head=head, rows=rows))
    return Section(title="In short", blocks=blocks)


def _named(view: View, best: Sequence[Group], k: int) -> str:
    return f"{view.label(best[0])}{others(best)}: {percent(view.mean(best[0], k))}"


def _chosen(view: View) -> Section | None:
    """Which settings were taken, and how they did on dev queries; None if none were."""
    if not view.table.dev:
        return None
    rows: list[list[Cell]] = []
    for e in view.table.entries:
        if e.chosen:
            tried = _tried(view, e)
            known = [o.found for o in tried if o.spec == e.spec and o.found]
            said = f"{100 * mean_recall(known[0].outcome.recall):.1f}" if known else None
            rows.append(
                [e.data, e.anchors, e.budget, e.seed, f"`{in_full(e.spec)}`", len(tried), said]
            )
    text = (
        "Of a method with several settings, the one with the highest recall on dev queries "
        f"(averaged over k = {', '.join(map(str, view.table.k))}) was run on the test queries. Dev "
        "queries are anchor queries held out for this; no test query had a say."
    )
    head = ["matrix", "anchors", "calls", "seed", "chosen", "of settings", "dev recall (%)"]
    caption = f"All {len(rows)} choices"
    table = TableOf(head=head, rows=rows, caption=caption, folded=len(rows) > 12)
    return Section(title="Settings chosen on dev queries", blocks=[text, table])


def _tried(view: View, entry: Entry) -> list[Entry]:
    """The dev entries that a setting was chosen from.

    They have the anchors that were left when dev queries were held out: as many as the entry has,
    or fewer.
    """
    like = [
        other
        for other in view.table.dev
        if (other.data, other.method, other.budget, other.seed)
        == (entry.data, entry.method, entry.budget, entry.seed)
        and other.anchors <= entry.anchors
    ]
    most = max((other.anchors for other in like), default=0)
    return [other for other in like if other.anchors == most]


def _not_done(view: View) -> Section | None:
    """What failed, each sentence once."""
    failed: dict[tuple[str, str, str], int] = {}
    for entry in (*view.table.dev, *view.table.entries):
        if entry.error:
            name = entry.data, entry.spec, entry.error
            failed[name] = failed.get(name, 0) + 1
    if not failed:
        return None
    rows: list[list[Cell]] = [
        [data, f"`{spec}`", error, times] for (data, spec, error), times in failed.items()
    ]
    text = "These are in no mean above; all else went on."
    table = TableOf(head=["matrix", "method", "why", "searches"], rows=rows)
    return Section(title="What could not be searched", blocks=[text, table])


def _several(count: int, one: str, many: str = "") -> str:
    """
    >>> _several(1, "seed"), _several(3, "seed")
    ('1 seed', '3 seeds')
    """
    if count == 1:
        return f"1 {one}"
    return f"{count} {(many and one.rsplit(' ', 1)[0] + ' ' + many) or one + 's'}"
