"""The folder of a `ScoreBank`: what its scores are of, and who may write there."""

from __future__ import annotations

import json
import logging
import secrets
from pathlib import Path
from typing import NamedTuple

from crossknn.errors import InputError
from crossknn.index.disk import alone, keeping, put_file

logger = logging.getLogger(__name__)

FORMAT = 2
QUERIES, ITEMS = "queries.jsonl", "items.bin"
_META, _SECONDS = "work.json", "seconds.json"
_SHARDS = "shard-*.bin"


class Meta(NamedTuple):
    """Of which format and cross-encoder the scores in a folder are, and what tells them apart.

    Each bank has another `token`, also one of the same cross-encoder in the same place.
    """

    format: int
    fingerprint: str | None
    token: str


def open_folder(folder: Path, fingerprint: str | None, rescore: bool) -> None:
    """Make `folder` one of scores of this cross-encoder, empty if it was not.

    Raises InputError for scores of another cross-encoder, unless `rescore` discards them, for one
    without a fingerprint, for damaged scores, and if another process is adding scores to those.
    """
    if fingerprint is None:
        raise InputError(
            f"the cross-encoder has no fingerprint, so that its scores in {folder} could be "
            "mistaken for another model's: name it (--model NAME for a URL; name='...' for a "
            "function)"
        )
    with keeping(folder):
        if not _fits(folder, fingerprint, rescore):
            folder.parent.mkdir(parents=True, exist_ok=True)
            with alone(folder):
                if rescore or not _fits(folder, fingerprint, rescore):  # nobody was faster
                    _start(folder, fingerprint)


def still(folder: Path, meta: Meta) -> None:
    """InputError if another process has discarded the scores since they were opened."""
    if not there(folder) or read_meta(folder) != meta:
        raise InputError(f"the scores in {folder} were discarded meanwhile; open them again")


def there(folder: Path) -> bool:
    """Whether there are scores in `folder`, or damaged ones."""
    return (folder / _META).is_file() or any(folder.glob(_SHARDS))


def mismatch(folder: Path, fingerprint: str) -> str | None:
    """Why the scores in `folder` are none of this cross-encoder; InputError if they are damaged."""
    version, old, _ = read_meta(folder)
    discard = "discard them with rescore=True (--rescore)"
    if version != FORMAT:
        return (
            f"the scores in {folder} have the format {version}, not {FORMAT}: go on with the "
            f"version of crossknn that wrote them, or {discard}"
        )
    if old != fingerprint:
        return f"the scores in {folder} are of {old}, not of {fingerprint}; {discard}"
    return None


def shards_in(folder: Path) -> list[Path]:
    """The files of all shards, by number; ValueError if one is missing between others."""
    found = sorted(folder.glob(_SHARDS))
    for number, path in enumerate(found):
        if path != (expected := shard_file(folder, number)):
            raise ValueError(f"{expected.name} is missing")
    return found


def shard_file(folder: Path, number: int) -> Path:
    """The file of a shard."""
    return folder / f"shard-{number:06d}.bin"


def damaged(folder: Path | None, what: object) -> InputError:
    """The error that says so."""
    return InputError(
        f"the scores in {folder} are damaged ({what}): bring its files back from a copy, or remove "
        f"the folder {folder} and pay for its scores again"
    )


def _fits(folder: Path, fingerprint: str, rescore: bool) -> bool:
    """Whether `folder` has scores of this cross-encoder; InputError if they must not be mixed."""
    if not there(folder):
        return False
    if (why := mismatch(folder, fingerprint)) is None:
        return True
    if not rescore:
        raise InputError(why)
    logger.info("discarding the scores in %s", folder)
    return False


def read_meta(folder: Path) -> Meta:
    """What the scores are; InputError if that cannot be read."""
    try:
        found = json.loads((folder / _META).read_bytes())
        return Meta(found["format"], found["fingerprint"], found.get("token", ""))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise damaged(folder, _META) from None


def _start(folder: Path, fingerprint: str) -> None:
    """An empty bank; whatever another one left is removed.

    The last shards go first, and all of them before what they are of: a kill leaves a bank.
    """
    for path in sorted(folder.glob(_SHARDS + "*"), reverse=True):
        path.unlink()
    for pattern in (_META, "block-*", QUERIES, ITEMS, _SECONDS + "*"):
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)
    for name in (QUERIES, ITEMS):
        (folder / name).touch()
    meta = Meta(FORMAT, fingerprint, secrets.token_hex(8))
    put_file(folder / _META, json.dumps(meta._asdict()).encode())


def read_seconds(folder: Path) -> tuple[int, float]:
    """How many pairs were paid in how many seconds, as far as that was measured and is legible."""
    try:
        found = json.loads((folder / _SECONDS).read_bytes())
        return int(found["pairs"]), float(found["seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0, 0.0


def add_seconds(folder: Path, pairs: int, seconds: float) -> tuple[int, float]:
    """Add to what `read_seconds` reads, and return it."""
    with keeping(folder):
        before = read_seconds(folder)
        after = before[0] + pairs, round(before[1] + seconds, 6)
        put_file(folder / _SECONDS, json.dumps({"pairs": after[0], "seconds": after[1]}).encode())
    return after
