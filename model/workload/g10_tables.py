"""Import of the G10 tables: batch-independent kernel and tensor tables plus a trace of kernel times and workspaces.

The tables were derived from the public G10 artifact. Layout of the folder, for a model M and a batch B:

- ``derived/M_tensors.csv``: ``tensor_id,is_global,fp32_elems_per_sample,fixed_bytes_page_rounded``; exactly one of the
  last two is not zero. Bytes at batch B are ``4 * elements * B`` rounded up to 4096, or the fixed bytes.
- ``derived/M_kernels.csv``: ``kernel_id,op,parent_layer_or_op_id,inputs,outputs``, ids joined by ``;``.
- ``traces/M/cudnnB.txt``: ``index time ms``, one row a kernel.
- ``traces/M/cudnnBWorkspace.txt``: ``index bytes B``; a row that is not zero gives the kernel one more output tensor.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pagetide.model.errors import InputError, did_you_mean
from pagetide.model.workload.workload import Csr, Kernels, Phase, TensorKind, Tensors, Workload

__all__ = ["PAGE_BYTES", "available", "load_g10", "read_column"]

PAGE_BYTES = 4096
"""Sizes in the tables are rounded up to whole pages of this many bytes (G10 paper, section 4.5)."""

_ELEMENT_BYTES = 4
_MAX_NUMBER = 1 << 50
_MAX_MS = 1e9


def available(folder: Path) -> dict[str, list[int]]:
    """Return the models in a G10 data folder and the batch sizes that have a trace: ``{model: [batch, ...]}``."""
    models = sorted(
        path.name.removesuffix("_kernels.csv")
        for path in (folder / "derived").glob("*_kernels.csv")
    )
    found: dict[str, list[int]] = {}
    for model in models:
        stems = (
            path.stem.removeprefix("cudnn")
            for path in (folder / "traces" / model).glob("cudnn*.txt")
        )
        found[model] = sorted(int(stem) for stem in stems if stem.isdecimal() and stem.isascii())
    return found


def load_g10(folder: Path, model: str, batch: int) -> Workload:
    """Build the workload of one of G10's runs.

    Args:
        folder: the data folder (holds ``derived/`` and ``traces/``).
        model: name of the model as in the file names, for instance ``"BERT_Base"``.
        batch: batch size; a trace of it must exist.

    Returns:
        The workload. Workspaces are tensors numbered after the table's, in kernel order.

    Raises:
        InputError: a file is missing or malformed (with file and line), or model or batch is unknown.
    """
    found = available(folder)
    if not found:
        raise InputError(
            f"{folder}: holds no G10 tables (derived/*_kernels.csv); give the folder that does"
        )
    if model not in found:
        raise InputError(f"{folder}: no G10 model {model!r}; {did_you_mean(model, found)}")
    if batch not in found[model]:
        known = ", ".join(map(str, found[model]))
        raise InputError(f"{folder}: no trace of {model} at batch {batch}; there are {known}")

    size_bytes, is_global = _tensors(folder / "derived" / f"{model}_tensors.csv", batch)
    names, inputs, outputs = _kernels(
        folder / "derived" / f"{model}_kernels.csv", tensors=len(size_bytes)
    )
    trace = folder / "traces" / model
    times_ms = read_column(trace / f"cudnn{batch}.txt", unit="ms")
    workspace = np.array(
        read_column(trace / f"cudnn{batch}Workspace.txt", unit="B"), dtype=np.int64
    )
    for path, rows in (
        (f"cudnn{batch}.txt", len(times_ms)),
        (f"cudnn{batch}Workspace.txt", len(workspace)),
    ):
        if rows != len(names):
            raise InputError(
                f"{trace / path}: has {rows} rows, but {model} has {len(names)} kernels"
            )

    with_workspace = np.flatnonzero(workspace)
    for number, kernel in enumerate(with_workspace):
        outputs[int(kernel)].append(len(size_bytes) + number)
    phase, kind = _classify(names, inputs, outputs, is_global)
    return Workload(
        name=f"g10-{model}-b{batch}",
        tensors=Tensors(
            names=(
                *(f"{'global' if g else 'tensor'}{t}" for t, g in enumerate(is_global)),
                *(f"workspace.k{kernel}" for kernel in with_workspace),
            ),
            size_bytes=np.concatenate([size_bytes, _page_rounded(workspace[with_workspace])]),
            kind=np.concatenate(
                [kind, np.full(with_workspace.size, TensorKind.WORKSPACE, dtype=np.uint8)]
            ),
            is_global=np.concatenate([is_global, np.zeros(with_workspace.size, dtype=np.bool_)]),
        ),
        kernels=Kernels(
            names=tuple(names),
            # The traces print whole nanoseconds (six decimals of a millisecond).
            duration_ns=np.rint(np.array(times_ms) * 1e6),
            flops=np.zeros(len(names)),
            phase=phase,
        ),
        inputs=Csr.from_lists(inputs),
        outputs=Csr.from_lists(outputs),
        metadata={
            "graph": f"G10 tables, {model}",
            "times": f"G10 artifact, A100 kernel times, batch {batch}",
            "batch": batch,
            "precision": "fp32",
            "optimizer": "sgd",
        },
    )


def _page_rounded(size_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


def _rows(path: Path, columns: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, cells) of a CSV file with the given header, with row k holding id k."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; the folder is not complete") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from None
    # No cell holds a line break or a quote, so that a row is a line.
    lines = text.splitlines()
    header = columns.split(",")
    if not lines or lines[0] != columns:
        raise InputError(f"{path}:1: the header must be {columns!r}")
    for row_id, row in enumerate(lines[1:]):
        line, cells = row_id + 2, row.split(",")
        if len(cells) != len(header):
            raise InputError(f"{path}:{line}: {len(cells)} cells, but {len(header)} are needed")
        if cells[0] != str(row_id):
            raise InputError(
                f"{path}:{line}: {header[0]} is {cells[0]!r}, but {row_id} must follow"
            )
        yield line, cells


def _number(path: Path, line: int, text: str, *, below: int = _MAX_NUMBER) -> int:
    """Return a whole number from 0 to `below` - 1."""
    if not (text.isascii() and text.isdecimal()):
        raise InputError(f"{path}:{line}: {text!r} is not a whole number")
    if len(text) > 20 or int(text) >= below:
        raise InputError(
            f"{path}:{line}: {text[:30]} is too large; the numbers here are below {below}"
        )
    return int(text)


def _tensors(path: Path, batch: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    sizes: list[int] = []
    is_global: list[bool] = []
    for line, cells in _rows(
        path, "tensor_id,is_global,fp32_elems_per_sample,fixed_bytes_page_rounded"
    ):
        global_flag = _number(path, line, cells[1], below=2)
        elements, fixed = (_number(path, line, cell) for cell in cells[2:])
        if (elements > 0) == (fixed > 0):
            raise InputError(
                f"{path}:{line}: exactly one of elements per sample and fixed bytes must be positive"
            )
        size = _ELEMENT_BYTES * elements * batch if elements else fixed
        if size >= _MAX_NUMBER:
            raise InputError(
                f"{path}:{line}: {size} bytes at batch {batch}; {_MAX_NUMBER} are too many"
            )
        sizes.append(size)
        is_global.append(bool(global_flag))
    return _page_rounded(np.array(sizes, dtype=np.int64)), np.array(is_global, dtype=np.bool_)


def _kernels(path: Path, *, tensors: int) -> tuple[list[str], list[list[int]], list[list[int]]]:
    names: list[str] = []
    inputs: list[list[int]] = []
    outputs: list[list[int]] = []
    for line, cells in _rows(path, "kernel_id,op,parent_layer_or_op_id,inputs,outputs"):
        names.append(f"{cells[1]}.{cells[2]}")
        for lists, cell in ((inputs, cells[3]), (outputs, cells[4])):
            ids = [_number(path, line, part) for part in cell.split(";") if part]
            if ids and max(ids) >= tensors:
                raise InputError(
                    f"{path}:{line}: tensor {max(ids)} is unknown; there are 0 to {tensors - 1}"
                )
            lists.append(ids)
    return names, inputs, outputs


def read_column(path: Path, *, unit: str) -> list[float]:
    """Return the values of a trace file, one row a kernel: ``index value unit``.

    Raises:
        InputError: the file is missing or malformed (with line), or the unit is another.
    """
    values: list[float] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from None
    for number, text in enumerate(lines, start=1):
        cells = text.split()
        if not cells:
            continue
        if (
            len(cells) != 3
            or cells[2] != unit
            or cells[0].lstrip("0") != (str(len(values)).lstrip("0"))
        ):
            raise InputError(
                f"{path}:{number}: expected '{len(values):04d} VALUE {unit}', found {text!r}"
            )
        if unit == "B":
            values.append(_number(path, number, cells[1]))
            continue
        try:
            value = float(cells[1].replace("_", "no digit"))
        except ValueError:
            raise InputError(f"{path}:{number}: {cells[1]!r} is not a number") from None
        if not 0 <= value < _MAX_MS:
            raise InputError(
                f"{path}:{number}: {cells[1]!r} is not a time from 0 to {_MAX_MS:.0e} {unit}"
            )
        values.append(value)
    return values


def _classify(
    names: list[str],
    inputs: list[list[int]],
    outputs: list[list[int]],
    is_global: NDArray[np.bool_],
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Derive each kernel's phase and each tensor's kind from the operation names of the tables.

    Returns:
        phase: uint8[K] of `Phase`; the backward pass begins at ``makeLoss``, weight updates hold ``Apply_Grad``.
        kind: uint8[T] of `TensorKind` for the tensors of the table.
    """
    phase = np.full(len(names), Phase.FORWARD, dtype=np.uint8)
    kind = np.where(is_global, TensorKind.WEIGHT, TensorKind.ACTIVATION).astype(np.uint8)
    backward = False
    for k, name in enumerate(names):
        operation = name.split(".")[0]
        backward = backward or operation == "makeLoss"
        if "Apply_Grad" in operation:
            phase[k] = Phase.OPTIMIZER
            kind[[t for t in inputs[k] if not is_global[t]]] = TensorKind.GRADIENT
        elif backward:
            phase[k] = Phase.BACKWARD
        elif operation.startswith("LoadData"):
            kind[[t for t in outputs[k] if t < len(kind) and not is_global[t]]] = TensorKind.INPUT
    return phase, kind
