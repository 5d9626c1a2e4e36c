"""Frozen values from TOML files, with every name and type checked."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from crossknn.errors import InputError, nearest

T = TypeVar("T")
# Hub names, or folders relative to the settings file.
_MODELS = ("encoder", "teacher", "retriever")


def read_settings(
    path: str | Path,
    kind: type[T],
    *,
    relative_to: Path | None = None,
    given: Mapping[str, str] | None = None,
) -> T:
    """Settings of `kind` from a TOML file, sections as fields, folders relative to the file.

    `relative_to` is another folder that they are relative to. `given` are settings that the file
    may leave out, and may not contradict.

    Raises InputError naming the file and the setting for what is unknown, missing or of another
    type.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"there is no settings file {path}")
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not a TOML file: {error}") from None
    for name, value in (given or {}).items():
        if content.setdefault(name, value) != value:
            raise InputError(f"{path}: {name} is {content[name]!r}, where {value!r} is asked for")
    return as_settings(content, kind, path if relative_to is None else relative_to / path.name)


def as_settings(
    content: Mapping[str, Any], kind: type[T], path: Path, default: T | None = None
) -> T:
    """A mapping as settings of `kind`; `path` is where it came from.

    What it leaves out is as in `default`, by default that of `kind`.
    """
    known = {entry.name: entry for entry in fields(kind)}  # type: ignore[arg-type]
    types = get_type_hints(kind)
    values: dict[str, Any] = {}
    for name, value in content.items():
        if name not in known:
            raise InputError(f"{path}: there is no setting {name!r} ({nearest(name, known)})")
        values[name] = _value(value, types[name], name, path, known[name].default)
    try:
        return kind(**values) if default is None else replace(default, **values)  # type: ignore[type-var]
    except TypeError:
        absent = [n for n in known if n not in values and _required(known[n])]
        raise InputError(f"{path}: the setting {absent[0]!r} is missing") from None
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _required(entry: Any) -> bool:
    return entry.default is MISSING and entry.default_factory is MISSING


def _value(value: Any, wanted: Any, name: str, path: Path, default: Any = MISSING) -> Any:
    if is_dataclass(wanted):
        if not isinstance(value, dict):
            raise InputError(f"{path}: {name} must be a section, [{name}]")
        section: Any = wanted
        return as_settings(value, section, path, None if default is MISSING else default)
    options = get_args(wanted) if get_origin(wanted) in (UnionType,) else (wanted,)
    for option in options:
        if option is Path and isinstance(value, str):
            return (path.parent / Path(value).expanduser()).resolve()
        if get_origin(option) is Literal:
            if value in get_args(option):
                return value
            raise InputError(
                f"{path}: {name} is {value!r} ({nearest(str(value), get_args(option))})"
            )
        if get_origin(option) is tuple and isinstance(value, list):
            return tuple(_value(entry, get_args(option)[0], name, path) for entry in value)
        if get_origin(option) is not None:
            if isinstance(value, dict) and get_origin(option) is not tuple:
                return value
        elif option is float and isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        elif option is str and name in _MODELS and (path.parent / str(value)).is_dir():
            return str((path.parent / str(value)).resolve())
        elif option is not type(None) and type(value) is option:
            return value
    raise InputError(f"{path}: {name} is {value!r}, which is not {_spelled(wanted)}")


def _spelled(wanted: Any) -> str:
    if get_origin(wanted) is UnionType:
        options = [option for option in get_args(wanted) if option is not type(None)]
        return " or ".join(_spelled(option) for option in options)
    names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    names |= {Path: "a folder", tuple: "a list"}
    return names.get(get_origin(wanted) or wanted, str(wanted))
