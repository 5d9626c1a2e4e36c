"""What a sweep tries, in a small TOML file: methods x settings x budgets x seeds x matrices."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

from crossknn.errors import InputError, SpecError, nearest
from crossknn.evaluation.task import LABELLED
from crossknn.files import read_given
from crossknn.methods import Method, parse_method
from crossknn.spec import parse

Value: TypeAlias = bool | int | float | str

COLUMNS = (
    *("data", "items", "method", "spec", "chosen", "anchors", "budget", "seed", "k", "n_queries"),
    *("recall", "ci_low", "ci_high", "calls", "index_calls", "error", "seeds", "failed"),
    *("difference", "low", "high", "p_value", "seconds"),
)
"""Columns of the tables: no setting, which has a column too, can have these names."""

LISTS = {
    **dict.fromkeys(("matrices", "methods", "measures")),
    **{"budgets": 1, "k": 1, "seeds": 0, "anchors": 1},
}
"""Keys with lists: of texts, or of whole numbers from the lowest that has a meaning."""

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
        measures: The task's own, of judged queries; see `crossknn.evaluation.task`.
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
        for name, lowest in LISTS.items():
            values = getattr(self, name)
            _check_list(name, values, lowest)
            if not values and name not in ("anchors", "measures"):
                raise InputError(f"an empty sweep: {name} names nothing")
        if self.queries is not None:
            _check_list("queries", (self.queries,), 1)
        for name in ("redraw", "choose"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"{name} is {getattr(self, name)!r}; it must be true or false")
        for name, values in self.grid.items():
            _check_list(f"grid.{name}", values)
            if not values:
                raise InputError(f"grid.{name} has no values")
            if name in COLUMNS:
                raise InputError(
                    f"grid.{name}: the tables have a column {name!r} already; call the setting "
                    "something else, here and in the methods' {...}"
                )
        if len({path.stem for path in self.matrices}) < len(self.matrices):
            raise InputError("two matrices have one name, which tables show: rename a file")
        self._check_baseline(self.settings())

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

    def _check_baseline(self, settings: Sequence[Setting]) -> None:
        name = self.baseline
        several = {s.template for s in settings if s.values} if self.choose else set()
        names = {s.template for s in settings}
        names |= {s.spec for s in settings if s.template not in several}
        if name is not None and name not in names:
            hint = nearest(str(name), names)
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
    return Setting(template=template, spec=str(parsed), values=values, method=parse_method(parsed))


def read_sweep(path: str | Path) -> Sweep:
    """The sweep of a TOML file; matrices are looked for beside it.

    Raises `InputError` with the file's name for whatever is wrong with it.
    """
    path = Path(path)
    try:
        table = tomllib.loads(read_given(path).decode("utf-8-sig"))
    except InputError:
        raise
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{path} is not TOML: {error}") from None
    try:
        return Sweep(**_values(table, path.parent))
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from None
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _values(table: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Arguments of `Sweep`, lists as tuples; `InputError` for keys that it lacks or does not know."""
    known = {f.name: f for f in fields(Sweep)}
    if unknown := [name for name in table if name not in known]:
        raise InputError(f"unknown key {unknown[0]!r}: {nearest(unknown[0], known)}")
    for name in ("matrices", "methods"):
        if name not in table:
            raise InputError(f"{name} is missing: give {name} = [...]")
    values = {name: _plain(value) for name, value in table.items()}
    if not isinstance(values.get("grid", {}), dict):
        raise InputError(f"grid is {table['grid']!r}; it must be a table, [grid]")
    _check_list("matrices", values["matrices"])
    values["matrices"] = tuple(folder / str(name) for name in values["matrices"])
    return values


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(of) for name, of in value.items()}
    return tuple(value) if isinstance(value, list) else value


def _check_list(name: str, values: Any, lowest: int | None = None) -> None:
    """`InputError` unless these are different texts or numbers, whole ones from `lowest` if given."""
    if not isinstance(values, tuple):
        raise InputError(f"{name} is {values!r}; it must be a list, [...]")
    for value in values:
        if lowest is not None and (type(value) is not int or value < lowest):
            raise InputError(f"{name} has {value!r}; it must be a whole number from {lowest}")
        if lowest is None and not isinstance(value, Value if "grid." in name else str | Path):
            raise InputError(f"{name} has {value!r}; it must be text")
        if values.count(value) > 1:
            raise InputError(f"{name} has {str(value)!r} twice")


def _text(value: Value) -> str:
    """A value as it stands in a spec."""
    return str(value).lower() if isinstance(value, bool) else str(value)
