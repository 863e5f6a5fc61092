"""Tensor vitality: births, deaths, inactive periods and memory pressure of a workload (G10 paper, section 4.2).

The kernel is the unit of time. A tensor is *active* in a kernel that reads or writes it. A *global* tensor is alive
throughout; any other is born at its first use and dead after its last. An *inactive period* is a maximal run of kernels in
which a tensor is alive, not used, and will be used again; the last period of a global tensor wraps into the next
iteration.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pagetide.model.workload.workload import Workload

__all__ = ["InactivePeriods", "Vitality", "analyse"]


@dataclass(frozen=True, eq=False)
class InactivePeriods:
    """Inactive periods as columns, ordered by tensor and then by start.

    Attributes:
        tensor: int32[P], tensor id.
        start: int32[P], first idle kernel.
        end: int32[P], first kernel after the period, where the tensor is used again; above the number of kernels K for a
            period that wraps: kernel ``end - K`` of the next iteration.
        length_ns: float64[P], sum of the kernel times in the period.
    """

    tensor: NDArray[np.int32]
    start: NDArray[np.int32]
    end: NDArray[np.int32]
    length_ns: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.tensor)


@dataclass(frozen=True, eq=False)
class Vitality:
    """What is alive, used and idle when.

    Attributes:
        birth: int32[T], kernel of the first use; 0 for a global tensor; -1 for a tensor of no kernel.
        death: int32[T], kernel of the last use; the last kernel for a global tensor; -1 for a tensor of no kernel.
        first_use: int32[T], kernel of the first use, also for global tensors; -1 for a tensor of no kernel.
        last_use: int32[T], kernel of the last use, also for global tensors; -1 for a tensor of no kernel.
        start_ns: float64[K + 1], when each kernel starts if none waits; the last entry is the ideal iteration time.
        live_bytes: int64[K], bytes alive during each kernel (memory pressure with nothing evicted).
        active_bytes: int64[K], bytes that each kernel reads or writes.
        periods: the inactive periods.
    """

    birth: NDArray[np.int32]
    death: NDArray[np.int32]
    first_use: NDArray[np.int32]
    last_use: NDArray[np.int32]
    start_ns: NDArray[np.float64]
    live_bytes: NDArray[np.int64]
    active_bytes: NDArray[np.int64]
    periods: InactivePeriods

    @property
    def peak_live_bytes(self) -> int:
        """Largest memory pressure of the iteration, in bytes."""
        return int(self.live_bytes.max())

    @property
    def active_share(self) -> NDArray[np.float64]:
        """float64[K]: bytes in use over bytes alive, kernel by kernel."""
        return self.active_bytes / np.maximum(self.live_bytes, 1)


def analyse(workload: Workload) -> Vitality:
    """Derive the vitality of every tensor; vectorised, no Python loop over tensors or kernels."""
    kernels, tensors = len(workload.kernels), len(workload.tensors)
    size = workload.tensors.size_bytes
    operands = workload.operands
    order = np.lexsort((operands.rows, operands.ids))
    tensor = operands.ids[order].astype(np.int32)
    kernel = operands.rows[order].astype(np.int32)

    first_use = np.full(tensors, -1, dtype=np.int32)
    last_use = np.full(tensors, -1, dtype=np.int32)
    is_first, is_last = np.ones((2, len(tensor)), dtype=np.bool_)
    is_first[1:] = is_last[:-1] = tensor[1:] != tensor[:-1]
    first_use[tensor[is_first]] = kernel[is_first]
    last_use[tensor[is_last]] = kernel[is_last]
    used = first_use >= 0
    whole = workload.tensors.is_global & used
    birth = np.where(whole, 0, first_use).astype(np.int32)
    death = np.where(whole, kernels - 1, last_use).astype(np.int32)

    change = np.zeros(kernels + 1, dtype=np.int64)
    np.add.at(change, birth[used], size[used])
    np.add.at(change, death[used] + 1, -size[used])
    live_bytes = np.cumsum(change)[:kernels]
    active_bytes = np.zeros(kernels, dtype=np.int64)
    np.add.at(active_bytes, kernel, size[tensor])

    start_ns = np.zeros(kernels + 1)
    np.cumsum(workload.kernels.duration_ns, out=start_ns[1:])

    # The next use of each use; the last use of a global tensor comes round to the first.
    next_use = np.roll(kernel, -1)
    next_use[is_last] = np.where(whole[tensor[is_last]], first_use[tensor[is_last]] + kernels, -1)
    idle = next_use > kernel + 1
    start, end = kernel[idle] + 1, next_use[idle]
    wrapped = end > kernels
    length_ns = start_ns[np.where(wrapped, kernels, end)] - start_ns[start]
    length_ns += np.where(wrapped, start_ns[end - np.where(wrapped, kernels, end)], 0.0)
    return Vitality(
        birth=birth,
        death=death,
        first_use=first_use,
        last_use=last_use,
        start_ns=start_ns,
        live_bytes=live_bytes,
        active_bytes=active_bytes,
        periods=InactivePeriods(
            tensor=tensor[idle],
            start=start.astype(np.int32),
            end=end.astype(np.int32),
            length_ns=length_ns,
        ),
    )
