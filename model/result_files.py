"""Results on disk: a JSON file that people read, and Parquet tables beside it that every data tool opens.

``NAME.json`` holds the summary and every scalar, with the whole configuration, versions and provenance. Beside it lie

- ``NAME.kernels.parquet``: one row a kernel,
- ``NAME.transfers.parquet``: one row a transfer,
- ``NAME.tensors.parquet``: one row a tensor.

The same result gives the same bytes. The JSON file is written last and holds a hash of each table, so that a reader never takes
tables of one run for those of another.
"""

import hashlib
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pagetide.model.columnar import atomic_write_bytes
from pagetide.model.errors import InputError
from pagetide.model.result import Result, Transfers
from pagetide.model.workload.workload import Kernels, Phase, TensorKind, Tensors

__all__ = ["find_results", "load_result", "result_path", "save_result"]

_T = TypeVar("_T")

_KIND = "result"
_VERSION = 1
_TABLES = ("kernels", "transfers", "tensors")
_PLACES = ("gpu", "host", "ssd")


def result_path(result: Result, path: Path) -> Path:
    """Return the JSON file that `save_result` writes: `path` itself if it ends in ``.json``, else one in that folder.

    In a folder the file is named after the policy, ``g10.json``.
    """
    if path.suffix == ".json":
        return path
    return path / f"{re.sub(r'[^A-Za-z0-9_.+-]+', '-', result.policy) or 'result'}.json"


def save_result(result: Result, path: Path) -> Path:
    """Write a result: a JSON file and its tables; the folder is made if needed.

    Args:
        result: what is written.
        path: a file that ends in ``.json``, or a folder (see `result_path`).

    Returns:
        The JSON file.
    """
    file = result_path(result, path)
    tables = {
        "kernels": _kernel_table(result),
        "transfers": _transfer_table(result),
        "tensors": _tensor_table(result),
    }
    digests = {}
    for name, table in tables.items():
        data = _parquet_bytes(table)
        digests[name] = hashlib.sha256(data).hexdigest()
        atomic_write_bytes(_table_path(file, name), data)
    document = {
        "pagetide": _KIND,
        "version": _VERSION,
        "sha256": digests,
        "channels": list(result.channels),
        "causes": list(result.causes),
        "transfers_lost": result.transfers.lost,
        **result.summary(),
    }
    atomic_write_bytes(file, (json.dumps(document, indent=2, sort_keys=True) + "\n").encode())
    return file


def load_result(path: Path) -> Result:
    """Read a result that `save_result` wrote.

    Args:
        path: the JSON file, with or without ``.json``.

    Raises:
        InputError: a file is missing, damaged, of another kind, from a newer version, or a table is not of this result.
    """
    file = path if path.suffix == ".json" else path.with_name(f"{path.name}.json")
    document = _read_json(file)
    tables = {
        name: _read_table(_table_path(file, name), digest)
        for name, digest in _digests(document, file).items()
    }
    try:
        return _from_parts(document, **tables)
    except (KeyError, TypeError, ValueError, IndexError, pa.ArrowException) as error:
        raise InputError(
            f"{file}: damaged result ({type(error).__name__}: {_one_line(error)}); run it again"
        ) from None


def find_results(paths: Iterable[Path]) -> list[Path]:
    """Return the JSON files of results: a file as it is, and for a folder all results directly in it, sorted by name.

    Raises:
        InputError: a path does not exist, or a folder holds no result.
    """
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        ending = ".kernels.parquet"
        inside = sorted(
            file.with_name(file.name.removesuffix(ending) + ".json")
            for file in path.iterdir()
            if file.name.endswith(ending)
        )
        if not inside:
            raise InputError(
                f"{path}: no result in this folder; write some with pagetide run ... -o {path}"
            )
        found.extend(inside)
    return found


# -- writing ------------------------------------------------------------------------------------------------------


def _table_path(file: Path, name: str) -> Path:
    return file.with_name(f"{file.name.removesuffix('.json')}.{name}.parquet")


def _parquet_bytes(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", compression_level=3, version="2.6")
    return buffer.getvalue()


def _named(indices: NDArray[Any], names: Sequence[str]) -> pa.Array:
    """Return texts by index; a negative index is null."""
    keys = pa.array(indices.astype(np.int32), mask=indices < 0)
    return pa.DictionaryArray.from_arrays(keys, pa.array(names, type=pa.string()))


def _kernel_table(result: Result) -> pa.Table:
    kernels = result.kernels
    columns: dict[str, Any] = {
        "kernel": pa.array(np.arange(len(kernels), dtype=np.int32)),
        "name": pa.array(kernels.names, type=pa.string()).dictionary_encode(),
        "phase": _named(kernels.phase, [phase.name.lower() for phase in Phase]),
        "flops": kernels.flops,
        "duration_ns": kernels.duration_ns,
        "ready_ps": result.ready_ps,
        "start_ps": result.start_ps,
        "end_ps": result.end_ps,
        "fault_blocks": result.fault_blocks,
    }
    for place, name in enumerate(_PLACES):
        columns[f"{name}_bytes"] = np.ascontiguousarray(result.occupancy_bytes[:, place])
    for place, cause in enumerate(result.stall_causes):
        name = f"stall_{cause.replace(' ', '_')}_ps"
        columns[name] = np.ascontiguousarray(result.stall_parts_ps[:, place])
    blamed = result.blame_tensor
    columns["blame_tensor"] = pa.array(blamed, mask=blamed < 0)
    used, compact = np.unique(blamed, return_inverse=True)
    names = [result.tensors.names[tensor] if tensor >= 0 else "" for tensor in used]
    columns["blame_tensor_name"] = _named(np.where(blamed < 0, -1, compact), names)
    return pa.table(columns)


def _transfer_table(result: Result) -> pa.Table:
    moved = result.transfers
    used, compact = np.unique(moved.tensor, return_inverse=True)
    names = [result.tensors.names[tensor] for tensor in used]
    return pa.table(
        {
            "channel": _named(moved.channel, result.channels),
            "cause": _named(moved.cause, result.causes),
            "tensor": moved.tensor.astype(np.int32),
            "tensor_name": _named(compact, names),
            "start_ps": moved.start_ps,
            "end_ps": moved.end_ps,
            "bytes": moved.size_bytes,
        }
    )


def _tensor_table(result: Result) -> pa.Table:
    tensors = result.tensors
    return pa.table(
        {
            "tensor": pa.array(np.arange(len(tensors), dtype=np.int32)),
            "name": pa.array(tensors.names, type=pa.string()),
            "kind": _named(tensors.kind, [kind.name.lower() for kind in TensorKind]),
            "is_global": tensors.is_global,
            "bytes": tensors.size_bytes,
        }
    )


# -- reading ------------------------------------------------------------------------------------------------------


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; check the path") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder, but a file of a result is needed") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path") from None


def _read_json(file: Path) -> Mapping[str, Any]:
    data = _read_bytes(file)
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{file}: not a Pagetide result, or damaged ({_one_line(error)}); run it again"
        ) from None
    if not isinstance(document, dict) or document.get("pagetide") != _KIND:
        raise InputError(
            f"{file}: not a Pagetide result; give a file that pagetide run ... -o FOLDER wrote, such as FOLDER/g10.json"
        )
    version = document.get("version")
    if not isinstance(version, int) or version < 1:
        raise InputError(f"{file}: damaged result (version is {version!r}); run it again")
    if version > _VERSION:
        raise InputError(
            f"{file}: result version {version} is newer than the {_VERSION} this Pagetide reads; update Pagetide"
        )
    return document


def _digests(document: Mapping[str, Any], file: Path) -> dict[str, str]:
    digests = document.get("sha256")
    if not isinstance(digests, dict) or not set(_TABLES) <= digests.keys():
        raise InputError(f"{file}: damaged result (no hashes of its tables); run it again")
    return {name: digests[name] for name in _TABLES}


def _read_table(path: Path, digest: str) -> pa.Table:
    data = _read_bytes(path)
    if hashlib.sha256(data).hexdigest() != digest:
        raise InputError(
            f"{path}: damaged, or of another run than the JSON file beside it; run it again"
        )
    try:
        return pq.read_table(io.BytesIO(data))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{path}: not a Parquet file ({_one_line(error)}); run it again") from None


def _numbers(table: pa.Table, name: str, kind: Any) -> NDArray[Any]:
    column = table.column(name)
    if column.null_count:
        raise ValueError(f"column {name!r} has empty rows")
    return np.array(column.to_numpy(), dtype=kind)


def _numbers_or(table: pa.Table, name: str, empty: int, kind: Any) -> NDArray[Any]:
    return np.array(pc.fill_null(table.column(name), empty).to_numpy(), dtype=kind)


def _indices(table: pa.Table, name: str, names: Sequence[str], kind: Any) -> NDArray[Any]:
    """Return the place of each text of a column in `names`, -1 for null."""
    texts = table.column(name).cast(pa.string()).combine_chunks()
    found = pc.index_in(texts, value_set=pa.array(names, type=pa.string()))
    if pc.any(pc.and_(pc.is_valid(texts), pc.is_null(found))).as_py():
        raise ValueError(f"column {name!r} has a value that is none of {', '.join(names)}")
    return np.array(pc.fill_null(found, -1).to_numpy(zero_copy_only=False), dtype=kind)


def _get(document: Mapping[str, Any], key: str, kind: type[_T]) -> _T:
    value = document[key]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{key} is {value!r:.40}, but a {kind.__name__} is needed")
    return value


def _texts(table: pa.Table, name: str) -> tuple[str, ...]:
    return tuple(table.column(name).to_pylist())


def _from_parts(
    document: Mapping[str, Any], kernels: pa.Table, transfers: pa.Table, tensors: pa.Table
) -> Result:
    channels, causes = (
        tuple(_get(document, "channels", list)),
        tuple(_get(document, "causes", list)),
    )
    traffic = _get(document, "traffic_bytes", dict)
    integer = np.int64
    moved = Transfers(
        channel=_indices(transfers, "channel", channels, integer),
        tensor=_numbers(transfers, "tensor", integer),
        cause=_indices(transfers, "cause", causes, integer),
        start_ps=_numbers(transfers, "start_ps", integer),
        end_ps=_numbers(transfers, "end_ps", integer),
        size_bytes=_numbers(transfers, "bytes", integer),
        lost=_get(document, "transfers_lost", int),
    )
    return Result(
        workload=_get(document, "workload", str),
        policy=_get(document, "policy", str),
        profile=_get(document, "profile", str),
        system=_get(document, "system", dict),
        kernels=Kernels(
            names=_texts(kernels, "name"),
            duration_ns=_numbers(kernels, "duration_ns", np.float64),
            flops=_numbers(kernels, "flops", np.float64),
            phase=_indices(kernels, "phase", [phase.name.lower() for phase in Phase], np.uint8),
        ),
        tensors=Tensors(
            names=_texts(tensors, "name"),
            size_bytes=_numbers(tensors, "bytes", integer),
            kind=_indices(tensors, "kind", [kind.name.lower() for kind in TensorKind], np.uint8),
            is_global=_numbers(tensors, "is_global", np.bool_),
        ),
        ready_ps=_numbers(kernels, "ready_ps", integer),
        start_ps=_numbers(kernels, "start_ps", integer),
        end_ps=_numbers(kernels, "end_ps", integer),
        blame_tensor=_numbers_or(kernels, "blame_tensor", -1, np.int32),
        fault_blocks=_numbers(kernels, "fault_blocks", integer),
        fault_batches=_get(document, "fault_batches", int),
        occupancy_bytes=np.stack(
            [_numbers(kernels, f"{place}_bytes", integer) for place in _PLACES], axis=1
        ),
        gpu_peak_bytes=_get(document, "gpu_peak_bytes", int),
        traffic_bytes=np.array(
            [[traffic[channel][cause] for cause in causes] for channel in channels], dtype=integer
        ),
        transfers=moved,
        channels=channels,
        causes=causes,
        iterations=_get(document, "iterations", int),
        provenance=_get(document, "provenance", dict),
    )
