"""What a data folder is: items, and for each of its splits queries, judgements and candidates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar

from crossknn.data.items import DEFAULT_TEMPLATE, Items, items_from
from crossknn.data.queries import Qrels, QuerySet, Run
from crossknn.data.records import Located
from crossknn.errors import InputError, nearest


class DataFolder(ABC):
    """Data in one published layout; nothing is read before it is asked for.

    A class of a format says how its items are rendered (`template`) and which fields they have,
    where these are not the usual ones; and whether all judged items should be there (`complete`),
    or may be missing from a list of items that was made elsewhere.
    """

    format: ClassVar[str]
    layout: ClassVar[str]
    template: ClassVar[str] = DEFAULT_TEMPLATE
    id_field: ClassVar[str | None] = None
    title_field: ClassVar[str | None] = None
    complete: ClassVar[bool] = True

    def __init__(self, path: Path, domain: str | None = None) -> None:
        self.path = path
        self.domain = domain

    @classmethod
    @abstractmethod
    def recognises(cls, path: Path) -> bool:
        """Whether `path` looks like this format."""

    @property
    def name(self) -> str:
        """What the data are called: the domain, or the folder."""
        return self.domain or self.path.name

    @abstractmethod
    def splits(self) -> Sequence[str]:
        """The names of the splits there are."""

    @abstractmethod
    def item_records(self, split: str | None = None) -> Located:
        """The items as records; `split` matters where every split has items of its own."""

    @abstractmethod
    def queries(self, split: str | None) -> QuerySet:
        """The queries of a split; without one, of all splits or of the usual one."""

    @abstractmethod
    def qrels(self, split: str) -> Qrels:
        """The judgements of a split."""

    def candidates(self, split: str) -> Run | None:
        """The lists that come with the queries of a split, if any do."""
        del split
        return None

    def items(self, split: str | None = None) -> Items:
        """The items (of a split), rendered; those whose text is empty stay."""
        return items_from(
            self.item_records(split),
            id_field=self.id_field,
            title_field=self.title_field,
            template=self.template,
            allow_empty=True,
        )

    def parts(self, split: str, domains: Iterable[str] | None) -> Sequence[DataFolder]:
        """One corpus each: the domains of a split, or those named; otherwise the folder itself."""
        del split
        if domains is not None:
            raise self.no_domains()
        return [self]

    def no_domains(self) -> InputError:
        """The error that a domain was asked for."""
        return InputError(f"{self.path} is {self.layout}, which has no domains")

    def judged_at(self, split: str, query: str, item: str | None = None) -> str:
        """Where a query (and an item) is judged: a file and its line if there is one."""
        del split, query, item
        return str(self.path)

    def split(self, wanted: str | None) -> str:
        """`wanted` if it is there; without one `test`, or the only one.

        Raises `InputError` naming the nearest split.
        """
        known = self.splits()
        if wanted is None and len(known) == 1:
            return known[0]
        if wanted is None and "test" not in known:
            raise InputError(f"{self.path} has the splits {', '.join(known)}: name one (split=...)")
        wanted = wanted or "test"
        if wanted not in known:
            hint = nearest(wanted, known) if known else "there are none"
            raise InputError(f"{self.path} has no split {wanted!r} ({hint})")
        return wanted
