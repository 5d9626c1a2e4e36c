"""Arguments that are what they have to be: paths, and whole numbers."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from crossknn.errors import InputError

_SHOWN = 80


def as_path(value: object, what: str) -> Path:
    """The path that `what` is given as; `InputError` for what no file system can have."""
    if not isinstance(value, str | os.PathLike):
        raise InputError(f"{what} is {value!r:.{_SHOWN}}; give a path")
    text = os.fspath(value)
    if not isinstance(text, str) or "\0" in text:
        raise InputError(f"{what} is {text!r:.{_SHOWN}}, which cannot be a path")
    try:
        Path(text).exists()
    except (OSError, ValueError) as error:
        why = (getattr(error, "strerror", None) or str(error)).lower()
        raise InputError(f"{what} is {text!r:.{_SHOWN}}, which cannot be a path: {why}") from error
    return Path(text)


def as_count(value: object, name: str, least: int = 1) -> int:
    """A whole number of at least `least`; `InputError` otherwise."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool):
        raise InputError(f"{name} is {value!r:.{_SHOWN}}; it must be a whole number")
    if value < least:
        raise InputError(f"{name} is {value}; it must be {least} or more")
    return int(value)
