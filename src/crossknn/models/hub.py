"""Models by name: a file or a folder, or a name on the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from crossknn.checks import as_path
from crossknn.errors import InputError, MissingExtraError


def existing(path_or_name: str | Path) -> Path | None:
    """The file or folder there, or None for what can only be a hub name; InputError if neither."""
    path, name = as_path(path_or_name, "the model").expanduser(), str(path_or_name)
    if name and path.exists():  # Path("") would be the current folder
        return path
    looks_local = isinstance(path_or_name, Path) or name.startswith((".", "/", "~"))
    if looks_local or name.count("/") > 1 or "\\" in name or " " in name or not name:
        raise InputError(f"there is no model folder {name!r}")
    return None


def snapshot(
    name: str, revision: str | None, allow: Sequence[str], ignore: Sequence[str] = ()
) -> Path:
    """A local folder with the files of a hub name that match. Raises InputError if it has none."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise MissingExtraError(
            f"{name} is no folder; to load it from the Hugging Face hub", "torch"
        ) from error
    try:
        return Path(
            snapshot_download(
                name, revision=revision, allow_patterns=list(allow), ignore_patterns=list(ignore)
            )
        )
    except Exception as error:
        raise InputError(
            f"there is no folder {name!r}, and the Hugging Face hub gave no model of that name: "
            f"{first_line(error)}"
        ) from error


def first_line(error: Exception) -> str:
    """The first line of an error's message, or its type if it has none.

    A model folder that brings Python code is refused by the libraries with advice to trust it.
    """
    text = str(error).strip()
    if "trust_remote_code" in text:
        return "it needs Python code from its own folder, which crossknn never runs"
    return text.splitlines()[0] if text else type(error).__name__
