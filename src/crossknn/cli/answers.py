"""Print the answers of a search: hits, and each round that led to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from crossknn.cli.output import out, print_json, say
from crossknn.errors import counted, visible
from crossknn.methods import DEFAULT, parse_method

if TYPE_CHECKING:
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
            _show_hit(rank, hit)
        if results.errors[q] is not None and len(results) > 1:
            what = "ended early" if results[q] else "no answer"
            say(f"{what}: {results.errors[q]}")
        if results.min_score is not None:
            out.print(Text(_reached(results, q, results.min_score), style="dim"))
        if results.none_relevant and (chance := results.none_relevant[q] or 0) >= 0.5:
            out.print(Text(f"probably no relevant item ({chance:.0%})", style="dim"))
        out.print()
    default = results.method == str(parse_method(DEFAULT))
    named = f"{DEFAULT} ({results.method})" if default else results.method
    notes = [
        f"{named}: {counted(results.n_calls, 'cross-encoder call')} "
        f"({counted(results.n_scored, 'score')} used), {results.seconds:.2f} s"
    ]
    if results.stopped_by != "budget":
        notes.append(f"stopped by {results.stopped_by}")
    if results.n_failed:
        notes.append(f"{counted(results.n_failed, 'pair')} could not be scored")
    if results.truncated:
        notes.append(
            f"{counted(results.truncated, 'pair')} truncated to the model's maximum length"
        )
    out.print(Text("; ".join(notes), style="dim"))


def _reached(results: Results, q: int, least: float) -> str:
    """Describe how many scored items of a query reached the minimum score."""
    if results[q]:
        return f"{counted(len(results[q]), 'item')} scored {least:g} or more"
    best = results.best_scores[q]
    found = "nothing was scored" if best is None else f"the best score is {best:.2f}"
    return f"no scored item reaches {least:g}: {found}"


def _show_hit(rank: int, hit: Hit) -> None:
    """Print two lines: rank, score, id and round, if any; then the beginning of the text."""
    exact = "" if hit.final_score == hit.score else f"(exact {hit.score:.2f})  "
    # Round a predicted score down to at most the score before it, so that the order stays visible.
    head = Text(f"{rank:3}  {hit.final_score:7.2f}  {exact}")
    if hit.predicted:
        head = Text(f"{rank:3}  predicted  ")
    head.append(visible(hit.id), style="cyan")
    if hit.calibrated is not None:
        head.append(f"  {hit.calibrated:.0%} relevant", style="dim")
    if hit.round:
        head.append(f"  round {hit.round}", style="dim")
    out.print(head, no_wrap=True, overflow="ellipsis")
    body = hit.text.removeprefix(f"{hit.title}\n")
    said = hit.text if body == hit.text else f"{hit.title}: {body}"
    text = Text(" " * 14 + visible(" ".join(said.split())))
    out.print(text, no_wrap=True, overflow="ellipsis", soft_wrap=False)


def _explain(trace: list[Hit]) -> None:
    """Print each round: the picked items with their predicted and exact scores."""
    table = Table(box=None, header_style="dim", padding=(0, 1))
    for name in ("round", "predicted", "exact"):
        table.add_column(name, justify="right")
    table.add_column("by")
    table.add_column("id")
    previous, best = 0, float("-inf")
    for hit in trace:
        std = "" if hit.std is None else f" +- {hit.std:.3f}"
        table.add_row(
            str(hit.round) if hit.round != previous else "",
            "-" if hit.approx is None else f"{hit.approx:.3f}{std}",
            f"{hit.score:.3f}",
            hit.source,
            Text(visible(hit.id)),
            style="bold" if hit.score > best else None,
        )
        previous, best = hit.round, max(best, hit.score)
    out.print(table)
    out.print(
        Text("bold: the best so far; in round 1 'predicted' is the retriever's own score\n", "dim")
    )
