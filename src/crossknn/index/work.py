"""Vectors and states of finished batches, stored so that a stopped encoding can resume.

A work folder has a file `<key>-<token>.npz` for each batch of b texts: their digests (b, 16), their
numbers of rows (b,), and the rows (s, d). The key identifies the model; other files are removed.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
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
    scratch,
    text_digest,
    translate_os_errors,
)
from crossknn.types import Progress, States

AT_ONCE = 512
"""Number of texts per file."""
_Counts: TypeAlias = dict[bytes, int]
"""Numbers of rows by digest of the text, in the order of a file."""


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
    key, digests = digest(model), [text_digest(text) for text in texts]
    text_of = dict(zip(digests, texts, strict=True))
    with translate_os_errors(work, "vectors"):
        work.parent.mkdir(parents=True, exist_ok=True)
        make_folder(work)
    with exclusive_lock(work, what="vectors"):
        files = _finished(work, key)
        finished = {name for counts in files.values() for name in counts}
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
            with translate_os_errors(work, "vectors"), new_file(work, path) as file:
                np.savez(file, texts=ids, counts=made.counts, rows=made.values)
            files[path] = dict(zip(batch, made.counts.tolist(), strict=True))
        return _joined(work, files, digests)


def _finished(work: Path, key: str) -> dict[str, _Counts]:
    files = dict[str, _Counts]()
    for path in work.iterdir():
        with suppress(InputError, LookupError):
            arrays = read_npz(work, path.name, ["texts", "counts", "rows"])
            names, counts = arrays["texts"], arrays["counts"].astype(np.int64)
            is_whole = names.shape == (len(counts), 16) and counts.sum() == len(arrays["rows"])
            if is_whole and path.name.startswith(f"{key}-"):
                files[path.name] = dict(zip(map(bytes, names), counts.tolist(), strict=True))
                continue
        path.unlink()  # its texts are encoded again
    return files


def _joined(work: Path, files: Mapping[str, _Counts], digests: Sequence[bytes]) -> States:
    counts = {name: count for each in files.values() for name, count in each.items()}
    starts = np.append(0, np.cumsum([counts[name] for name in digests]))
    places = defaultdict[bytes, list[int]](list)
    for name, start in zip(digests, starts.tolist(), strict=False):
        places[name].append(start)
    values = None
    for file, each in files.items():
        rows, row = read_npz(work, file, ["rows"])["rows"], 0
        if values is None:
            values = scratch((int(starts[-1]), rows.shape[1]), rows.dtype)
        for name, count in each.items():
            for start in places[name]:
                values[start : start + count] = rows[row : row + count]
            row += count
    assert values is not None
    return States(values, starts)
