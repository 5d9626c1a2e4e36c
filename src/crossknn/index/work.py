"""Vectors of finished batches, kept while items are encoded so that a stopped run can resume.

The index's work folder holds files `<key>-<token>.npz`, one per batch of texts, with their digests
(b, 16) and vectors (b, d). The key names the model; other files are removed.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np

from crossknn.errors import InputError
from crossknn.files import (
    digest,
    exclusive_lock,
    make_folder,
    new_file,
    read_npz,
    text_digest,
    translate_os_errors,
)
from crossknn.types import FloatArray, Progress

WORK = "work-vectors"
AT_ONCE = 512
"""Number of texts per file."""
_Encode: TypeAlias = Callable[[Sequence[str], Progress], FloatArray]


def encode_kept(
    folder: Path,
    fingerprint: str,
    d: int,
    texts: Sequence[str],
    encode: _Encode,
    progress: Progress | None = None,
) -> FloatArray:
    """Return the vectors (n, d) of n texts, encoding only those missing from the work folder.

    Equal texts are encoded once. Raises `InputError` if the disk is full, or another process is
    encoding.
    """
    work, key = folder / WORK, digest([fingerprint])
    with translate_os_errors(work, "vectors"):
        folder.mkdir(parents=True, exist_ok=True)
        make_folder(work)
    with exclusive_lock(work, what="vectors"):
        made = _read(work, key, d)
        digests = [text_digest(text) for text in texts]
        missing = dict(zip(digests, texts, strict=True))
        missing = {name: text for name, text in missing.items() if name not in made}
        before, total = len({*digests}) - len(missing), len({*digests})

        names = [*missing]
        for start in range(0, len(names), AT_ONCE):
            batch = names[start : start + AT_ONCE]
            report = partial(_report, progress, before + start, total)
            vectors = encode([missing[name] for name in batch], report)
            if vectors.shape != (len(batch), d) or not np.isfinite(vectors).all():
                raise InputError(
                    f"the encoder returned vectors of the shape {vectors.shape} for "
                    f"{len(batch)} texts: they must be ({len(batch)}, {d}), and finite"
                )
            ids = np.frombuffer(b"".join(batch), np.uint8).reshape(-1, 16)
            with (
                translate_os_errors(work, "vectors"),
                new_file(work, f"{key}-{secrets.token_hex(8)}.npz") as file,
            ):
                np.savez(file, texts=ids, vectors=vectors)
            made |= zip(batch, vectors, strict=True)
    return np.stack([made[name] for name in digests])


def _report(progress: Progress | None, before: int, total: int, done: int, _: int) -> None:
    if progress is not None:
        progress(before + done, total)


def _read(work: Path, key: str, d: int) -> dict[bytes, FloatArray]:
    """Read the finished vectors (d,), by the digests of their texts."""
    made = dict[bytes, FloatArray]()
    for path in work.iterdir():
        try:
            if not path.name.startswith(f"{key}-"):
                raise InputError(f"{path} belongs to another model")
            arrays = read_npz(work, path.name, ["texts", "vectors"])
            names, vectors = arrays["texts"], arrays["vectors"]
            if (names.shape, vectors.shape) != ((len(names), 16), (len(names), d)):
                raise InputError(f"{path} contains arrays of unexpected shapes")
            made |= zip(map(bytes, names), vectors.astype(np.float32), strict=True)
        except (InputError, LookupError):  # the vectors are made again
            path.unlink()
    return made
