"""What an exhibit is: a figure or table of a paper, and how it is made here or why it is not."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from crossknn.errors import InputError
from crossknn_lab.report.page import Block, Section
from crossknn_lab.report.study import Study

Build: TypeAlias = Callable[[Study], Sequence[Block | Section]]

CENTRED = (
    "ANNCUR and ADACUR subtract a centre from the scores first, which the papers' do not: "
    "docs/methods.md, Rules, says which and what it changes."
)
"""Said where a paper's exhibits first show CUR."""


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """One figure or table, or several of one kind.

    Attributes:
        paper: As `PAPERS` names it.
        label: `figure 3a`, `table 2`, `figures 10-24`.
        title: What it shows.
        here: What is shown here in its place, a sentence.
        sweeps: Names of the sweeps (`crossknn_lab.report.exhibits.sweeps`) that it is made of.
        build: From a study to what stands below the title; raises
            `InputError` where the matrices lack what it needs.
        elsewhere: Where it is made, if not by `build`, a sentence.
        why_not: Why it is not made, a sentence.
    """

    paper: str
    label: str
    title: str
    here: str = ""
    sweeps: tuple[str, ...] = ()
    build: Build | None = None
    elsewhere: str = ""
    why_not: str = ""

    def __post_init__(self) -> None:
        ways = (self.build is not None, bool(self.elsewhere), bool(self.why_not))
        if sum(ways) != 1 or bool(self.here) != ways[0]:
            raise ValueError(f"{self.name}: give `build` and `here`, or `elsewhere`, or `why_not`")

    @property
    def name(self) -> str:
        """Paper and label."""
        return f"{self.paper}, {self.label}"

    @property
    def covers(self) -> list[str]:
        """Every figure or table that it stands for.

        >>> Exhibit(paper="ADACUR", label="figures 9-11", title="", why_not="no").covers
        ['figure 9', 'figure 10', 'figure 11']
        """
        kind, _, numbers = self.label.partition(" ")
        found = []
        for part in numbers.split(" and "):
            ends = re.fullmatch(r"(\d+)-(\d+)", part)
            span = range(int(ends[1]), int(ends[2]) + 1) if ends else (part,)
            found += [f"{kind.removesuffix('s')} {number}" for number in span]
        return found

    def section(self, study: Study) -> Section:
        """What stands in the report: what is shown, and the pictures and tables.

        What it lacks is said in its place, and noted in the study.
        """
        head = f"{self.label[0].upper()}{self.label[1:]}: {self.title}"
        if self.build is None:
            return Section(title=head, blocks=[self.elsewhere or f"Not made: {self.why_not}"])
        try:
            made = list(self.build(study))
        except InputError as lacks:
            study.note(f"{self.name} is left out: {lacks}")
            return Section(title=head, blocks=[f"Left out here: {lacks}."])
        blocks = [block for block in made if not isinstance(block, Section)]
        below = [section for section in made if isinstance(section, Section)]
        return Section(title=head, blocks=[self.here, *blocks], sections=below)
