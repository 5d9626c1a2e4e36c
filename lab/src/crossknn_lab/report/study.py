"""The runs behind a report: stored matrices, a preset, and a folder that keeps all that is found.

    study = Study([Path("scifact.npz")], Path("work"), SMALL)
    study.run(["methods", "rivals"])
    study.table("methods").group("rerank(retriever=dense)", data="scifact", budget=100).mean(10)

Sweeps share one folder of cells, so that no search is made twice; what is computed from the scores
themselves is kept beside it (`once`). Whoever is killed goes on from there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeAlias

from threadpoolctl import threadpool_limits

from crossknn.errors import InputError
from crossknn.files import write_file
from crossknn.index.stored import StoredMatrix
from crossknn.types import Progress
from crossknn_lab.report.data import Data
from crossknn_lab.report.presets import Preset
from crossknn_lab.sweep import run_sweep
from crossknn_lab.sweep_cells import code
from crossknn_lab.sweep_file import Sweep
from crossknn_lab.sweep_output import write_table
from crossknn_lab.sweep_plan import Row, dev_rows, table_rows
from crossknn_lab.table import CELLS, Group, Table

FORMAT = 1
"""Of what `once` keeps: what another format has kept is computed again."""

SWEEPS, TABLES, ANALYSES = "sweeps", "tables", "analyses"

Value: TypeAlias = Any
"""JSON: numbers, texts, lists, and mappings with texts as keys."""


Plans: TypeAlias = Callable[[Preset, Data], Mapping[str, Any] | None]
"""Of a sweep: what it tries on a matrix, as arguments of `Sweep`; None for nothing."""


@dataclass(kw_only=True)
class Spent:
    """What a run has done: cells searched and kept from before, seconds, and what failed."""

    searched: int = 0
    kept: int = 0
    older: int = 0
    seconds: float = 0.0
    failed: dict[str, int] = field(default_factory=dict)


class Study:
    """Matrices, searched and analysed as far as exhibits ask for it.

    Args:
        matrices: Files of stored scores; the preset may use the first of them only.
        folder: For everything that is found.
        preset: How much is tried.
        plans: The sweeps by name.
        workers: Processes that search.

    `k` and `budgets` are those of the preset that all matrices have room for. Raises InputError
    for a file that is no matrix, and if none is given.
    """

    def __init__(
        self,
        matrices: Sequence[Path],
        folder: Path,
        preset: Preset,
        plans: Mapping[str, Plans],
        *,
        workers: int = 1,
    ) -> None:
        if not matrices:
            raise InputError("there is no matrix: give at least one .npz file of stored scores")
        if workers < 1:
            raise InputError(f"workers is {workers}; it must be 1 or more")
        self.folder, self.preset, self.plans, self.workers = folder, preset, plans, workers
        self.notes: list[str] = []
        used = matrices[: preset.matrices]
        if len(used) < len(matrices):
            rest = ", ".join(path.stem for path in matrices[len(used) :])
            self.note(f"the preset {preset.name} uses {len(used)} matrices: {rest} left out")
        self.data = [Data.read(path) for path in used]
        smallest = min(data.file.n_items for data in self.data)
        self.k = self._fitting("k", preset.k, smallest)
        self.budgets = self._fitting("budget", preset.budgets, smallest)
        self.spent = Spent()
        self._tables: dict[str, Table] = {}
        self._groups: dict[str, list[Group]] = {}

    def note(self, sentence: str) -> None:
        """Something that a reader must know; each is said once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def sweeps(self, name: str) -> list[Sweep]:
        """The sweeps of that name: matrices on which the same is tried are together."""
        groups: dict[str, tuple[Mapping[str, Any], list[Path]]] = {}
        for data in self.data:
            tried = self.plans[name](self.preset, data)
            if tried is not None:
                groups.setdefault(repr(tried), (tried, []))[1].append(data.file.path)
        return [
            Sweep(**self._common() | {"matrices": tuple(paths)} | dict(tried))
            for tried, paths in groups.values()
        ]

    def run(self, names: Iterable[str], progress: Progress | None = None) -> None:
        """Search what the sweeps of these names lack, and write their tables."""
        planned = {name: self.sweeps(name) for name in dict.fromkeys(names)}
        sizes = {name: [self._size(s) for s in sweeps] for name, sweeps in planned.items()}
        total, done = sum(map(sum, sizes.values())), 0
        began = time.perf_counter()
        for name, sweeps in planned.items():
            tables = []
            for sweep, size in zip(sweeps, sizes[name], strict=True):
                tables.append(self._searched(sweep, _later(progress, done, total)))
                done += size
            if tables:
                self._tables[name] = table = together(tables)
                self._write(name, table)
        self.spent.seconds += time.perf_counter() - began

    def table(self, name: str) -> Table | None:
        """The table of a sweep, searched now if it was not; None if no matrix is fit for it."""
        if name not in self._tables:
            self.run([name])
        return self._tables.get(name)

    def groups(self, name: str) -> list[Group]:
        """What the sweep of that name found, seeds together; none if no matrix is fit for it."""
        if name not in self._groups:
            table = self.table(name)
            self._groups[name] = [] if table is None else table.groups()
        return self._groups[name]

    def matrix(self, data: Data) -> StoredMatrix:
        """The scores themselves."""
        return _loaded(data.file.path)

    def once(self, name: str, data: Data, of: Callable[[], Value], **options: Any) -> Value:
        """What `of` computes from a matrix: kept by `name`, the file's content and `options`.

        Other source files of methods and search compute it again: it takes minutes, not hours.
        """
        made_of = json.dumps(
            [FORMAT, code(), name, data.file.digest, options], sort_keys=True, default=str
        )
        key = blake2b(made_of.encode(), digest_size=8).hexdigest()
        path = self.folder / ANALYSES / f"{name}-{data.name}-{key}.json"
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            path.parent.mkdir(parents=True, exist_ok=True)
        with threadpool_limits(1):  # as in a sweep: sums do not depend on the machine's cores
            found = of()
        text = json.dumps(found, ensure_ascii=False)
        write_file(path, text.encode())
        return json.loads(text)

    def _common(self) -> dict[str, Any]:
        return {
            "budgets": self.budgets,
            "k": self.k,
            "seeds": self.preset.seeds,
            "queries": self.preset.queries,
        }

    def _searched(self, sweep: Sweep, progress: Progress | None) -> Table:
        found = run_sweep(sweep, self.folder / SWEEPS, workers=self.workers, progress=progress)
        self.spent.searched += found.searched
        self.spent.kept += found.kept
        self.spent.older += found.older
        self.spent.failed |= found.failed
        for note in found.table.notes:
            self.note(note)
        return found.table

    def rows(self, sweep: Sweep) -> list[Row]:
        """All dev rows, and a row for what each method that chooses will have chosen."""
        files = [data.file for data in self.data if data.file.path in sweep.matrices]
        first = dev_rows(sweep, files)
        rows = table_rows(sweep, files, {})
        groups = {row.group: row for row in rows} if first else {}
        return [*first, *(groups.values() if first else rows)]

    def _size(self, sweep: Sweep) -> int:
        return len({row.cell.key for row in self.rows(sweep)})

    def _write(self, name: str, table: Table) -> None:
        folder = self.folder / TABLES / name
        folder.mkdir(parents=True, exist_ok=True)
        write_table(table, folder)
        if not (folder / CELLS).exists():
            with suppress(OSError):  # so that the folder can be read as a sweep
                (folder / CELLS).symlink_to(Path("..") / ".." / SWEEPS / CELLS)

    def _fitting(self, what: str, values: Sequence[int], items: int) -> tuple[int, ...]:
        fit = tuple(value for value in values if value <= items // 2)
        if not fit:
            raise InputError(
                f"the smallest matrix has {items} items, too few for any {what} of the preset "
                f"{self.preset.name}: leave out those with fewer than {2 * min(values)}"
            )
        if len(fit) < len(values):
            self.note(
                f"the smallest matrix has {items} items: {what} "
                f"{', '.join(map(str, values[len(fit) :]))} left out"
            )
        return fit


def together(tables: Sequence[Table]) -> Table:
    """Tables of the same k as one."""
    return replace(
        tables[0],
        entries=tuple(entry for table in tables for entry in table.entries),
        dev=tuple(entry for table in tables for entry in table.dev),
        notes=tuple(dict.fromkeys(note for table in tables for note in table.notes)),
    )


def _later(progress: Progress | None, before: int, total: int) -> Progress | None:
    """Progress of a part of it all."""
    if progress is None:
        return None
    return lambda done, _: progress(before + done, total)


@lru_cache(maxsize=1)
def _loaded(path: Path) -> StoredMatrix:
    return StoredMatrix.load(path)
