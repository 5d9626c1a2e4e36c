"""What is computed from an index once and kept with it in memory."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

Made = TypeVar("Made")


class Memo:
    """Values by key, each as long as what it was made of is the same."""

    def __init__(self) -> None:
        self._made: dict[Hashable, tuple[tuple[object, ...], Any]] = {}

    def clear(self) -> None:
        """Forget all: the index has changed."""
        self._made.clear()

    def get(self, key: Hashable, of: tuple[object, ...], make: Callable[[], Made]) -> Made:
        """The value made `of` these objects (not of equal ones), made now if it is not there."""
        parts, value = self._made.get(key, ((), None))
        if len(parts) != len(of) or any(a is not b for a, b in zip(parts, of, strict=True)):
            value = make()
            self._made[key] = of, value
        made: Made = value
        return made
