"""Print the answers of a search: hits, and each round that led to them."""

from __future__ import annotations

from rich.text import Text

from crossknn.cli.output import out, print_json, say, show_table
from crossknn.errors import counted, visible
from crossknn.methods import DEFAULT, parse_method
from crossknn.search.results import Hit, Results


def show(results: Results, json: bool) -> None:
    """Print the answers, as text or as one JSON object."""
    if json:
        print_json(results.to_dict())
        return
    for q, text in enumerate(results.queries):
        if results.trace is not None and results.trace[q]:
            _explain(results.trace[q])
        out.print(Text(visible(text), style="bold"))
        for rank, hit in enumerate(results[q], start=1):
            _show_hit(rank, hit, hit.rung < len(results.rungs))
        if results.errors[q] is not None and len(results) > 1:
            what = "ended early" if results[q] else "no answer"
            say(f"{what}: {results.errors[q]}")
        if (least := results.min_score) is not None:
            best = results.best_scores[q]
            reached = f"{counted(len(results[q]), 'item')} scored {least:g} or more"
            if not results[q]:
                why = "nothing was scored" if best is None else f"the best score is {best:.2f}"
                reached = f"no scored item reaches {least:g}: {why}"
            out.print(Text(reached, style="dim"))
        if results.none_relevant and (chance := results.none_relevant[q] or 0) >= 0.5:
            out.print(Text(f"probably no relevant item ({chance:.0%})", style="dim"))
        out.print()
    default = results.method == str(parse_method(DEFAULT))
    named = f"{DEFAULT} ({results.method})" if default else results.method
    calls = "".join(f"{each.n_calls:,} + " for each in results.rungs[:-1])
    scores = "".join(f"{each.n_scored:,} + " for each in results.rungs[:-1])
    costs = [each.cost for each in results.rungs if each.cost is not None]
    notes = {
        f"{named}: {calls}{counted(results.n_calls, 'cross-encoder call')} "
        f"({scores}{counted(results.n_scored, 'score')} used), {results.seconds:.2f} s": True,
        f"{results.together} queries learned from each other": results.together,
        f"cost {sum(costs):.3g}": costs,
        f"stopped by {results.stopped_by}": results.stopped_by != "budget",
        f"{counted(results.n_failed, 'pair')} could not be scored": results.n_failed,
        f"{counted(results.truncated or 0, 'pair')} truncated to the model's maximum length": (
            results.truncated
        ),
    }
    out.print(Text("; ".join(text for text, applies in notes.items() if applies), style="dim"))


def _show_hit(rank: int, hit: Hit, cheap: bool) -> None:
    """Print two lines: rank, score, id and round, if any, or whether only a cheaper scorer scored
    the item; then the beginning of the text."""
    exact = "" if hit.final_score == hit.score else f"(exact {hit.score:.2f})  "
    head = Text(f"{rank:3}  {hit.final_score:7.2f}  {exact}")
    if hit.predicted:
        head = Text(f"{rank:3}  predicted  ")
    head.append(visible(hit.id), style="cyan")
    if hit.calibrated is not None:
        head.append(f"  {hit.calibrated:.0%} relevant", style="dim")
    if hit.rung and cheap:
        head.append("  scored by a cheaper scorer only", style="dim")
    elif hit.round:
        head.append(f"  round {hit.round}", style="dim")
    out.print(head, no_wrap=True, overflow="ellipsis")
    body = hit.text.removeprefix(f"{hit.title}\n")
    shown = hit.text if body == hit.text else f"{hit.title}: {body}"
    text = Text(" " * 14 + visible(" ".join(shown.split())))
    out.print(text, no_wrap=True, overflow="ellipsis", soft_wrap=False)


def _explain(trace: list[Hit]) -> None:
    """Print each round: the picked items with their predicted and exact scores."""
    from crossknn.table import Cell, Plain, Table

    rows, best, previous, highest = list[list[Cell]](), set[tuple[int, int]](), 0, float("-inf")
    for place, hit in enumerate(trace):
        std = "" if hit.std is None else f" ± {hit.std:.3f}"
        approx = None if hit.approx is None else f"{hit.approx:.3f}{std}"
        begun = str(hit.round) if hit.round != previous else ""
        rows.append([begun, approx, f"{hit.score:.3f}", hit.source, Plain(hit.id)])
        if hit.score > highest:
            best.add((place, 0))
        previous, highest = hit.round, max(highest, hit.score)
    legend = "bold: the best so far; in round 1 'predicted' is the retriever's own score\n"
    head = ["round", "predicted", "exact", "by", "id"]
    show_table(Table(head=head, rows=rows, best=frozenset(best), caption=legend))
