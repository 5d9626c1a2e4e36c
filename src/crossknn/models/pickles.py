"""Torch checkpoints read as data: nothing that a pickle names is ever run.

A pickle is a program. `torch.load` runs it, or with `weights_only` refuses every checkpoint that
holds a configuration object. Here tensors, storages and plain containers are let through; any
other name becomes an `Inert` object, which keeps what was to be put into it and does nothing.
Tensors stay in the file until they are asked for, so optimizer states are never read. Needs no
torch but in `Checkpoint.tensor`.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, ClassVar, NamedTuple

from crossknn.errors import InputError

_ZIP = b"PK\x03\x04"
_MAGIC = 0x1950A86A20F9469CFC6C
_STORAGES = {
    "FloatStorage": ("float32", 4),
    "DoubleStorage": ("float64", 8),
    "HalfStorage": ("float16", 2),
    "BFloat16Storage": ("bfloat16", 2),
    "LongStorage": ("int64", 8),
    "IntStorage": ("int32", 4),
    "ShortStorage": ("int16", 2),
    "CharStorage": ("int8", 1),
    "ByteStorage": ("uint8", 1),
    "BoolStorage": ("bool", 1),
}

_REFUSED = {pickle.BYTEARRAY8[0], pickle.NEXT_BUFFER[0], pickle.READONLY_BUFFER[0]}


class Storage(NamedTuple):
    """`size` numbers in the file, of the kind `kind` (a name of `_STORAGES`)."""

    kind: str
    key: str
    size: int


class Stored(NamedTuple):
    """A tensor in the file: a view of a storage."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Inert:
    """In the place of an object whose class is not let through: its state, and no behaviour."""

    def __new__(cls, *arguments: object, **keywords: object) -> Inert:
        self = super().__new__(cls)
        self.items = {}
        return self

    def __init__(self, *arguments: object, **keywords: object) -> None:
        self.items: dict[Any, Any]

    def __call__(self, *arguments: object, **keywords: object) -> Inert:
        return Inert()

    def __setstate__(self, state: object) -> None:
        if isinstance(state, dict):
            self.items.update(state)

    def __setitem__(self, key: object, value: object) -> None:
        self.items[key] = value

    def append(self, value: object) -> None:
        """Lists and sets are of no use here."""

    add = extend = append


class Checkpoint:
    """What a file holds: `content` is plain data, with `Stored` in the place of tensors."""

    def __init__(self, path: Path, content: Any, places: dict[str, int]) -> None:
        """`places` are the places of the storages in the file."""
        self.path = path
        self.content = content
        self._places = places

    def tensor(self, stored: Stored) -> Any:
        """The tensor itself, read now. Raises InputError if the file has become shorter."""
        import torch

        kind, width = _STORAGES[stored.storage.kind]
        if not stored.storage.size:
            return torch.empty(stored.shape, dtype=getattr(torch, kind))
        with self.path.open("rb") as file:
            file.seek(self._places[stored.storage.key])
            raw = bytearray(file.read(stored.storage.size * width))
        if len(raw) != stored.storage.size * width:
            raise InputError(f"{self.path} is not a readable torch checkpoint: it ends too early")
        flat = torch.frombuffer(raw, dtype=getattr(torch, kind))
        return flat.as_strided(stored.shape, stored.strides, stored.offset).clone()


def read_checkpoint(path: str | Path) -> Checkpoint:
    """A file that `torch.save` wrote, in either of its formats; nothing in it is run.

    Raises InputError for any other file, and for a damaged one.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            start = file.read(len(_ZIP))
        return _read_zip(path) if start == _ZIP else _read_legacy(path)
    except Exception as error:  # a pickle can be wrong in any way
        raise InputError(
            f"{path} is not a readable torch checkpoint: {_sentence(error)}"
        ) from error


def _read_zip(path: Path) -> Checkpoint:
    with zipfile.ZipFile(path) as file:
        names = file.namelist()
        pickled = [name for name in names if name.count("/") == 1 and name.endswith("/data.pkl")]
        if len(pickled) != 1:
            raise ValueError("it holds no data.pkl")
        archive = pickled[0].split("/")[0]
        order = f"{archive}/byteorder"
        if order in names and file.read(order) != b"little":
            raise ValueError("its numbers are big-endian")
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in file.infolist()):
            raise ValueError("it is compressed, as torch writes none")
        reader = _Unpickler(io.BytesIO(file.read(pickled[0])))
        content = reader.load()
        entries = {key: file.getinfo(f"{archive}/data/{key}") for key in reader.storages}
    places = {}
    with path.open("rb") as file:
        for key, entry in entries.items():
            _check_size(reader.storages[key], entry.file_size)
            file.seek(entry.header_offset + 26)
            places[key] = entry.header_offset + 30 + sum(struct.unpack("<HH", file.read(4)))
    return Checkpoint(path, content, places)


def _read_legacy(path: Path) -> Checkpoint:
    """Four pickles and a list of storage keys, then each storage with its size before it."""
    end = path.stat().st_size
    with _Bounded(path) as file:
        if _Unpickler(file).load() != _MAGIC:
            raise ValueError("it does not begin as one")
        for _ in ("protocol", "system"):
            _Unpickler(file).load()
        reader = _Unpickler(file)
        content = reader.load()
        places: dict[str, int] = {}
        for key in _Unpickler(file).load():
            width = _STORAGES[reader.storages[key].kind][1]
            size = int.from_bytes(file.read(8), "little") * width
            places[key] = file.tell()
            _check_size(reader.storages[key], min(size, end - places[key]))
            file.seek(size, 1)
    if set(places) != set(reader.storages):
        raise ValueError("some of its tensors are missing")
    return Checkpoint(path, content, places)


def _check_size(storage: Storage, size: int) -> None:
    wanted = storage.size * _STORAGES[storage.kind][1]
    if size != wanted:
        raise ValueError(f"a tensor has {size} bytes instead of {wanted}")


class _Bounded(io.FileIO):
    """A file that sets no memory aside for more bytes than it has."""

    def read(self, size: int | None = -1, /) -> bytes:
        left = max(0, os.fstat(self.fileno()).st_size - self.tell())
        return super().read(left if size is None or size < 0 else min(size, left)) or b""


class _Unpickler(pickle._Unpickler):
    """The restricted reader; `storages` are those that it met, by key.

    The one in Python: the one in C sets memory aside for whatever sizes a damaged file names.
    """

    dispatch: ClassVar = {
        code: load for code, load in pickle._Unpickler.dispatch.items() if code not in _REFUSED
    }

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self.storages: dict[str, Storage] = {}

    def find_class(self, module: str, name: str) -> Any:
        # Made anew for each file: a pickle can set attributes of what it is given.
        if module in ("torch", "torch.cuda") and name in _STORAGES:
            return name
        if module == "torch._utils" and name in ("_rebuild_tensor", "_rebuild_tensor_v2"):
            return lambda *arguments: _stored(*arguments[:4])
        if module == "torch._utils" and name == "_rebuild_parameter":
            return lambda data, *rest: data
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch", "Size"):
            return tuple
        return type("Inert", (Inert,), {})

    def persistent_load(self, saved: Any) -> Storage:
        what, kind, key, _, size, *view = saved
        if what != "storage" or kind not in _STORAGES or not isinstance(key, str) or any(view):
            raise pickle.UnpicklingError("it holds something other than tensors outside its pickle")
        found = Storage(kind, key, int(size))
        if self.storages.setdefault(key, found) != found:
            raise pickle.UnpicklingError("it gives one place to two tensors")
        return found


def _stored(storage: Any, offset: Any, shape: Any, strides: Any) -> Stored:
    """A view that lies within its storage and is not larger than it."""
    if not isinstance(storage, Storage):
        raise pickle.UnpicklingError("it holds a tensor of something that is no storage")
    shape, strides = tuple(map(int, shape)), tuple(map(int, strides))
    if len(shape) != len(strides) or offset < 0 or min((0, *shape, *strides)) < 0:
        raise pickle.UnpicklingError("it holds a tensor of an impossible shape")
    last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    size = math.prod(shape)
    if size and (last >= storage.size or size > storage.size):
        raise pickle.UnpicklingError("it holds a tensor larger than its storage")
    return Stored(storage, int(offset), shape, strides)


def tensors_of(content: Any) -> dict[str, Stored]:
    """The tensors of a state dict by name; `state_dict` or `sd` where a trainer wrote the file."""
    state = content if isinstance(content, Mapping) else {}
    state = next((state[key] for key in ("state_dict", "sd") if key in state), state)
    found = state.items() if isinstance(state, Mapping) else ()
    return {str(name): value for name, value in found if isinstance(value, Stored)}


def _sentence(error: Exception) -> str:
    known = (OSError, ValueError, pickle.UnpicklingError, zipfile.BadZipFile)
    text = str(error).strip() if isinstance(error, known) else ""
    return text.splitlines()[0].rstrip(".") if text else "it is damaged"
