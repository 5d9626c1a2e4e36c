"""The folder of a `ScoreBank`: what its scores are of, and who may write there."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from crossknn.errors import InputError

logger = logging.getLogger(__name__)

FORMAT = 1
QUERIES = "queries.jsonl"
_META = "work.json"
_FILES = ("shard-*.bin*", "block-*.f32*", QUERIES)


def open_folder(folder: Path, items: str, n: int, fingerprint: str | None, rescore: bool) -> None:
    """Make `folder` one of scores of these items and this cross-encoder, empty if it was not.

    Raises InputError for scores of another cross-encoder or of other items, unless `rescore`
    discards them, and if another process is adding scores to those.
    """
    meta = {"format": FORMAT, "items": items, "n": n, "fingerprint": fingerprint}
    with writing(folder):
        if not _fits(folder, meta, rescore):
            folder.mkdir(parents=True, exist_ok=True)
            with alone(folder):
                _start(folder, meta)


def _fits(folder: Path, meta: dict[str, Any], rescore: bool) -> bool:
    """Whether `folder` has scores that `meta` describes; InputError if they must not be mixed."""
    path = folder / _META
    if not path.is_file():
        return False
    try:
        old = json.loads(path.read_text(encoding="utf-8"))
        version, items, fingerprint = old["format"], (old["items"], old["n"]), old["fingerprint"]
    except (ValueError, KeyError, TypeError):
        raise InputError(f"the scores in {folder} are damaged ({_META}); remove it") from None
    if version != FORMAT:
        raise InputError(
            f"the scores in {folder} have the format {version}; upgrade crossknn, or remove them"
        )
    new, same_items = meta["fingerprint"], items == (meta["items"], meta["n"])
    if same_items and fingerprint is not None and fingerprint == new:
        return True
    if rescore:
        logger.info("discarding the scores in %s", folder)
        return False
    discard = "discard them with rescore=True (--rescore)"
    if not same_items:
        raise InputError(
            f"the scores in {folder} are of other items, or of these in another order: build the "
            f"index of those again, or {discard}"
        )
    if fingerprint is None or new is None:
        raise InputError(
            f"the scores in {folder} are of {_called(fingerprint)}, and cannot be told from those "
            f"of {_called(new)}: name the scorer, or {discard}"
        )
    raise InputError(f"the scores in {folder} are of {fingerprint}, not of {new}; {discard}")


def _called(fingerprint: str | None) -> str:
    return fingerprint or "a cross-encoder without a fingerprint"


def _start(folder: Path, meta: dict[str, Any]) -> None:
    """An empty bank; whatever another one left is removed."""
    (folder / _META).unlink(missing_ok=True)
    for pattern in _FILES:
        for path in folder.glob(pattern):
            path.unlink()
    (folder / QUERIES).touch()
    part = folder / (_META + ".part")
    part.write_text(json.dumps(meta), encoding="utf-8")
    os.replace(part, folder / _META)


@contextmanager
def writing(folder: Path | None) -> Iterator[None]:
    """Turns a full or missing disk into one sentence."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"scores cannot be kept in {folder}: {error.strerror or error}; those paid so far are "
            "kept"
        ) from error


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One process at a time adds scores: two would pay twice. Raises InputError if one does."""
    if os.name == "nt":
        yield
        return
    import fcntl

    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems have no locks
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(
                    f"another process is adding scores to {folder}; wait for it, or end it"
                ) from None
        yield
    finally:
        os.close(handle)
