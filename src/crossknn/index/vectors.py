"""Item vectors, original or fitted to a cross-encoder; states of late-interaction models; and the
models that made them.

While texts are encoded, a work folder has a file `<key>-<token>.npz` for each finished batch of b
texts, so that a stopped encoding can resume: their digests (b, 16), numbers of rows (b,), and rows
(s, d). The key identifies the model; other files are removed.

Axes: m queries, n items, s states, c input and d output dimensions.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np

from crossknn import files
from crossknn.errors import IndexFormatError, InputError
from crossknn.linalg import LARGEST, usable
from crossknn.retrievers.base import LateEncoder
from crossknn.retrievers.specs import SPARSE
from crossknn.scorers.base import Encoder
from crossknn.scorers.opening import DualEncoder, LateInteraction, as_sparse_encoder
from crossknn.types import Artifact, FloatArray, Progress, Scale, States

EncodeQueries: TypeAlias = Callable[[Sequence[str]], FloatArray]
"""A function from texts (m) to vectors (m, d)."""

GivenModel: TypeAlias = Encoder | LateEncoder | str | Path
"""A dual encoder or a late-interaction model: the object, its folder, or its hub name."""

_CHECKED = 8192  # rows at once

AT_ONCE = 512
"""Number of texts per file of the work folder."""
_Counts: TypeAlias = dict[bytes, int]
"""Numbers of rows by digest of the text, in the order of a file."""

ModelKind: TypeAlias = Literal["dual encoder", "late-interaction model", "sparse encoder"]


@dataclass(eq=False)
class RememberedModel:
    """The model that made the vectors or states `name` of an index, opened when first needed.
    `source` is its folder or hub name; None if the index was given the model as an object."""

    kind: ModelKind
    name: str
    source: str | None
    fingerprint: str | None
    dimensions: int
    opened: Any = None

    @classmethod
    def of(cls, kind: ModelKind, given: GivenModel, name: str | None = None) -> RememberedModel:
        """Wrap a model; its vectors or states are named "dense" or by its kind, if not `name`."""
        source, model = _open(kind, given)
        name = name or ("dense" if kind == "dual encoder" else model.kind)
        return cls(kind, name, source, model.fingerprint, model.dimensions, model)

    @property
    def work(self) -> str:
        """Name of the folder that keeps finished batches until all items are encoded."""
        if self.kind == "late-interaction model":
            return f"work-late-{self.name}"
        return "work-vectors" if self.name == "dense" else f"work-vectors-{self.name}"

    def state(self) -> dict[str, Any]:
        """The source, fingerprint and dimensions of the model, which the index stores."""
        return {key: getattr(self, key) for key in ("source", "fingerprint", "dimensions")}

    def same_as(self, other: RememberedModel) -> bool:
        """Whether both are known to be the same model."""
        return self.fingerprint is not None and self.fingerprint == other.fingerprint

    def attach(self, given: GivenModel) -> None:
        """Use the given model; `IndexFormatError` if the index was made with another model."""
        source, opened = _open(self.kind, given)
        if (opened.fingerprint, opened.dimensions) != (self.fingerprint, self.dimensions):
            raise IndexFormatError(
                f"{self.name!r} was made by another {self.kind}: the index was made with "
                f"fingerprint {self.fingerprint} ({self.dimensions} dimensions), but "
                f"{source or 'the one given'} has {opened.fingerprint} ({opened.dimensions}); "
                "give the right model, or encode again"
            )
        self.source, self.opened = source or self.source, opened

    def get(self) -> Any:
        """Open the model, or return it if it is open."""
        if self.opened is None:
            try:
                if self.source is None:
                    raise InputError("the index stores no folder or name of the model")
                self.attach(self.source)
            except InputError as error:
                raise InputError(
                    f"the {self.kind} of {self.name!r} (fingerprint {self.fingerprint}) cannot be "
                    f"opened: {error}; give it once to ItemIndex.load as encoder={{{self.name!r}: "
                    "MODEL}, and save the index"
                ) from error
        return self.opened

    def encode(
        self, texts: Sequence[str], progress: Progress | None, folder: Path | None
    ) -> States:
        """Encode n items; the index's `folder` keeps finished batches until all are encoded."""
        if folder is None or self.fingerprint is None or not len(texts):
            return self._encode(texts, progress)
        model = [self.fingerprint, str(self.dimensions)]
        return encode_kept(folder / self.work, model, texts, self._encode, progress)

    def _encode(self, texts: Sequence[str], progress: Progress | None) -> States:
        n, d, made = len(texts), self.dimensions, self.get().encode_items(texts, progress)
        if self.kind == "dual encoder":
            values = check_vectors(made, n, d, "the encoder's vectors")
            return States(values, np.arange(n + 1))
        states: States = made
        if self.kind == "sparse encoder":
            return states
        values, starts = states.values, states.starts
        if (
            (len(states), values.dtype, values.shape[1:]) != (n, np.dtype(np.float16), (d,))
            or (starts[0], starts[-1]) != (0, len(values))
            or (states.counts < 1).any()
            or not np.isfinite(values).all()
        ):
            raise InputError(
                f"the states {self.name!r} of {n} items are {values.dtype} of the shape "
                f"{values.shape}, of {len(states)} items; they must be finite float16, "
                f"(states, {d}), at least one of each item"
            )
        return states


@dataclass(frozen=True, eq=False)
class Same:
    """The identity map: the fit changed item vectors only, not query vectors (MF_TRNS, ALS)."""

    kind: ClassVar[str] = "same"

    def __call__(self, vectors: FloatArray) -> FloatArray:
        return vectors


@dataclass(frozen=True, eq=False)
class Linear:
    """The linear map `vectors @ weight + offset`: weight (c, d), offset (d,)."""

    weight: FloatArray
    offset: FloatArray
    kind: ClassVar[str] = "linear"

    def __call__(self, vectors: FloatArray) -> FloatArray:
        return vectors @ self.weight + self.offset


@dataclass(frozen=True, eq=False)
class GatedSkip:
    """The two-layer perceptron of MF_IND (AXN A.2.2):
    `s * (outer @ gelu(inner @ x + inner_offset) + outer_offset) + (1 - s) * x`, s = sigmoid(gate).

    inner (h, d), inner_offset (h,), outer (d, h), outer_offset (d,), gate (); an infinite gate
    removes the skip connection.
    """

    inner: FloatArray
    inner_offset: FloatArray
    outer: FloatArray
    outer_offset: FloatArray
    gate: FloatArray
    kind: ClassVar[str] = "gated-skip"

    def __call__(self, vectors: FloatArray) -> FloatArray:
        from scipy.special import expit, ndtr

        share = float(expit(np.float64(self.gate)))
        hidden = vectors @ self.inner.T + self.inner_offset
        hidden = hidden * ndtr(hidden)  # GELU, exact as in PyTorch's default
        moved = hidden @ self.outer.T + self.outer_offset
        return (share * moved + (1 - share) * vectors).astype(np.float32)


QueryMap: TypeAlias = Same | Linear | GatedSkip
"""A map of query vectors (m, c) to the space of fitted item vectors (m, d)."""

MAPS: Mapping[str, type[Any]] = {kind.kind: kind for kind in (Same, Linear, GatedSkip)}


@dataclass(frozen=True, kw_only=True, eq=False)
class ItemVectors:
    """Item vectors (n, d) of an index, either original or fitted to a cross-encoder.

    Args:
        values: The vectors (n, d), float32 or float16.
        encoder: The dual encoder that makes query vectors.
        method: The fitting method; None for unfitted vectors.
        base: Name of the unfitted vectors that the fit started from.
        map: Maps query vectors of `base` or `encoder` to the fitted space; without base and encoder
            queries have no vectors (CUR).
        scale: Maps exact scores to the scale of inner products.
        fingerprint: The fingerprint of the cross-encoder.
        cost: The cost of the fit (AXN figure 2, table 3): `calls`, the number of scores used, of
            `queries` queries, including stored scores, and the seconds of the last run.
        details: The report of the fit, as JSON values.
        added: Number of items at the end that were added after the fit.
    """

    values: FloatArray
    encoder: RememberedModel | None = None
    method: str | None = None
    base: str | None = None
    map: QueryMap = field(default_factory=Same)
    scale: Scale | None = None
    fingerprint: str | None = None
    cost: Mapping[str, float] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    added: int = 0

    def checked(self, n: int, own: Mapping[str, ItemVectors], name: str) -> ItemVectors:
        """Check that the vectors match n items and that `base` is among the index's `own`."""
        what = f"the vectors {name!r}"
        values = check_vectors(self.values, n, None, what, half=True)
        source = None if self.encoder is None else self.encoder.dimensions
        if self.base is not None:
            if self.base not in own:
                raise InputError(
                    f"{what} were fitted from the vectors {self.base!r}, but the "
                    f"index has {', '.join(own)}"
                )
            source = source or own[self.base].values.shape[1]
        if source is not None:
            made = self.map(np.zeros((1, source), np.float32))
            check_vectors(made, 1, values.shape[1], f"the queries' vectors for {what}")
        return replace(self, values=values)

    def artifact(self) -> Artifact:
        """Convert to a stored artifact."""
        arrays: dict[str, Any] = {"values": self.values}
        names = "method", "base", "fingerprint", "cost", "details"
        meta = {name: getattr(self, name) for name in names} | {"map": self.map.kind}
        arrays |= {f"map.{key}": np.asarray(weight) for key, weight in vars(self.map).items()}
        meta["encoder"] = self.encoder and self.encoder.state()
        meta["scale"] = self.scale and [self.scale.alpha, self.scale.beta]
        meta |= {"added": self.added} if self.added else {}
        return Artifact(meta, arrays)

    @staticmethod
    def of(artifact: Artifact, name: str) -> ItemVectors:
        """Read from the artifact stored as `name`."""
        meta, arrays = dict(artifact.meta), artifact.arrays
        kind = MAPS[meta["map"]]
        meta["map"] = kind(*(arrays[f"map.{entry.name}"] for entry in fields(kind)))
        if meta["encoder"] is not None:
            meta["encoder"] = RememberedModel("dual encoder", name, **meta["encoder"])
        meta["scale"] = meta["scale"] and Scale(*meta["scale"])
        return ItemVectors(values=artifact.rows("values"), **meta)


class LateStates(NamedTuple):
    """The states of n items, memory-mapped if the index was loaded, with their model: float16 of a
    late-interaction model, float32 of a sparse encoder."""

    states: States
    encoder: RememberedModel

    def artifact(self) -> Artifact:
        """Convert to an artifact, as stored in the index."""
        values, starts = self.states.values, self.states.starts
        return Artifact(self.encoder.state(), {"values": values, "starts": starts})

    @staticmethod
    def of(artifact: Artifact, name: str) -> LateStates:
        """Read from the artifact that was stored as `name`."""
        kind: ModelKind = "sparse encoder" if name == SPARSE else "late-interaction model"
        model = RememberedModel(kind, name, **artifact.meta)
        return LateStates(States(artifact.rows("values"), artifact.arrays["starts"]), model)


def check_vectors(
    values: FloatArray, rows: int, dimensions: int | None, what: str, *, half: bool = False
) -> FloatArray:
    """Return finite vectors (rows, d) as float32, or float16 with `half`, or raise `InputError`."""
    try:
        vectors = np.asarray(values)
    except ValueError:
        raise InputError(f"{what} have rows of different lengths") from None
    if vectors.ndim != 2 or len(vectors) != rows or not vectors.shape[1]:
        raise InputError(f"{what} have the shape {vectors.shape}; it must be ({rows}, d)")
    if dimensions is not None and vectors.shape[1] != dimensions:
        raise InputError(
            f"{what} have {vectors.shape[1]} dimensions, but the item vectors have {dimensions}"
        )
    if vectors.dtype.kind not in "fiu":
        raise InputError(f"{what} are an array of {vectors.dtype}: give numbers")
    if not half or vectors.dtype != np.float16:
        with np.errstate(over="ignore"):  # too large becomes infinite, which is refused below
            vectors = vectors.astype(np.float32, copy=False)
    for start in range(0, rows, _CHECKED):
        block = vectors[start : start + _CHECKED]
        low, high = float(block.min()), float(block.max())
        if not (low >= -LARGEST and high <= LARGEST):  # a NaN is neither
            row = start + int(np.argmin(usable(block).all(axis=1)))
            if np.isfinite(vectors[row]).all():
                raise InputError(
                    f"{what}: row {row} contains a number above {LARGEST:g}; scale the vectors"
                )
            raise InputError(f"{what}: row {row} contains a NaN or an infinity")
    return vectors


def _open(kind: ModelKind, given: GivenModel) -> tuple[str | None, Any]:
    """Return the source of a model, if it has one, and the model."""
    openers: dict[str, Any] = {"dual encoder": DualEncoder, "sparse encoder": as_sparse_encoder}
    source, model = None, given
    if isinstance(given, str | Path):
        # Store a folder's full path, so that the index can be used from any directory.
        path = Path(given).expanduser()
        source = str(path.resolve()) if path.is_dir() else str(given)
        model = openers.get(kind, LateInteraction)(source)
    elif kind == "sparse encoder":
        model = as_sparse_encoder(given)
    if not isinstance(model, Encoder if kind in openers else LateEncoder):
        raise InputError(
            f"a {type(model).__name__} is not a {kind}: give a model (see Encoder, "
            "LateEncoder), its folder or its name"
        )
    return source, model


def encode_kept(
    work: Path,
    model: Sequence[str],
    texts: Sequence[str],
    encode: Callable[[Sequence[str], Progress], States],
    progress: Progress | None = None,
) -> States:
    """Encode the texts (n) that are missing from the folder `work`, equal texts only once.

    The texts `model` identify the model, `encode` returns the states of a batch of texts, and
    `progress` is called with (distinct texts encoded, distinct texts in all).
    """
    key, digests = files.digest(model), [files.text_digest(text) for text in texts]
    text_of = dict(zip(digests, texts, strict=True))
    with files.translate_os_errors(work, "vectors"):
        work.parent.mkdir(parents=True, exist_ok=True)
        files.make_folder(work)
    with files.exclusive_lock(work, what="vectors"):
        batches = _finished(work, key)
        finished = {name for counts in batches.values() for name in counts}
        missing = [name for name in text_of if name not in finished]
        for start in range(0, len(missing), AT_ONCE):
            batch = missing[start : start + AT_ONCE]
            before = len(text_of) - len(missing) + start

            def report(done: int, _: int, before: int = before) -> None:
                if progress is not None:
                    progress(before + done, len(text_of))

            made = encode([text_of[name] for name in batch], report)
            ids = np.frombuffer(b"".join(batch), np.uint8).reshape(-1, 16)
            path = f"{key}-{secrets.token_hex(8)}.npz"
            with files.translate_os_errors(work, "vectors"), files.new_file(work, path) as file:
                np.savez(file, texts=ids, counts=made.counts, rows=made.values)
            batches[path] = dict(zip(batch, made.counts.tolist(), strict=True))
        return _joined(work, batches, digests)


def _finished(work: Path, key: str) -> dict[str, _Counts]:
    batches = dict[str, _Counts]()
    for path in work.iterdir():
        with suppress(InputError, LookupError):
            arrays = files.read_npz(work, path.name, ["texts", "counts", "rows"])
            names, counts = arrays["texts"], arrays["counts"].astype(np.int64)
            is_whole = names.shape == (len(counts), 16) and counts.sum() == len(arrays["rows"])
            if is_whole and path.name.startswith(f"{key}-"):
                batches[path.name] = dict(zip(map(bytes, names), counts.tolist(), strict=True))
                continue
        path.unlink()  # its texts are encoded again
    return batches


def _joined(work: Path, batches: Mapping[str, _Counts], digests: Sequence[bytes]) -> States:
    counts = {name: count for each in batches.values() for name, count in each.items()}
    starts = np.append(0, np.cumsum([counts[name] for name in digests]))
    places = defaultdict[bytes, list[int]](list)
    for name, start in zip(digests, starts.tolist(), strict=False):
        places[name].append(start)
    values = None
    for file, each in batches.items():
        rows, row = files.read_npz(work, file, ["rows"])["rows"], 0
        if values is None:
            values = files.scratch((int(starts[-1]), rows.shape[1]), rows.dtype)
        for name, count in each.items():
            for start in places[name]:
                values[start : start + count] = rows[row : row + count]
            row += count
    assert values is not None
    return States(values, starts)
