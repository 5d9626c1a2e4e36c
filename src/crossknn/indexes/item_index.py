"""The index: items, their vectors, word matching, and scores that were paid for in advance."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias, cast

from crossknn.data.items import Items, read_items
from crossknn.data.marks import item_as_query
from crossknn.errors import IndexFormatError, InputError, nearest
from crossknn.first.base import FirstStage
from crossknn.indexes.base import Anchors, ItemScores, Scale
from crossknn.indexes.dense import DenseReport
from crossknn.indexes.encoders import EncodeQueries, checked_vectors
from crossknn.indexes.paid import CENTRE, PaidScores, fit_scales, pay, positions_of
from crossknn.indexes.parts import COMPOSED, DUAL_ENCODER, LSA_NAME, Parts, build_parts, by_name
from crossknn.indexes.storage import IndexReader, read_index
from crossknn.indexes.writing import writing
from crossknn.scorers import as_scorer
from crossknn.scorers.base import Scorer
from crossknn.scorers.encoder import Encoder
from crossknn.types import FloatArray, IntArray, Progress, Queries

N_ITEM_SCORES = 500
Source: TypeAlias = Items | str | Path | Iterable[str | Mapping[str, object]]


class ItemIndex:
    """n items as a search sees them; satisfies `crossknn.indexes.base.Index`.

    Made by `build`, kept by `save`, opened by `load`: mapped, not read, so at once.
    """

    def __init__(
        self, parts: Parts, paid: Mapping[str, PaidScores] | None = None, folder: Path | None = None
    ) -> None:
        """Use `build` or `load`, which make the parts."""
        self.items = parts.items
        self.folder = folder
        self._parts = parts
        self._paid = dict(paid or {})
        self._added: dict[str, FirstStage] = {}
        self._item_scores: ItemScores | None = None

    @classmethod
    def build(
        cls,
        items: Source,
        *,
        encoder: Encoder | str | Path | None = None,
        vectors: FloatArray | Mapping[str, FloatArray] | None = None,
        query_vectors: EncodeQueries | Mapping[str, EncodeQueries] | None = None,
        lsa: int | None = None,
        bm25: bool = True,
        tfidf: bool = False,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> ItemIndex:
        """An index of `items`, or of what `read_items` reads from them, in memory.

        `encoder`, a dual encoder or its name ("bundled", a folder, a hub name), gives the vectors
        "de". `vectors` are your own: (n, d), called "vectors", or several by name.
        `query_vectors` makes them for queries, texts (m) -> (m, d). `lsa` is the number of
        dimensions of latent semantic analysis, 0 for none; None makes 128 where there would be no
        vectors otherwise.
        `bm25` and `tfidf` say which word models to fit. `seed` draws `anchor_items`. `progress`
        is called with (items encoded, n).

        Raises `InputError` for items that cannot be read or vectors that do not fit them.
        """
        return cls(
            build_parts(
                items if isinstance(items, Items) else read_items(items),
                encoder=encoder,
                vectors=by_name(vectors),
                encode=by_name(query_vectors),
                lsa=lsa,
                words=["bm25"] * bm25 + ["tfidf"] * tfidf,
                seed=seed,
                progress=progress,
            )
        )

    def save(self, folder: str | Path) -> None:
        """Write the index to `folder`, which must be new, empty or an index, in one atomic step.

        Functions for query vectors and added first stages are not saved. Raises `InputError` if
        the folder is something else, cannot be written or has no room; nothing is changed then.
        """
        folder = Path(folder)
        paid = {name: paid.meta() for name, paid in self._paid.items()}
        with writing(folder, {**self._parts.meta(), "paid": paid}) as writer:
            self._parts.write(writer)
            for name, scores in self._paid.items():
                scores.write(writer, name)
        self.folder = folder

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        encoder: Encoder | str | Path | None = None,
        query_vectors: EncodeQueries | Mapping[str, EncodeQueries] | None = None,
    ) -> ItemIndex:
        """Open a saved index, mapped.

        Its dual encoder is opened on the first query, by the name it was built with; `encoder`
        takes its place, and must have the same fingerprint. `query_vectors` is as for `build`.
        Raises `IndexFormatError` for a folder that is no index, is damaged, unfinished, of a newer
        version, or of another encoder.
        """
        encode = by_name(query_vectors)
        index = read_index(Path(folder), lambda reader: cls._of(reader, encode))
        if encoder is not None:
            if DUAL_ENCODER not in index._parts.encoders:
                raise InputError(f"the index {folder} was built without a dual encoder")
            index._parts.encoders[DUAL_ENCODER].attach(encoder)
        return index

    @classmethod
    def _of(cls, reader: IndexReader, encode: Mapping[str, EncodeQueries]) -> ItemIndex:
        paid = {name: PaidScores.read(reader, name) for name in reader.meta["paid"]}
        return cls(Parts.read(reader, encode), paid, reader.folder)

    @property
    def n(self) -> int:
        """Number of items."""
        return len(self.items)

    @property
    def vector_names(self) -> Collection[str]:
        """Names of the item vectors: `de`, `lsa`, `vectors` or your own."""
        return tuple(self._parts.vectors)

    @property
    def first_names(self) -> Collection[str]:
        """First stages that are not made of vectors: `bm25`, `tfidf`, those that were added."""
        fitted = [name for name in self._parts.models.names if name != LSA_NAME]
        return tuple(dict.fromkeys([*fitted, *self._added]))

    def vectors(self, name: str) -> FloatArray:
        """Item vectors (n, d) float32, mapped if the index was loaded."""
        if name not in self._parts.vectors:
            raise _unknown("item vectors", name, self.vector_names)
        return self._parts.vectors[name]

    def query_vectors(self, queries: Queries, name: str) -> FloatArray:
        """Query vectors (m, d) in the space of `vectors(name)`; kept in `queries.vectors`.

        Raises `InputError` if the index cannot make them, or those at hand do not fit.
        """
        d = self.vectors(name).shape[1]
        if name in queries.vectors:
            made = queries.vectors[name]
        elif name in self._parts.encode:
            made = self._parts.encode[name](queries.texts)
        elif name in self._parts.encoders:
            made = self._parts.encoders[name].get().encode_queries(queries.texts)
        elif name == LSA_NAME and LSA_NAME in self._parts.models:
            made = self._parts.models[LSA_NAME].encode_queries(queries.texts)
        else:
            raise InputError(
                f"the index cannot make query vectors for its item vectors {name!r}: pass "
                "query_vectors= when building or loading it, or search with first=bm25 and "
                "vectors that it can make"
            )
        queries.vectors[name] = checked_vectors(
            made, len(queries), d, f"the {name!r} query vectors"
        )
        return queries.vectors[name]

    def first(self, name: str) -> FirstStage:
        """The first stage of that name, one of `first_names`."""
        if name in self._added:
            return self._added[name]
        if name in self._parts.models and name != LSA_NAME:
            return cast(FirstStage, self._parts.models[name])
        raise _unknown("first stage", name, self.first_names)

    def scale(self, name: str) -> Scale | None:
        """Brings exact scores to the scale of `vectors(name)`; fitted on the anchors."""
        return self._paid["anchors"].scales.get(name) if "anchors" in self._paid else None

    @property
    def anchors(self) -> Anchors | None:
        """Exact scores (k_q, n) of the anchor queries, if there are any."""
        if "anchors" not in self._paid:
            return None
        paid = self._paid["anchors"]
        scale = paid.scales.get(DUAL_ENCODER, paid.scales[CENTRE])
        return Anchors(paid.scores, center=scale.alpha)

    @property
    def anchor_items(self) -> IntArray:
        """A random order of (at most 10,000) items, drawn when the index was built."""
        return self._parts.anchor_items

    @property
    def item_scores(self) -> ItemScores | None:
        """Exact scores (a, n) of items in the query's place, if there are any."""
        if (paid := self._paid.get("item_scores")) is None:
            return None
        if self._item_scores is None or self._item_scores.scores is not paid.scores:
            # By text, because rows are kept by text; the usual items are found at once.
            among = chain(self._parts.anchor_items.tolist(), range(self.n))
            positions = positions_of(paid.texts, self.items.texts, among)
            self._item_scores = ItemScores(positions, paid.scores)
        return self._item_scores

    @property
    def anchor_queries(self) -> Sequence[str]:
        """Texts (k_q) of the anchor queries."""
        return self._paid["anchors"].texts if "anchors" in self._paid else ()

    @property
    def scorer_fingerprint(self) -> str | None:
        """The cross-encoder that the stored scores are of; None without scores or a fingerprint."""
        return next((paid.fingerprint for paid in self._paid.values()), None)

    @property
    def paid_names(self) -> Collection[str]:
        """What has been paid for: `anchors`, `item_scores`."""
        return tuple(self._paid)

    def add_first(self, name: str, stage: FirstStage) -> None:
        """Offer `stage` as a first stage of this name. It is not saved."""
        if not name.isidentifier() or name in {*self.vector_names, *COMPOSED}:
            raise InputError(f"a first stage cannot be named {name!r} here; use another name")
        if not isinstance(stage, FirstStage):
            raise InputError(
                f"a first stage has the methods top and scores, and {type(stage).__name__} has "
                "not; candidate lists are made with CandidateLists(lists, index.items.ids)"
            )
        self._added[name] = stage

    def add_anchors(
        self,
        scorer: Scorer,
        queries: Sequence[str],
        *,
        max_calls: int | None = None,
        replace: bool = False,
        progress: Progress | None = None,
    ) -> DenseReport:
        """Score `queries` (k_q) against every item: R_anc of ANNCUR and ADACUR, and the scales.

        Costs k_q times n calls. Anchors that are there stay. An index in a folder keeps what is
        paid there: stopped by `max_calls`, by an error or by a kill, the same call goes on where
        it was. Only queries that have all their scores become anchors. Scores of another
        cross-encoder are refused with `InputError`, or discarded with `replace`.
        """
        if isinstance(queries, str) or not all(isinstance(q, str) and q.strip() for q in queries):
            raise InputError("anchor queries must be a list of texts that are not empty")
        options = {"max_calls": max_calls, "replace": replace, "progress": progress}
        return self._pay("anchors", scorer, queries, **options)

    def take_paid(self, other: ItemIndex) -> bool:
        """Take over the scores `other` has paid for, if its items are the same in the same order.

        So that an index can be built again, with another encoder say, and no pair is paid twice.
        """
        if list(self.items.ids) != list(other.items.ids):
            return False
        if any(a != b for a, b in zip(self.items.texts, other.items.texts, strict=True)):
            return False
        self._paid = {
            name: fit_scales(paid, self._parts.vectors, self.query_vectors)
            if name == "anchors"
            else paid
            for name, paid in other._paid.items()
        }
        return bool(self._paid)

    def add_item_scores(
        self,
        scorer: Scorer,
        positions: IntArray | None = None,
        *,
        max_calls: int | None = None,
        replace: bool = False,
        progress: Progress | None = None,
    ) -> DenseReport:
        """Score items, put in the query's place, against every item (itemCUR, fixedITEM).

        `positions` are the first 500 of `anchor_items` by default; else as `add_anchors`.
        """
        chosen = self._parts.anchor_items[:N_ITEM_SCORES] if positions is None else positions
        texts = [item_as_query(self.items.texts[int(position)]) for position in chosen]
        options = {"max_calls": max_calls, "replace": replace, "progress": progress}
        return self._pay("item_scores", scorer, texts, **options)

    def _pay(self, name: str, scorer: Scorer, texts: Sequence[str], **options: Any) -> DenseReport:
        scorer, before, work = as_scorer(scorer), self._paid.get(name), None
        if self.folder is not None:
            # Another process may have added scores since this index was loaded.
            reader, work = IndexReader(self.folder), self.folder / f"work-{name}"
            if reader.meta["build"] != self._parts.build:
                raise IndexFormatError(f"the index {self.folder} was replaced; load it again")
            before = PaidScores.read(reader, name) if name in reader.meta["paid"] else None
        report, paid, table = pay(
            scorer, texts, self.items.texts, before=before, work=work, **options
        )
        if paid is not None:
            if name == "anchors":
                paid = fit_scales(paid, self._parts.vectors, self.query_vectors)
            self._paid[name] = self._store(self.folder, name, paid) if self.folder else paid
        if report.complete:
            table.remove()
        return report

    def _store(self, folder: Path, name: str, paid: PaidScores) -> PaidScores:
        """`paid` added to the index in `folder`, and mapped from there."""
        meta = {"build": self._parts.build, "paid": {name: paid.meta()}}
        with writing(folder, meta, keep=True) as writer:
            paid.write(writer, name)
        return read_index(folder, lambda reader: PaidScores.read(reader, name))

    def description(self) -> dict[str, Any]:
        """What the index holds, as values that JSON can write."""
        found = {name: self.scale(name) for name in self.vector_names}
        return {
            **self._parts.meta(),
            "first_stages": list(self.first_names),
            "anchors": len(self.anchor_queries),
            "item_scores": len(self._paid["item_scores"].texts) if self.item_scores else 0,
            "scorer": self.scorer_fingerprint,
            "scales": {n: {"alpha": s.alpha, "beta": s.beta} for n, s in found.items() if s},
        }


def _unknown(what: str, name: str, known: Collection[str]) -> InputError:
    return InputError(f"the index has no {what} {name!r} ({nearest(name, known)})")
