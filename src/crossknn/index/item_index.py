"""The index: items, their vectors and retrievers, and what fits have left beside them.

Axes: m queries, n items, d dimensions.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace as with_changes
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np

from crossknn.data.items import Items
from crossknn.data.reading import read_items
from crossknn.errors import InputError, nearest
from crossknn.files import as_path, exclusive_lock, rows_of, translate_os_errors
from crossknn.index.base import Anchors, Cache, Index, ItemScores, Scale
from crossknn.index.encoders import EncodeQueries, GivenModel, RememberedModel, check_vectors
from crossknn.index.fitted import FittedVectors
from crossknn.index.graphs import NEIGHBOURS, ItemGraph, checksum, nearest_neighbours, no_graph
from crossknn.index.late import LateStates, discard, encode_states
from crossknn.index.parts import WORDS, Kind, Parts, VectorSpace, word_model
from crossknn.index.rebuild import encode_items, keep_parts
from crossknn.index.storage import SCORES, StoredIndexFolder
from crossknn.retrievers.base import ItemPriors, Retriever
from crossknn.retrievers.late import Late
from crossknn.retrievers.specs import unfitted
from crossknn.scores.store import ScoreStore
from crossknn.types import (
    Artifact,
    FloatArray,
    IntArray,
    Named,
    Neighbours,
    Progress,
    Queries,
    as_count,
)

logger = logging.getLogger(__name__)

Source: TypeAlias = Items | str | Path | Iterable[str | Mapping[str, object]]
Given = TypeVar("Given")

DUAL_ENCODER, LSA_NAME, GIVEN = "dense", "lsa", "vectors"
ANCHORS, ITEM_SCORES = "anchors", "item_scores"
"""Artifacts: exact scores of train queries, and of items in the query's place, with every item."""

COMPOSED = ("random", "fixed", "hybrid")
"""Retrievers that every index has; nothing else may have their names."""
_TAKEN = {DUAL_ENCODER, LSA_NAME, "bm25", "tfidf", "lists", "auto", ANCHORS, ITEM_SCORES}
N_ANCHOR_ITEMS = 10_000


class StoredRecords(Sequence[Mapping[str, Any]]):
    """n JSON objects, each parsed when it is asked for."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, position: Any) -> Any:
        if isinstance(position, slice):
            return [self[p] for p in range(*position.indices(len(self)))]
        return json.loads(self._texts[position])


class ItemIndex:
    """n items as a search sees them; satisfies `crossknn.index.base.Index`.

    Made by `build`, kept by `save`, opened by `load`: mapped, not read, so at once.

    Attributes:
        items: Ids, texts, titles and further fields of the items.
        cache: What methods computed from the index once, in memory.
    """

    def __init__(
        self,
        items: Items,
        anchor_items: Any,
        parts: Parts,
        encode: Mapping[str, EncodeQueries] | None = None,
    ) -> None:
        """Use `build` or `load`, which make the parts."""
        self.items, self._anchor_items, self._parts = items, anchor_items, parts
        self.cache, self._encode = Cache(), dict(encode or {})
        self._added: dict[str, Retriever] = {}
        self._scores: ScoreStore | None = None
        if unknown := sorted(set(self._encode) - set(parts["vectors"])):
            raise InputError(f"query_vectors names {unknown[0]!r}, but no vectors have that name")

    @classmethod
    def build(
        cls,
        items: Source,
        *,
        encoder: GivenModel | None = None,
        vectors: FloatArray | Mapping[str, FloatArray] | None = None,
        query_vectors: EncodeQueries | Mapping[str, EncodeQueries] | None = None,
        lsa: int | None = None,
        bm25: bool = True,
        tfidf: bool = False,
        seed: int = 0,
        previous: ItemIndex | None = None,
        progress: Progress | None = None,
    ) -> ItemIndex:
        """An index in memory.

        Args:
            items: Items, or whatever `read_items` reads them from.
            encoder: A dual encoder or its name ("bundled", a folder, a hub name): the vectors
                "dense".
            vectors: Your own (n, d), called "vectors", or several by name.
            query_vectors: Makes them for queries, texts (m) -> (m, d).
            lsa: Dimensions of latent semantic analysis, 0 for none; None makes 128 where there
                would be no vectors otherwise.
            bm25, tfidf: Which word models to fit.
            seed: Draws `anchor_items`.
            previous: An index that this one replaces. Vectors of texts that it has are not made
                again, and all that was fitted to the same items and vectors is kept; what has to be
                dropped is logged as a warning.
            progress: Called with (items encoded, all that need it).

        Raises:
            InputError: For items that cannot be read or vectors that do not fit them.
        """
        items = items if isinstance(items, Items) else read_items(items)
        n, spaces = len(items), dict[str, VectorSpace]()
        for name, values in _by_name(vectors, GIVEN).items():
            _check_name(name, "your own vectors")
            spaces[name] = VectorSpace(check_vectors(values, n, None, f"the vectors {name!r}"))
        if encoder is not None:
            model = RememberedModel.of("dual encoder", encoder)
            values = encode_items(model, items.texts, previous, progress)
            values = check_vectors(values, n, model.dimensions, "the encoder's vectors")
            spaces[DUAL_ENCODER] = VectorSpace(values, model)
        lsa = None if lsa is None else as_count(lsa, "lsa", 0)
        chosen = ["bm25"] * bm25 + ["tfidf"] * tfidf
        words = {name: word_model(name).fit(items.texts) for name in chosen}
        if lsa or (lsa is None and not spaces):
            options = {"dimensions": lsa} if lsa else {}
            words[LSA_NAME], values = word_model(LSA_NAME).fit(items.texts, **options)
            spaces[LSA_NAME] = VectorSpace(values)
        index = cls(
            items,
            np.random.default_rng(seed).permutation(n)[:N_ANCHOR_ITEMS],
            Parts({"vectors": spaces, "words": words}, secrets.token_hex(8)),
            _by_name(query_vectors, GIVEN),
        )
        if previous is not None:
            keep_parts(index, previous)
        return index

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        encoder: GivenModel | Mapping[str, GivenModel] | None = None,
        query_vectors: EncodeQueries | Mapping[str, EncodeQueries] | None = None,
    ) -> ItemIndex:
        """Open a saved index, mapped; what is read is checked when it is first touched.

        Dual encoders and late-interaction models are opened on the first query, from where they
        were when they encoded the items.

        Args:
            encoder: Takes the place of the index's own dual encoder, or several models by the names
                of their vectors or states (`{"cmc": folder}`); fingerprints must be the same.
                `save` keeps where it is.
            query_vectors: As for `build`.

        Raises:
            IndexFormatError: For a folder that is no index, is damaged, unfinished, of another
                version, or of another encoder.
            InputError: For an encoder of vectors that the index has not.
        """
        stored = StoredIndexFolder(as_path(folder, "the folder of the index"))
        parts: dict[Any, dict[str, Any]] = {}
        for key, part in stored.parts.items():
            kind, _, name = key.partition("/")
            parts.setdefault(kind, {})[name] = part
        meta, columns = (found := stored.parts["items"]).meta, found.arrays
        items = Items(
            ids=columns["ids"],
            texts=columns["texts"],
            titles=columns["titles"],
            extra=StoredRecords(columns["extra"]),
            template=meta["template"],
        )
        index = cls(
            items,
            rows_of(columns, "anchor_items"),
            Parts(parts, stored.build, stored.folder),
            _by_name(query_vectors, GIVEN),
        )
        models: dict[str, Any] = _by_name(encoder, DUAL_ENCODER)
        for name, given in models.items():
            if (remembered := index.model_of(name)) is None:
                raise InputError(
                    f"the index {folder} has no vectors {name!r} of a dual encoder, nor such states"
                )
            remembered.attach(given)
        return index

    def save(self, folder: str | Path) -> None:
        """Write the index to `folder`, which must be new, empty or an index, in one atomic step.

        Exact scores that an index in the folder has stay there. Functions for query vectors and
        added retrievers are not saved. Raises `InputError` if the folder is something else, cannot
        be written or has no room; nothing is changed then.
        """
        folder = as_path(folder, "the folder of the index")
        columns: dict[str, Any] = {c: getattr(self.items, c) for c in ("ids", "texts", "titles")}
        try:
            columns["extra"] = [json.dumps(dict(record)) for record in self.items.extra]
        except (TypeError, ValueError) as error:
            raise InputError(f"a field of extra cannot be stored as JSON: {error}") from error
        columns["anchor_items"] = self.anchor_items
        meta, scores = {"n": self.n, "template": self.items.template}, self.scores
        self._parts.save(folder, Artifact(meta, columns), self.graphs)
        if folder != self.folder and len(scores):
            ScoreStore.open(folder / SCORES).add_all(scores)
        self._parts.folder, self._scores = folder, None

    def verify(self, *, repair: bool = False) -> list[str]:
        """Check every file whole: a sentence for each that is damaged, none if all is well.

        `repair` removes damaged exact scores, so that they are scored again. Raises
        `IndexFormatError` for an index that cannot be read at all.
        """
        if self.folder is None:
            return []
        return StoredIndexFolder(self.folder).verify() + self.scores.verify(repair=repair)

    @property
    def folder(self) -> Path | None:
        """Where the index is kept, if it is."""
        return self._parts.folder

    @property
    def n(self) -> int:
        """Number of items."""
        return len(self.items)

    @property
    def anchor_items(self) -> IntArray:
        """A random order of (at most 10,000) items, drawn when the index was built."""
        return np.asarray(self._anchor_items)

    @property
    def scores(self) -> ScoreStore:
        """All exact scores that were ever computed with this index, in its folder if it has one."""
        if self._scores is None:
            self._scores = ScoreStore.open(None if self.folder is None else self.folder / SCORES)
        return self._scores

    @property
    def vectors(self) -> Mapping[str, FloatArray]:
        """Item vectors (n, d) float32 (fitted: or float16) by name: "dense", "lsa", "vectors" or
        your own, and the fitted ones."""
        return Named([*self._parts["vectors"], *self._parts["fitted"]], self._vectors)

    @property
    def fitted(self) -> Mapping[str, FittedVectors]:
        """Vectors fitted to a cross-encoder, by name, the latest last."""
        return Named(self._parts["fitted"], lambda name: self._open("fitted", name))

    @property
    def retrievers(self) -> Mapping[str, Retriever]:
        """Retrievers that are not made of vectors: `bm25`, `tfidf`, those that were added."""
        words = [name for name in self._parts["words"] if name != LSA_NAME]
        return Named(dict.fromkeys([*words, *self._added]), self._retriever)

    @property
    def late(self) -> Mapping[str, Late]:
        """Late-interaction models, opened, and the items' states, by name: `cmc`, ..."""
        return Named(self._parts["late"], self._late)

    @property
    def graphs(self) -> Mapping[str, Neighbours]:
        """Item graphs (n, k) by name; one of vectors that were replaced since is passed over."""
        names = [name for name in self._parts["graphs"] if self.fits(name)]
        return Named(names, lambda name: self._open("graphs", name).neighbours)

    @property
    def artifacts(self) -> Mapping[str, Artifact]:
        """What fits have left, by name."""
        return Named(self._parts["artifacts"], lambda name: self._parts["artifacts"][name])

    def graph(self, name: str, k: int) -> Neighbours:
        """The k nearest other items of every item (n, k); `InputError` if there is no such graph,
        or a less deep one."""
        if name not in self.graphs:
            raise no_graph(name, list(self.graphs))
        return nearest_neighbours(self.graphs[name], k, name)

    def has_query_vectors(self, name: str) -> bool:
        """Whether the index can make query vectors in the space of `vectors[name]`."""
        if name in self._parts["fitted"]:
            meta = self._parts.meta("fitted", name)
            return meta["encoder"] is not None or self.has_query_vectors(meta["base"])
        if name not in self._parts["vectors"]:
            return False
        made = name in self._encode or name in self._parts["words"]
        return made or self._open("vectors", name).encoder is not None

    def query_vectors(self, queries: Queries, name: str) -> FloatArray:
        """Query vectors (m, d) in the space of `vectors[name]`; kept in `queries.vectors`.

        Raises `InputError` if the index cannot make them, or those at hand do not fit.
        """
        d = self._rows(name).shape[1]
        if name in queries.vectors:
            made = queries.vectors[name]
        elif not self.has_query_vectors(name):
            raise InputError(
                f"the index cannot make query vectors for its item vectors {name!r}: pass "
                "query_vectors= when building or loading it if they are your own, or search them "
                "with blend=0 and retriever=bm25"
            )
        elif name in self._parts["fitted"]:
            made = self.fitted[name].query_vectors(queries, self.query_vectors)
        elif name in self._encode:
            made = self._encode[name](queries.texts)
        elif name in self._parts["words"]:
            made = self._open("words", name).encode_queries(queries.texts)
        else:
            made = self._open("vectors", name).encoder.get().encode_queries(queries.texts)
        what = f"the {name!r} query vectors"
        queries.vectors[name] = check_vectors(made, len(queries), d, what)
        return queries.vectors[name]

    def scale(self, name: str) -> Scale | None:
        """Brings exact scores to the scale of `vectors[name]`: fitted on the anchors, or with the
        vectors if they are fitted."""
        if name in self._parts["fitted"]:
            known = self._parts.meta("fitted", name)["scale"]
        else:
            known = self._scales.get(name)
        return None if known is None else Scale(*known)

    @property
    def anchors(self) -> Anchors | None:
        """Exact scores (k_q, n) of the anchor queries, if there are any."""
        if ANCHORS not in self.artifacts:
            return None
        scales, columns = self._scales, self.artifacts[ANCHORS].arrays
        center = scales.get(DUAL_ENCODER, scales["center"])[0]
        return Anchors(columns["scores"], center, Queries(columns["queries"]))

    @property
    def anchor_queries(self) -> Sequence[str]:
        """Texts (k_q) of the anchor queries."""
        return () if self.anchors is None else self.anchors.queries.texts

    def anchored(self, start: int = 0, stop: int | None = None) -> tuple[Index, Queries]:
        """The anchor queries start..stop, and the index: they see it as others do."""
        return self, Queries(self.anchor_queries[start:stop])

    @property
    def item_scores(self) -> ItemScores | None:
        """Exact scores (a, n) of items in the query's place, if there are any."""
        if ITEM_SCORES not in self.artifacts:
            return None
        columns = self.artifacts[ITEM_SCORES].arrays
        return ItemScores(columns["items"], columns["scores"])

    def scorer_of(self, name: str) -> str | None:
        """The cross-encoder (its fingerprint) of an artifact, of fitted vectors, or of the scale of
        other item vectors, if known."""
        if name in self._parts["fitted"]:
            return self._parts.fingerprint("fitted", name)
        return self._parts.fingerprint("artifacts", name if name in self.artifacts else ANCHORS)

    def encoder_source(self, name: str) -> str | None:
        """The folder or name of the model that made the vectors or states `name`, if it has one."""
        model = self.model_of(name)
        return None if model is None else model.source

    def add_retriever(self, name: str, retriever: Retriever) -> None:
        """Offer `retriever` under this name. It is not saved; `InputError` if it is none."""
        if not name.isidentifier() or name in {*self.vectors, *self.late, *COMPOSED}:
            raise InputError(f"a retriever cannot be named {name!r} here; use another name")
        if not isinstance(retriever, Retriever):
            raise InputError(
                f"a retriever has the methods top and scores, and {type(retriever).__name__} has "
                "not; candidate lists are made with CandidateLists(lists, index.items.ids)"
            )
        if isinstance(retriever, ItemPriors) and len(retriever.values) != self.n:
            raise InputError(f"there are {len(retriever.values)} priors for {self.n} items")
        self._added[name] = retriever
        self.cache.clear()

    def check_free(self, name: str) -> None:
        """`InputError` if fitted vectors cannot have this name."""
        _check_name(name, "fitted vectors")
        if name in {*self._parts["vectors"], *self.retrievers, *self.late}:
            raise InputError(f"the index has something else named {name!r}; use another name")

    def add_fitted(self, name: str, fitted: FittedVectors, *, replace: bool = False) -> None:
        """Offer `fitted` as the item vectors of this name; an index in a folder keeps them there.

        Raises `InputError` if they do not fit, the name is taken (by other fitted vectors: unless
        `replace`), or there is no room; the index stays as it was then.
        """
        self.check_free(name)
        fitted.check(self.n, {own: self._rows(own) for own in self._parts["vectors"]}, name)
        if self._parts.newest("fitted", name) is not None and not replace:
            raise InputError(
                f"the index has fitted vectors {name!r}; use another name, or replace them"
            )
        self._put("fitted", name, fitted)
        # An encoder without a name can only be had from here.
        self._parts["fitted"][name] = with_changes(self.fitted[name], encoder=fitted.encoder)

    def add_late(
        self,
        model: GivenModel,
        name: str | None = None,
        *,
        replace: bool = False,
        progress: Progress | None = None,
    ) -> str:
        """Encode all items with a late-interaction model, for the retriever `name` (its kind).

        An index in a folder keeps the states there, and where the model is. If the items have been
        encoded by the same model, only that is noted. They are written as they come: stopped by an
        error or a kill, the same call goes on where it was. Returns the name. Raises `InputError`
        if the name is taken (by states of another model: unless `replace`), the model is none,
        there is no room, or another process is encoding; the index stays as it was then.
        """
        remembered = RememberedModel.of("late-interaction model", model, name)
        name = remembered.name
        _check_name(name, "states of items")
        if name in {*self.vectors, *self.retrievers}:
            raise InputError(f"the index has something else named {name!r}; use another name")
        work = None if self.folder is None else self.folder / f"work-late-{name}"
        if work is None:
            self._encode_late(remembered, replace, None, progress)
            return name
        with translate_os_errors(work, "states"):
            work.mkdir(exist_ok=True)
        with exclusive_lock(work, what="states"):
            self._encode_late(remembered, replace, work, progress)
            discard(work)
        return name

    def add_graph(
        self,
        name: str | None = None,
        neighbours: int = NEIGHBOURS,
        *,
        progress: Progress | None = None,
    ) -> str:
        """Find every item's nearest other items: the graph that `gar`, `ladr` and `greedy` walk.

        By cosine of the vectors `name`, or by `bm25` or `tfidf` with items as queries; by default
        the vectors that are not fitted (or `bm25` without any). All pairs of items are compared.
        An index in a folder keeps the graph there. One that is there and as deep stays. Returns the
        name. Raises `InputError` for fewer than 1 neighbour, a name that is neither, or no room.
        """
        neighbours = min(as_count(neighbours, "neighbours"), max(1, self.n - 1))
        name = name or unfitted(self) or "bm25"
        if name in self.graphs and self.graphs[name].shape[1] >= neighbours:
            return name
        words = [word for word in self._parts["words"] if word != LSA_NAME]
        matchers = Named(words, lambda word: self._open("words", word))
        texts = self.items.texts
        graph = ItemGraph.make(name, neighbours, self.vectors, matchers, texts, progress)
        self._put("graphs", name, graph)
        return name

    def add_words(self, name: str) -> None:
        """Fit the word model `bm25` or `tfidf`; one that is there stays, nothing is encoded again.

        Raises:
            InputError: For another name, or if there is no room.
        """
        if name not in WORDS or name == LSA_NAME:
            raise _unknown("word model", name, [word for word in WORDS if word != LSA_NAME])
        if name not in self._parts["words"]:
            self._put("words", name, word_model(name).fit(self.items.texts))

    def put_artifact(
        self,
        name: str,
        meta: Mapping[str, Any],
        arrays: Mapping[str, Any],
    ) -> None:
        """Keep what a fit has found, in the folder of the index too, in one atomic step.

        An artifact of the same name is replaced.

        Args:
            meta: Values for JSON.
            arrays: Arrays, or sequences of texts, by name.

        Raises:
            InputError: For what cannot be stored, and a full disk.
        """
        if not name.isidentifier():
            raise InputError(f"an artifact cannot be named {name!r}; use another name")
        self._put("artifacts", name, Artifact(dict(meta), dict(arrays)))

    def drop_artifact(self, name: str) -> None:
        """Forget the artifact `name`, if there is one."""
        self.cache.clear()
        self._parts.drop("artifacts", name)

    def description(self) -> dict[str, Any]:
        """What the index holds, as values that JSON can write."""
        parts, scales = self._parts, {name: self.scale(name) for name in self.vectors}
        spaces = {name: parts.meta("vectors", name) for name in parts["vectors"]}
        rows = [name for name in (ANCHORS, ITEM_SCORES) if name in self.artifacts]
        known = [self.scorer_of(name) for name in (*rows, *reversed(self._parts["fitted"]))]
        kinds: tuple[Kind, ...] = ("fitted", "late", "graphs", "artifacts")
        return {
            "n": self.n,
            "template": self.items.template,
            "vectors": {name: meta["d"] for name, meta in spaces.items()},
            "encoders": {n: meta["encoder"] for n, meta in spaces.items() if meta["encoder"]},
            "retrievers": list(self.retrievers),
            "anchors": len(self.anchor_queries),
            "item_scores": 0 if self.item_scores is None else len(self.item_scores.items),
            "scorer": next(iter(known), None),
            **{kind: {n: dict(parts.meta(kind, n)) for n in parts[kind]} for kind in kinds},
            "scales": {n: {"alpha": s.alpha, "beta": s.beta} for n, s in scales.items() if s},
        }

    def __repr__(self) -> str:
        parts = {
            "vectors": self.vectors,
            "retrievers": self.retrievers,
            "artifacts": self.artifacts,
        }
        said = [f"{what} {', '.join(names)}" for what, names in parts.items() if names]
        return f"ItemIndex({'; '.join([f'{self.n:,} items', *said])})"

    def _open(self, kind: Kind, name: str) -> Any:
        part = self._parts[kind][name]
        return self._parts.open(kind, name) if isinstance(part, Artifact) else part

    def _put(self, kind: Kind, name: str, part: Any) -> None:
        self.cache.clear()
        self._parts.put(kind, name, part)

    def _rows(self, name: str) -> Any:
        """The vectors `name`, an array (n, d) or its rows."""
        if name in self._parts["fitted"]:
            return self.fitted[name].values
        if name not in self._parts["vectors"]:
            raise _unknown("item vectors", name, self.vectors)
        return self._open("vectors", name).rows

    def _vectors(self, name: str) -> FloatArray:
        return np.asarray(self._rows(name))

    def _late(self, name: str) -> Late:
        if name not in self._parts["late"]:
            raise _unknown("late-interaction model", name, self.late)
        found: LateStates = self._open("late", name)
        return Late(found.model.get(), found.states)

    def _retriever(self, name: str) -> Retriever:
        if name not in self.retrievers:
            raise _unknown("retriever", name, self.retrievers)
        found: Retriever = self._added.get(name) or self._open("words", name)
        return found

    @property
    def _scales(self) -> Mapping[str, Sequence[float]]:
        """(alpha, beta) by name of vectors, and the "center" of the anchors' scores."""
        found: Mapping[str, Sequence[float]] = {}
        if ANCHORS in self.artifacts:
            found = self.artifacts[ANCHORS].meta["scales"]
        return found

    def model_of(self, name: str) -> RememberedModel | None:
        """The model that made the vectors or states `name`."""
        found: RememberedModel | None = None
        if name in self._parts["late"]:
            found = self._open("late", name).model
        elif name in self.vectors:
            kind: Kind = "fitted" if name in self._parts["fitted"] else "vectors"
            found = self._open(kind, name).encoder
        return found

    def fits(self, name: str) -> bool:
        """Whether the graph is of what the index has under this name."""
        made_of = self._parts.meta("graphs", name)["vectors"]
        if made_of is None:
            return name in self._parts["words"]
        return name in self.vectors and checksum(self._rows(name)) == made_of

    def _encode_late(
        self, model: RememberedModel, replace: bool, work: Path | None, progress: Progress | None
    ) -> None:
        before = None if replace else self._parts.newest("late", model.name)
        if isinstance(before, Artifact):
            before = LateStates.of(before, model.name)
        self._put(
            "late", model.name, encode_states(model, self.items.texts, before, work, progress)
        )
        self._parts["late"][model.name] = with_changes(self._open("late", model.name), model=model)


def _by_name(given: Given | Mapping[str, Given] | None, alone: str) -> dict[str, Given]:
    """What was given by name; what was given `alone` has that name."""
    if given is None:
        return {}
    return dict(given) if isinstance(given, Mapping) else {alone: given}


def _check_name(name: str, what: str) -> None:
    """Refuse a name that a spec could not say, or that means something else there."""
    if not name.isidentifier() or name in _TAKEN.union(COMPOSED):
        raise InputError(f"{what} cannot be named {name!r}; use another name")


def _unknown(what: str, name: str, known: Collection[str]) -> InputError:
    return InputError(f"the index has no {what} {name!r} ({nearest(name, known)})")
