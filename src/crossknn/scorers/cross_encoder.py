"""Opening a model by what it is called: a folder, a URL, a hub name, or nothing at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from crossknn.errors import InputError, MissingExtraError, nearest
from crossknn.models.folder import MANIFEST
from crossknn.models.hub import existing, first_line, snapshot
from crossknn.models.library import open_library
from crossknn.scorers._checks import (
    CONVERT,
    check_cross_encoder_folder,
    check_dual_encoder_folder,
    check_own_kind,
)
from crossknn.scorers.base import Scorer
from crossknn.scorers.encoder import Encoder, SentenceTransformerEncoder

if TYPE_CHECKING:
    from crossknn.scorers.late import EncodedLateInteraction

PathOrName: TypeAlias = str | Path | None

BUNDLED = "bundled"

# What a hub snapshot needs: no code, no other frameworks' weights, no exported copies.
_SMALL_FILES = ("*.json", "*.txt", "*.model", "*.jinja", "model.onnx", "model.onnx.data")
_PICKLES = (".ckpt", ".pt", ".pth", ".torch", ".bin")


def CrossEncoder(path_or_name: PathOrName = None, **options: Any) -> Scorer:  # noqa: N802
    """Open a cross-encoder.

    - None or "bundled": the small model that comes with the package;
    - a folder with `crossknn.json`: `OnnxCrossEncoder`;
    - a folder with `cross_encoder.json`, trained or converted here: `TorchCrossEncoder`;
    - a Hugging Face or sentence-transformers folder, or a hub name: `PredictScorer` (torch extra);
    - `http://` or `https://`: `HttpScorer`, a `/rerank` endpoint.

    `options` go to that class; for sentence-transformers models `batch` goes to `PredictScorer`
    and the rest (`device`, `max_length`, `revision`, `model_kwargs`) to their own class. Loading
    runs no code from a model's folder.

    Raises InputError for what is not a cross-encoder with one score per pair, and says why;
    MissingExtraError if the model needs torch.
    """
    if path_or_name is None or path_or_name == BUNDLED:
        path_or_name = bundled_folder("cross-encoder")
    if isinstance(path_or_name, str) and path_or_name.startswith(("http://", "https://")):
        from crossknn.scorers.http import HttpScorer

        return HttpScorer(path_or_name, **known_options(HttpScorer, options))
    folder = folder_of(path_or_name, options)
    if (folder / MANIFEST).exists():
        from crossknn.scorers.onnx import OnnxCrossEncoder

        return OnnxCrossEncoder(folder, **known_options(OnnxCrossEncoder, options))
    check_own_kind(folder, str(path_or_name), "cross_encoder.json")
    if (folder / "cross_encoder.json").exists():
        with needs_torch(f"the cross-encoder {path_or_name}"):
            from crossknn.scorers.torch import TorchCrossEncoder

            return TorchCrossEncoder(folder, **known_options(TorchCrossEncoder, options))
    from crossknn.scorers.predict import PredictScorer

    check_cross_encoder_folder(folder, str(path_or_name))
    batch = {"batch": options.pop("batch")} if "batch" in options else {}
    what = f"the cross-encoder {path_or_name}"
    model = open_library("CrossEncoder", str(folder), what, **options)
    try:
        model.preprocess([("a query", "an item")])
    except Exception as error:  # a chat template that has no place for a query and a document
        raise InputError(f"{what} cannot read a pair: {first_line(error)}") from error
    return PredictScorer(model, name=str(path_or_name), **batch)


def DualEncoder(path_or_name: PathOrName = None, **options: Any) -> Encoder:  # noqa: N802
    """Open a dual encoder: None or "bundled", an ONNX folder, a bi-encoder's folder or hub name.

    Raises InputError for what is not one, MissingExtraError if it needs torch.
    """
    if path_or_name is None or path_or_name == BUNDLED:
        path_or_name = bundled_folder("dual-encoder")
    folder = folder_of(path_or_name, options)
    if (folder / MANIFEST).exists():
        from crossknn.scorers.onnx import OnnxDualEncoder

        return OnnxDualEncoder(folder, **options)
    check_own_kind(folder, str(path_or_name), "dual_encoder.json")
    if (folder / "dual_encoder.json").exists():
        with needs_torch(f"the dual encoder {path_or_name}"):
            from crossknn.scorers.torch import TorchDualEncoder

            return TorchDualEncoder(folder, **options)
    check_dual_encoder_folder(folder, str(path_or_name))
    return SentenceTransformerEncoder(folder, **options)


def open_late(path_or_name: str | Path, **options: Any) -> EncodedLateInteraction:
    """Open a late-interaction model: a folder trained here, its ONNX export, or a hub name of one.

    `options` go to `TorchLateInteraction` or `OnnxLateInteraction`. Raises InputError for what is
    not one, and says why; MissingExtraError if the model needs torch.
    """
    folder = folder_of(path_or_name, options)
    if (folder / MANIFEST).exists():
        from crossknn.scorers.late_onnx import OnnxLateInteraction

        return OnnxLateInteraction(folder, **options)
    check_own_kind(folder, str(path_or_name), "late_interaction.json")
    if not (folder / "late_interaction.json").exists():
        raise InputError(
            f"{path_or_name} is not a late-interaction model: it has neither {MANIFEST} nor "
            f"late_interaction.json; train one with  crossknn train cmc"
        )
    with needs_torch(f"the late-interaction model {path_or_name}"):
        from crossknn.scorers.late_torch import TorchLateInteraction

        return TorchLateInteraction(folder, **options)


def as_scorer(what: Any = None, **options: Any) -> Scorer:
    """Make a scorer of what users have: a scorer, a path, a name, a model, a function, a matrix.

    Raises InputError for anything else.
    """
    if what is None or isinstance(what, (str, Path)):
        return CrossEncoder(what, **options)
    if isinstance(what, Scorer):
        return what
    if getattr(what, "ndim", None) == 2 and hasattr(what, "dtype"):
        from crossknn.scorers.matrix import MatrixScorer

        return MatrixScorer(what, **options)
    if hasattr(what, "predict") or hasattr(what, "encode"):
        from crossknn.scorers.predict import PredictScorer

        return PredictScorer(what, **options)
    if callable(what):
        from crossknn.scorers.callable import CallableScorer

        return CallableScorer(what, **options)
    raise InputError(
        f"cannot score with {type(what).__name__}: give a cross-encoder, its folder, name or URL, "
        f"an object with predict(pairs), a function, or a matrix of scores"
    )


def known_options(kind: type, options: dict[str, Any]) -> dict[str, Any]:
    """The options, if `kind` has them all. Raises InputError otherwise."""
    known = [p.name for p in signature(kind).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for name in options:
        if name not in known:
            raise InputError(f"{kind.__name__} has no option {name!r}: {nearest(name, known)}")
    return options


def bundled_folder(kind: str) -> Path:
    """The folder of the model of `kind` that comes with the package."""
    folder = Path(str(files("crossknn"))) / "bundled" / kind
    if not (folder / MANIFEST).is_file():
        raise InputError(
            f"this installation has no bundled {kind}: reinstall crossknn, or give a model"
        )
    return folder


@contextmanager
def needs_torch(what: str) -> Iterator[None]:
    """Turns a missing import inside into the error that names the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtraError(what, "torch") from error


def folder_of(path_or_name: str | Path, options: dict[str, Any]) -> Path:
    """An existing folder, or the local snapshot of a hub name."""
    found = existing(path_or_name)
    if found is None:
        return _download(str(path_or_name), options.pop("revision", None))
    if found.is_dir():
        return found
    hint = f"; a checkpoint is first made one by  {CONVERT}" if found.suffix in _PICKLES else ""
    raise InputError(f"{path_or_name} is a file, where a model folder is needed{hint}")


def _download(name: str, revision: str | None) -> Path:
    ignored = ("onnx/*", "openvino/*")
    folder = snapshot(name, revision, (*_SMALL_FILES, "*.safetensors"), ignored)
    if any(folder.glob("*.safetensors")) or (folder / "model.onnx").exists():
        return folder
    return snapshot(name, revision, (*_SMALL_FILES, "*.bin"), ignored)
