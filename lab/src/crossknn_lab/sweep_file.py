"""What a sweep tries, in a small TOML file: methods x settings x budgets x seeds x matrices."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

from crossknn.errors import InputError, SpecError, nearest
from crossknn.evaluation.task import LABELLED
from crossknn.methods import Method, method
from crossknn.spec import parse

Value: TypeAlias = bool | int | float | str

COLUMNS = (
    *("data", "items", "method", "spec", "chosen", "anchors", "budget", "seed", "k", "n_queries"),
    *("recall", "ci_low", "ci_high", "calls", "index_calls", "error", "seeds", "failed"),
    *("difference", "low", "high", "p_value", "seconds"),
)
"""Columns of the tables: no setting can have these names, for it has a column, too."""

_PLACEHOLDER = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A method with its placeholders filled: `template` as the file has it, `spec` as it is run."""

    template: str
    spec: str
    values: Mapping[str, Value]
    method: Method


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Every method, with every combination of the `grid` values it names, on every matrix.

    Attributes:
        matrices: Files of stored scores; a matrix is called by its file's name.
        methods: Specs; `{name}` in one stands for each value of `grid[name]`.
        budgets, k, seeds: Calls per query, neighbours, and seeds of everything random.
        anchors: How many of the anchor queries are used (the papers' |Q_train|); all by default.
        queries: Only the first so many test queries.
        redraw: Which queries are anchors and tests, and which items are the fixed anchor items, is
            drawn by the seed, in the file's proportions.
        measures: The task's own, of queries with labels; see `crossknn.evaluation.task`.
        choose: A method with several settings is run with the one that is best on dev queries, for
            each budget.
        baseline: One of the methods: the means say how much better than it each other one is.

    Raises `InputError` for an empty sweep, wrong values, and placeholders without values.
    """

    matrices: tuple[Path, ...]
    methods: tuple[str, ...]
    grid: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    budgets: tuple[int, ...] = (50, 100, 200, 500)
    k: tuple[int, ...] = (1, 10, 100)
    seeds: tuple[int, ...] = (0,)
    anchors: tuple[int, ...] = ()
    queries: int | None = None
    measures: tuple[str, ...] = LABELLED
    redraw: bool = False
    choose: bool = False
    baseline: str | None = None

    def __post_init__(self) -> None:
        for name in ("matrices", "methods", "budgets", "k", "seeds"):
            if not getattr(self, name):
                raise InputError(f"an empty sweep: {name} names nothing")
        for name, lowest in (("budgets", 1), ("k", 1), ("seeds", 0), ("anchors", 1)):
            _whole(name, getattr(self, name), lowest)
        if self.queries is not None:
            _whole("queries", [self.queries], 1)
        for name in ("matrices", "methods", "budgets", "k", "seeds", "anchors", "measures"):
            _once(name, getattr(self, name))
        for name, values in self.grid.items():
            if not values:
                raise InputError(f"grid.{name} has no values")
            if name in COLUMNS:
                raise InputError(
                    f"grid.{name}: the tables have a column {name!r} already; call the setting "
                    "something else, here and in the methods' {...}"
                )
            _once(f"grid.{name}", values)
        names = [path.stem for path in self.matrices]
        if twice := [name for name in names if names.count(name) > 1]:
            raise InputError(
                f"two matrices are called {twice[0]!r}, and the table could not tell them apart: "
                "rename one of the files"
            )
        settings = self.settings()
        if self.baseline is not None:
            self._check_baseline(self.baseline, settings)

    def settings(self) -> list[Setting]:
        """Every method with every combination of its placeholders' values, in the file's order."""
        found = [setting for template in self.methods for setting in self._filled(template)]
        used = {name for setting in found for name in setting.values}
        if idle := [name for name in self.grid if name not in used]:
            raise InputError(
                f"grid.{idle[0]} is used by no method: write {{{idle[0]}}} in one, or leave it out "
                "(what is no setting of a method stands above [grid])"
            )
        return found

    @property
    def chooses(self) -> bool:
        """Whether there is a method with several settings to choose from."""
        return self.choose and len(self.settings()) > len(self.one_each())

    def one_each(self) -> list[Setting]:
        """A setting of each method."""
        return list({setting.template: setting for setting in self.settings()}.values())

    def budgets_of(self, setting: Setting) -> Sequence[int]:
        """Calls per query: 0 alone for a method that makes none."""
        return self.budgets if setting.method.calls else (0,)

    def _check_baseline(self, name: str, settings: Sequence[Setting]) -> None:
        templates = [s.template for s in settings]
        sure = {s.spec for s in settings if not self.choose or templates.count(s.template) == 1}
        if name not in {*sure, *templates}:
            hint = nearest(name, {*sure, *templates})
            raise InputError(f"baseline {name!r} is none of the methods that are tested: {hint}")
        fit = [s.spec for s in settings if name in (s.template, s.spec)]
        if len(fit) > 1 and not self.choose:
            raise InputError(f"baseline {name!r} is any of {'; '.join(fit)}: name one of these")

    def _filled(self, template: str) -> list[Setting]:
        names = list(dict.fromkeys(_PLACEHOLDER.findall(template)))
        for name in names:
            if name not in self.grid:
                hint = nearest(name, self.grid) if self.grid else f"add {name} = [...] to [grid]"
                raise InputError(f"no values for {{{name}}} in the method {template!r}: {hint}")
        combinations = product(*(self.grid[name] for name in names))
        return [_setting(template, dict(zip(names, c, strict=True))) for c in combinations]


def _setting(template: str, values: Mapping[str, Value]) -> Setting:
    parsed = parse(_PLACEHOLDER.sub(lambda match: _text(values[match[1]]), template))
    return Setting(template=template, spec=str(parsed), values=values, method=method(parsed))


def read_sweep(path: str | Path) -> Sweep:
    """The sweep of a TOML file; matrices are looked for beside it.

    Raises `InputError` with the file's name for whatever is wrong with it.
    """
    path = Path(path)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder; give the .toml file of a sweep") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path} is not TOML: {error}") from None
    try:
        return Sweep(**_values(table, path.parent))
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from None
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _values(table: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Arguments of `Sweep`, lists as tuples; `InputError` for what has another type."""
    known = {f.name: f for f in fields(Sweep)}
    for name in table:
        if name not in known:
            raise InputError(f"unknown key {name!r}: {nearest(name, known)}")
    for name, f in known.items():
        if f.default is MISSING and f.default_factory is MISSING and name not in table:
            raise InputError(f"{name} is missing: give {name} = [...]")
    values: dict[str, Any] = {}
    for name, value in table.items():
        if name == "grid":
            _must(isinstance(value, dict), name, value, "a table, [grid]")
            values[name] = {key: _listed(f"grid.{key}", of, Value) for key, of in value.items()}
        elif name in ("redraw", "choose"):
            _must(isinstance(value, bool), name, value, "true or false")
            values[name] = value
        elif name == "baseline":
            _must(isinstance(value, str), name, value, "text")
            values[name] = value
        elif name == "queries":
            values[name] = value
        else:
            kind = str if name in ("matrices", "methods", "measures") else int
            values[name] = _listed(name, value, kind)
    values["matrices"] = tuple(folder / name for name in values["matrices"])
    return values


def _listed(name: str, value: Any, kind: Any) -> tuple[Any, ...]:
    _must(isinstance(value, list), name, value, "a list, [...]")
    for entry in value:
        if kind is not int:  # numbers are checked with their lowest value
            _must(isinstance(entry, kind), name, entry, "text" if kind is str else "a value")
    return tuple(value)


def _must(right: bool, name: str, value: Any, expected: str) -> None:
    if not right:
        raise InputError(f"{name} is {value!r}; it must be {expected}")


def _whole(name: str, values: Sequence[Any], lowest: int) -> None:
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
            raise InputError(f"{name} has {value!r}; it must be a whole number from {lowest}")


def _once(name: str, values: Sequence[Any]) -> None:
    if twice := [value for value in values if values.count(value) > 1]:
        raise InputError(f"{name} has {str(twice[0])!r} twice")


def _text(value: Value) -> str:
    """A value as it stands in a spec."""
    return str(value).lower() if isinstance(value, bool) else str(value)
