"""Versioned columnar files: a JSON header and numpy columns in one compressed archive.

Every type that travels between stages (`Workload`, `MigrationPlan`, `AccessStream`, captures) is kept in this form. The
file is an ordinary `.npz` (numpy opens it) without pickles, and the same content gives the same bytes.
"""

import io
import json
import os
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pagetide.model.errors import InputError

__all__ = ["atomic_write_bytes", "load_columns", "save_columns", "text_column", "text_from_column"]

_EPOCH = (1980, 1, 1, 0, 0, 0)
_HEADER = "header"


def text_column(texts: Iterable[str]) -> NDArray[np.uint8]:
    """Pack strings into one uint8 column (UTF-8, one line each); raises `InputError` for a line break inside a string."""
    rows = list(texts)
    for row in rows:
        if "\n" in row:
            raise InputError(f"a name must not contain a line break, but {row!r} does; rename it")
    return np.frombuffer("".join(f"{row}\n" for row in rows).encode(), dtype=np.uint8)


def text_from_column(column: NDArray[np.uint8]) -> tuple[str, ...]:
    """Unpack what `text_column` packed."""
    return tuple(column.tobytes().decode().split("\n")[:-1])


def atomic_write_bytes(path: Path, data: bytes) -> None:
    """Write `data` to `path` so that a reader sees the old file or the whole new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        umask = os.umask(0)
        os.umask(umask)
        Path(name).chmod(0o666 & ~umask)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def save_columns(
    path: Path,
    *,
    kind: str,
    version: int,
    header: Mapping[str, Any],
    columns: Mapping[str, NDArray[Any]],
) -> None:
    """Write `columns` and a JSON `header` to `path` (atomically, deterministic bytes).

    Args:
        path: the file to write; its folder is made if needed.
        kind: what the file is, for instance ``"workload"``; checked on loading.
        version: version of that kind's layout.
        header: anything JSON can hold.
        columns: arrays of any shape with a plain (non-object) dtype.
    """
    head = {"pagetide": kind, "version": version, **header}
    blobs = {_HEADER: np.frombuffer(json.dumps(head, sort_keys=True).encode(), dtype=np.uint8)}
    blobs.update(columns)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, column in blobs.items():
            raw = io.BytesIO()
            np.lib.format.write_array(raw, np.ascontiguousarray(column), allow_pickle=False)
            info = zipfile.ZipInfo(f"{name}.npy", date_time=_EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, raw.getvalue(), compresslevel=9)
    atomic_write_bytes(path, buffer.getvalue())


def load_columns(
    path: Path, *, kind: str, version: int, required: Iterable[str]
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Read a file that `save_columns` wrote.

    Args:
        path: the file.
        kind: the kind expected.
        version: the newest version this code reads.
        required: names of columns that must be present.

    Returns:
        The header (with ``version``) and the columns by name.

    Raises:
        InputError: the file is missing, is no such archive, is damaged, of another kind or of a newer version.
    """
    try:
        # From memory: numpy leaves the file open when it is damaged.
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as archive:
            columns = {name: np.asanyarray(archive[name]) for name in archive.files}
        if any(column.dtype.kind not in "biuf" for column in columns.values()):
            raise ValueError("a column holds no numbers")
        head = json.loads(columns.pop(_HEADER).tobytes())
        found, found_version = str(head.pop("pagetide")), int(head["version"])
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; check the path") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder, but a {kind} file is needed") from None
    except PermissionError:
        raise InputError(f"{path}: may not be read; check its permissions") from None
    except Exception as error:
        # zipfile, zlib, numpy, tokenize and json each have errors of their own for damaged bytes, and MemoryError,
        # RecursionError and OverflowError come up as well.
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(
            f"{path}: not a Pagetide {kind} file, or damaged ({reason[:200]}); write it again"
        ) from None
    if found != kind:
        raise InputError(f"{path}: holds a {found}, but a {kind} is needed")
    if found_version > version:
        raise InputError(
            f"{path}: {kind} version {found_version} is newer than the {version} this Pagetide reads; update Pagetide"
        )
    missing = [name for name in required if name not in columns]
    if missing:
        raise InputError(
            f"{path}: damaged {kind} file: column {missing[0]!r} is missing; write it again"
        )
    return head, columns
