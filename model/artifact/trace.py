"""A G10 trace: the workload with the three profiled times of each kernel, in the artifact's cycles."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pagetide.model.artifact.config import PAGE_BYTES
from pagetide.model.errors import InputError
from pagetide.model.workload import Workload
from pagetide.model.workload.g10_tables import load_g10, read_column

__all__ = ["CLOCK_HZ", "Trace", "load_trace"]

CLOCK_HZ = 1.2e9
"""The artifact's GPU clock."""


@dataclass(frozen=True, eq=False)
class Trace:
    """One of G10's runs: K kernels, T tensors.

    Attributes:
        model: name as in the file names. batch: batch size.
        workload: graph, sizes and kernel times. `Workload.kernels.names` are the artifact's op names; phases tell forward
            from backward; ids of workspaces follow the table's.
        tensor_pages: int64[T], pages of each tensor; every tensor has a page-aligned range of its own.
        cycles: int64[K], all data in GPU memory; truncated as the artifact does.
        input_fault_cycles: int64[K], outputs resident, inputs fault.
        fault_cycles: int64[K], everything faults. `fault_cycles >= input_fault_cycles >= cycles` (clamped).
    """

    model: str
    batch: int
    workload: Workload
    tensor_pages: NDArray[np.int64]
    cycles: NDArray[np.int64]
    input_fault_cycles: NDArray[np.int64]
    fault_cycles: NDArray[np.int64]


def load_trace(folder: Path, model: str, batch: int) -> Trace:
    """Read one of G10's runs with its fault times; raises `InputError` as `load_g10`."""
    workload = load_g10(folder, model, batch)
    cycles = []
    for suffix in ("", "InputPF", "PF"):
        path = folder / "traces" / model / f"cudnn{batch}{suffix}.txt"
        times_ms = read_column(path, unit="ms")
        if len(times_ms) != len(workload.kernels):
            raise InputError(
                f"{path}: has {len(times_ms)} rows, but {model} has {len(workload.kernels)} kernels"
            )
        # Cycles are the integer part of a product of doubles, as the artifact computes them.
        cycles.append((np.array(times_ms) * CLOCK_HZ / 1000.0).astype(np.int64))
    plain, input_fault, fault = cycles
    input_fault = np.maximum(input_fault, plain)
    return Trace(
        model=model,
        batch=batch,
        workload=workload,
        tensor_pages=workload.tensors.size_bytes // PAGE_BYTES,
        cycles=plain,
        input_fault_cycles=input_fault,
        fault_cycles=np.maximum(fault, input_fault),
    )
