"""The rows of a sweep's table and the cells they are made of, before anything is searched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from crossknn.errors import InputError
from crossknn_lab.choose import highest, mean_recall
from crossknn_lab.sweep_cells import Cell, Found
from crossknn_lab.sweep_data import MatrixFile, own_anchors
from crossknn_lab.sweep_file import Setting, Sweep

Group: TypeAlias = tuple[str, str, int, int, int]
"""A matrix, a method of the file, anchors, a budget and a seed."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A setting of a method on a matrix, at a budget, by a seed; `anchors` as the sweep has them.

    A dev row's cell has fewer anchors where dev queries had to be held out of these.
    """

    matrix: MatrixFile
    setting: Setting
    anchors: int
    cell: Cell

    @property
    def group(self) -> Group:
        """What rows that differ in the setting only have in common."""
        cell = self.cell
        return self.matrix.name, self.setting.template, self.anchors, cell.budget, cell.seed


def read_matrices(sweep: Sweep) -> list[MatrixFile]:
    """The files of a sweep; `InputError` where it does not fit one of them."""
    files = [MatrixFile.read(path) for path in sweep.matrices]
    for file in files:
        if max(sweep.k) > file.n_items:
            raise InputError(
                f"k is {max(sweep.k)}, but {file.name} has {file.n_items} items: take a smaller k, "
                "or sweep the larger matrices by themselves"
            )
        if chooses(sweep) and not file.n_dev:
            raise InputError(
                f"{file.name} has {file.n_anchors} anchor queries: choose holds a third of them "
                "out as dev queries, so that 2 are needed at least"
            )
        fewer = any(count < file.n_anchors for count in sweep.anchors)
        if file.fitted and (sweep.redraw or fewer or chooses(sweep)):
            raise InputError(f"{file.name} cannot be divided: {own_anchors(file.fitted)}")
        if sweep.anchors and min(sweep.anchors) > file.n_anchors:
            raise InputError(
                f"nothing is left of {file.name}: it has {file.n_anchors} anchor queries, and "
                f"anchors begin at {min(sweep.anchors)}"
            )
    return files


def notes(sweep: Sweep, files: Sequence[MatrixFile]) -> list[str]:
    """What of a sweep is otherwise than its file says, for want of data."""
    found = []
    settings = _one_each(sweep) if sweep.choose else sweep.settings()
    searches = sum(len(_budgets(sweep, setting)) for setting in settings) * len(sweep.seeds)
    for file in files:
        if beyond := [count for count in sweep.anchors if count > file.n_anchors]:
            fewer = searches * len(beyond)
            found.append(
                f"{file.name} has {file.n_anchors} anchor queries: anchors = "
                f"{', '.join(map(str, beyond))} left out ({fewer} search{'es' * (fewer > 1)})"
            )
        if sweep.queries is not None and sweep.queries > file.n_tests:
            found.append(
                f"{file.name} has {file.n_tests} test queries, not {sweep.queries}: all of them "
                "are searched"
            )
        if exact := [budget for budget in sweep.budgets if budget >= file.n_items]:
            found.append(
                f"{file.name} has {file.n_items} items: a budget of "
                f"{', '.join(map(str, exact))} is exact search"
            )
        if chooses(sweep):
            held = file.n_dev if sweep.queries is None else min(sweep.queries, file.n_dev)
            found.append(f"{file.name}: settings are chosen on {held} of its anchor queries")
    return found


def table_rows(sweep: Sweep, files: Sequence[MatrixFile], chosen: Mapping[Group, Row]) -> list[Row]:
    """The table's rows in its order; of several settings, the one of the `chosen` dev row."""
    rows = _rows(sweep, files, sweep.settings(), dev=False)
    if not chosen:
        return list(rows)
    kept = [
        row
        for row in rows
        if row.group not in chosen or chosen[row.group].setting.spec == row.setting.spec
    ]
    in_order = _rows(sweep, files, _one_each(sweep), dev=False)
    place = {row.group: i for i, row in enumerate(in_order)}
    return sorted(kept, key=lambda row: place[row.group])


def dev_rows(sweep: Sweep, files: Sequence[MatrixFile]) -> list[Row]:
    """A row of each setting that is to be chosen from."""
    if not sweep.choose:
        return []
    settings = sweep.settings()
    several = [s for s in settings if sum(o.template == s.template for o in settings) > 1]
    return list(_rows(sweep, files, several, dev=True))


def best(rows: Sequence[Row], found: Mapping[str, Found | str]) -> dict[Group, Row]:
    """Of each method at a budget, the setting with the highest recall, mean over k and queries.

    Of equals the first; the first, too, where none could be searched.
    """
    results = [(row, found[row.cell.key]) for row in rows]
    return highest(
        (row.group, row, -1.0 if isinstance(result, str) else mean_recall(result.outcome.recall))
        for row, result in results
    )


def chooses(sweep: Sweep) -> bool:
    """Whether there is a method with several settings to choose from."""
    return sweep.choose and len(sweep.settings()) > len(_one_each(sweep))


def _rows(
    sweep: Sweep, files: Sequence[MatrixFile], settings: Sequence[Setting], *, dev: bool
) -> Iterator[Row]:
    for file in files:
        limit = file.n_dev if dev else file.n_tests
        known = file.n_anchors - (file.n_dev if dev else 0)
        for setting in settings:
            for anchors in _anchors(sweep, file):
                for budget in _budgets(sweep, setting):
                    for seed in sweep.seeds:
                        cell = Cell(
                            path=file.path,
                            digest=file.digest,
                            method=setting.method,
                            budget=budget,
                            seed=seed,
                            anchors=min(anchors, known),
                            queries=limit if sweep.queries is None else min(sweep.queries, limit),
                            k=sweep.k,
                            measures=() if dev else sweep.measures,
                            draw=sweep.redraw,
                            dev=dev,
                        )
                        yield Row(matrix=file, setting=setting, anchors=anchors, cell=cell)


def _anchors(sweep: Sweep, file: MatrixFile) -> list[int]:
    wanted = sweep.anchors or (file.n_anchors,)
    return [count for count in wanted if count <= file.n_anchors]


def _budgets(sweep: Sweep, setting: Setting) -> Sequence[int]:
    return sweep.budgets if setting.method.calls else (0,)


def _one_each(sweep: Sweep) -> list[Setting]:
    return list({setting.template: setting for setting in sweep.settings()}.values())
