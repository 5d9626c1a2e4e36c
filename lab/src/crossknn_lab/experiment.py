"""The runs behind a report: stored matrices, a preset, and a folder that keeps all that is found.

    experiment = Experiment([Path("scifact.npz")], Path("work"), preset("small"))
    experiment.run(["methods", "rivals"])
    experiment.table("methods").group("rerank(retriever=dense)", data="scifact", budget=100).mean(10)

What the sweeps try is in `sweeps.toml`. They share one folder of cells, so that no search is made
twice; what is computed from the scores themselves is kept beside it (`once`). Whoever is killed goes
on from there.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from importlib.resources import files
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from crossknn.errors import InputError, nearest
from crossknn.files import is_file, make_folder, parse_json, read_file, write_file
from crossknn.types import Progress
from crossknn_lab.cells import MatrixFile, code
from crossknn_lab.stored import StoredMatrix
from crossknn_lab.sweep import run_sweep
from crossknn_lab.sweep_file import Sweep
from crossknn_lab.table import CELLS, Group, Table, write_table

FORMAT = 2
"""Of what `once` keeps: what another format has kept is computed again."""

SWEEPS, TABLES, ANALYSES = "sweeps", "tables", "analyses"

PAPERS_ANCHORS = (100, 500, 2000)
"""Numbers of anchor queries in the papers (|Q_train|)."""

READS_ANCHORS = ("anncur", "adacur", "fixeditem", "itemcur", "kriging")


def _toml(name: str) -> dict[str, Any]:
    return tomllib.loads(files("crossknn_lab").joinpath(name).read_text(encoding="utf-8"))


PLANS: Mapping[str, Mapping[str, Any]] = _toml("sweeps.toml")["sweeps"]
"""The sweeps by name: what each tries."""

PAPERS: Mapping[str, Any] = _toml("papers.toml")
"""Papers, their figures, and the questions of ours."""


@dataclass(frozen=True, kw_only=True)
class Preset:
    """How much of everything a report tries: the lists of `sweeps.toml`."""

    name: str
    budgets: tuple[int, ...]
    k: tuple[int, ...]
    rounds: tuple[int, ...]
    seeds: tuple[int, ...]
    shares: tuple[float, ...]
    blends: tuple[float, ...]
    settings: bool
    sizes: int
    draws: int
    queries: int | None = None
    matrices: int | None = None


def preset(name: str) -> Preset:
    """The preset of that name; InputError if there is none."""
    known = _toml("sweeps.toml")["presets"]
    if name not in known:
        raise InputError(f"there is no preset {name!r}: {nearest(name, known)}")
    values: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in known[name].items()
    }
    return Preset(name=name, **values)


@dataclass(kw_only=True)
class Spent:
    """What a run has done: cells searched and kept from before, and what failed."""

    searched: int = 0
    kept: int = 0
    failed: dict[str, int] = field(default_factory=dict)


class Experiment:
    """Matrices (files of stored scores), searched and analysed as far as figures ask for it; the
    results are kept in `folder`. `k` and `budgets` are those of the preset that all matrices have
    room for."""

    def __init__(
        self, matrices: Sequence[Path], folder: Path, preset: Preset, *, workers: int = 1
    ) -> None:
        if not matrices:
            raise InputError("there is no matrix: give at least one .npz file of stored scores")
        self.folder, self.preset, self.workers = folder, preset, workers
        self.notes: list[str] = []
        used = matrices[: preset.matrices]
        if len(used) < len(matrices):
            rest = ", ".join(path.stem for path in matrices[len(used) :])
            self.note(f"the preset {preset.name} uses {len(used)} matrices: {rest} left out")
        self.data = [MatrixFile.read(path) for path in used]
        smallest = min(data.n_items for data in self.data)
        self.k = self._fitting("k", preset.k, smallest)
        self.budgets = self._fitting("budget", preset.budgets, smallest)
        self.spent = Spent()
        self._tables: dict[str, Table] = {}

    def note(self, sentence: str) -> None:
        """Something that a reader must know; each is said once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def sweeps(self, name: str) -> list[Sweep]:
        """The sweeps of that name: matrices on which the same is tried are together."""
        groups: dict[str, tuple[Mapping[str, Any], list[Path]]] = {}
        for data in self.data:
            tried = self._plan(name, data)
            if tried is not None:
                groups.setdefault(repr(tried), (tried, []))[1].append(data.path)
        return [Sweep(matrices=tuple(paths), **tried) for tried, paths in groups.values()]

    def _plan(self, name: str, data: MatrixFile) -> dict[str, Any] | None:
        """What a sweep tries on a matrix, as arguments of `Sweep`; None for nothing."""
        plan, stages = PLANS[name], retrievers_of(data)
        has = {
            "dense": "dense" in data.vectors,
            "items_by_items": data.items_by_items,
            "second_encoder": len(data.vectors) > 1,
        }
        choose = plan.get("choose", False)
        if not all(has[need] for need in plan.get("needs", ())):
            return None
        if choose and (data.fitted or not data.n_dev or not stages):
            return None
        specs = asked_specs() if plan["methods"] == "questions" else plan["methods"]
        methods = tuple(spec for spec in specs if _fits(spec, data))
        if not methods:
            return None
        lists = {
            **vars(self.preset),
            "stages": [stage for stage in stages if stage != "bm25"],
            "last_stage": stages[-1:],
            "encoders": data.vectors,
            "masked": (0, *(k for k in self.preset.k if k <= data.n_items // 2)),
        }
        grid = plan.get("grid", {}) | ({} if self.preset.settings else plan.get("small_grid", {}))
        several = len(self.preset.seeds) > 1 and not data.fitted
        return {
            "methods": methods,
            "grid": {n: tuple(lists[v] if isinstance(v, str) else v) for n, v in grid.items()},
            "budgets": self.budgets,
            "k": self.k,
            "seeds": self.preset.seeds,
            "queries": self.preset.queries,
            "anchors": self.anchor_sizes(data) if plan.get("by_anchors") else (),
            "redraw": several and plan.get("redraw", True),
            "choose": choose,
            "baseline": plan.get("baseline"),
        }

    def anchor_sizes(self, data: MatrixFile) -> tuple[int, ...]:
        """The papers' |Q_train| as far as a matrix has them; else all its anchors and parts."""
        have = data.n_anchors
        if not have or data.fitted:
            return (have,) if have else ()
        known = [size for size in PAPERS_ANCHORS if size < have]
        sizes = sorted({*(known if len(known) > 1 else (have // 9, have // 3)), have})
        return tuple(size for size in sizes if size)[-self.preset.sizes :]

    def run(self, names: Iterable[str], progress: Progress | None = None) -> None:
        """Search what the sweeps of these names lack, and write their tables."""
        for name in dict.fromkeys(names):
            tables = [self._searched(sweep, progress) for sweep in self.sweeps(name)]
            if tables:
                self._tables[name] = table = together(tables)
                self._write(name, table)

    def table(self, name: str) -> Table | None:
        """The table of a sweep, searched now if it was not; None if no matrix is fit for it."""
        if name not in self._tables:
            self.run([name])
        return self._tables.get(name)

    def groups(self, name: str) -> list[Group]:
        """What the sweep of that name found, seeds together; none if no matrix is fit for it."""
        table = self.table(name)
        return [] if table is None else table.groups

    def matrix(self, data: MatrixFile) -> StoredMatrix:
        """The scores themselves."""
        return _loaded(data.path)

    def once(self, name: str, data: MatrixFile, compute: Callable[[], Any], **options: Any) -> Any:
        """What `compute` finds in a matrix (JSON): kept by `name`, the file's content and `options`.

        Other source files of methods and search compute it again: it takes minutes, not hours.
        """
        content = json.dumps(
            [FORMAT, code(), name, data.digest, options], sort_keys=True, default=str
        )
        key = blake2b(content.encode(), digest_size=8).hexdigest()
        path = self.folder / ANALYSES / f"{name}-{data.name}-{key}.json"
        try:
            return parse_json(read_file(self.folder, f"{ANALYSES}/{path.name}"))
        except InputError:
            raise
        except (FileNotFoundError, ValueError):
            self.folder.mkdir(parents=True, exist_ok=True)
            make_folder(path.parent)
        with threadpool_limits(1):  # as in a sweep: sums do not depend on the machine's cores
            text = json.dumps(compute(), ensure_ascii=False)
        write_file(path.parent, path.name, text.encode())
        return json.loads(text)

    def _searched(self, sweep: Sweep, progress: Progress | None) -> Table:
        done = run_sweep(sweep, self.folder / SWEEPS, workers=self.workers, progress=progress)
        self.spent.searched += done.searched
        self.spent.kept += done.kept
        self.spent.failed |= done.failed
        for note in done.table.notes:
            self.note(note)
        return done.table

    def _write(self, name: str, table: Table) -> None:
        folder = self.folder / TABLES / name
        folder.mkdir(parents=True, exist_ok=True)
        write_table(table, folder)
        make_folder(folder / CELLS)
        for entry in (*table.entries, *table.dev):  # so that the folder can be read as a sweep
            cell = f"{CELLS}/{entry.cell}.json"
            if not entry.error and not is_file(folder, cell):
                write_file(folder, cell, read_file(self.folder / SWEEPS, cell))

    def _fitting(self, what: str, values: Sequence[int], items: int) -> tuple[int, ...]:
        fit = tuple(value for value in values if value <= items // 2)
        if not fit:
            raise InputError(
                f"the smallest matrix has {items} items, too few for any {what} of the preset "
                f"{self.preset.name}: leave out those with fewer than {2 * min(values)}"
            )
        if len(fit) < len(values):
            left_out = ", ".join(map(str, values[len(fit) :]))
            self.note(f"the smallest matrix has {items} items: {what} {left_out} left out")
        return fit


def retrievers_of(data: MatrixFile) -> tuple[str, ...]:
    """Retrievers of a matrix, the dual encoder first; `hybrid` where there are several."""
    known = (*data.vectors, *data.retrievers)
    own = tuple(name for name in ("dense", "bm25") if name in known)
    return (*own, "hybrid") if len(own) > 1 else own


def asked_specs() -> tuple[str, ...]:
    """Every method that a question of `papers.toml` names."""
    asked = [figure for figure in PAPERS["figure"] if figure.get("kind") == "questions"]
    pairs = [pair for figure in asked for pair in figure["options"]["pairs"]]
    specs = [spec for _, *both in [*pairs, *PAPERS["in_short"]["pairs"]] for spec in both]
    return tuple(dict.fromkeys(specs))


def _fits(spec: str, data: MatrixFile) -> bool:
    """Whether a matrix has what a method's spec names."""
    known = {*retrievers_of(data), *data.vectors, "random", "oracle_topk", "oracle_softmax"}
    named = set(re.findall(r"(?:retriever|vectors)=(\w+)", spec))
    anchored = bool(data.n_anchors) or not spec.startswith(READS_ANCHORS)
    return anchored and named <= known


def together(tables: Sequence[Table]) -> Table:
    """Tables of the same k as one."""
    return replace(
        tables[0],
        entries=tuple(entry for table in tables for entry in table.entries),
        dev=tuple(entry for table in tables for entry in table.dev),
        notes=tuple(dict.fromkeys(note for table in tables for note in table.notes)),
    )


@lru_cache(maxsize=1)
def _loaded(path: Path) -> StoredMatrix:
    return StoredMatrix.load(path)
