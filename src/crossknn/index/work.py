"""Vectors of items while they are made: an encoding that was stopped goes on with them.

The work folder in that of an index holds files `<key>-<token>.npz`, each of some texts: their
digests (b, 16), and their vectors (b, d). The key names the model; other files are removed.
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
"""Texts of a file."""
_Encode: TypeAlias = Callable[[Sequence[str], Progress], FloatArray]


def encode_kept(
    folder: Path,
    fingerprint: str,
    d: int,
    texts: Sequence[str],
    encode: _Encode,
    progress: Progress | None = None,
) -> FloatArray:
    """Vectors (n, d) of n texts: those that the work folder has, and the others, which it keeps.

    Equal texts are encoded once. Raises `InputError` for a full disk, and another process.
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
                    f"the encoder made {len(batch)} vectors of the shape {vectors.shape}: they "
                    f"must be ({len(batch)}, {d}), and finite"
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
    """The vectors (d,) there are, by the digests of their texts."""
    made = dict[bytes, FloatArray]()
    for path in work.iterdir():
        try:
            if not path.name.startswith(f"{key}-"):
                raise InputError(f"{path} is of another model")
            arrays = read_npz(work, path.name, ["texts", "vectors"])
            names, vectors = arrays["texts"], arrays["vectors"]
            if (names.shape, vectors.shape) != ((len(names), 16), (len(names), d)):
                raise InputError(f"{path} has other shapes")
            made |= zip(map(bytes, names), vectors.astype(np.float32), strict=True)
        except (InputError, LookupError):  # the vectors are made again
            path.unlink()
    return made
