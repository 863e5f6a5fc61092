"""The `Result` of a run: where the time went, what moved, and the configuration it holds for."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pagetide.model import stalls
from pagetide.model.workload.workload import Kernels, Tensors

__all__ = ["Result", "Transfers"]


@dataclass(frozen=True, eq=False)
class Transfers:
    """What the channels carried in the measured iteration, runs of one tensor and cause joined.

    Attributes:
        channel: int64[N], index into `Result.channels`.
        tensor: int64[N], tensor id.
        cause: int64[N], index into `Result.causes`.
        start_ps: int64[N], since the iteration's start.
        end_ps: int64[N], since the iteration's start.
        size_bytes: int64[N].
        lost: rows that did not fit and are missing here (their bytes are in `Result.traffic_bytes` all the same).
    """

    channel: NDArray[np.int64]
    tensor: NDArray[np.int64]
    cause: NDArray[np.int64]
    start_ps: NDArray[np.int64]
    end_ps: NDArray[np.int64]
    size_bytes: NDArray[np.int64]
    lost: int


@dataclass(frozen=True, eq=False)
class Result:
    """One measured iteration of a workload under a policy. Times in picoseconds since the iteration's start.

    Attributes:
        workload, policy, profile: names.
        system: the resolved configuration, as `System.to_dict`.
        kernels, tensors: those of the workload.
        ready_ps: int64[K], when each kernel could start if its operands were there (the end of the one before).
        start_ps: int64[K], when it started: all operands in GPU memory.
        end_ps: int64[K], when it ended.
        blame_tensor: int32[K], the operand that came last while the kernel waited, -1 for none.
        fault_blocks: int64[K], blocks of each kernel that took a page fault.
        fault_batches: batches that the driver served.
        occupancy_bytes: int64[K, 3], bytes in GPU, host and SSD when each kernel started.
        gpu_peak_bytes: largest use of GPU memory at any time.
        traffic_bytes: int64[4, 4], by channel and cause.
        transfers: what was where on the channels when.
        channels, causes: names of the rows and columns of `traffic_bytes`.
        iterations: iterations run, the measured one included.
        provenance: where graph, sizes and kernel times come from (`Workload.metadata`), versions.
    """

    workload: str
    policy: str
    profile: str
    system: Mapping[str, Any]
    kernels: Kernels
    tensors: Tensors
    ready_ps: NDArray[np.int64]
    start_ps: NDArray[np.int64]
    end_ps: NDArray[np.int64]
    blame_tensor: NDArray[np.int32]
    fault_blocks: NDArray[np.int64]
    fault_batches: int
    occupancy_bytes: NDArray[np.int64]
    gpu_peak_bytes: int
    traffic_bytes: NDArray[np.int64]
    transfers: Transfers
    channels: tuple[str, ...]
    causes: tuple[str, ...]
    iterations: int
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def total_ps(self) -> int:
        """Length of the iteration; compute plus stall, exactly."""
        return int(self.end_ps[-1])

    @property
    def compute_ps(self) -> int:
        """Time in which kernels ran: what an ideal GPU would need."""
        return int((self.end_ps - self.start_ps).sum())

    @property
    def stall_ps(self) -> int:
        """Time in which the next kernel waited for operands or frames."""
        return int((self.start_ps - self.ready_ps).sum())

    @property
    def stall_causes(self) -> tuple[str, ...]:
        """Names of the columns of `stall_parts_ps` (`pagetide.model.stalls` says what they mean)."""
        return stalls.STALL_CAUSES

    @cached_property
    def stall_parts_ps(self) -> NDArray[np.int64]:
        """int64[K, P]: how long each kernel waited, by `stall_causes`; a row adds up to the kernel's stall exactly."""
        return stalls.stall_parts_ps(self)

    @cached_property
    def overlap_ps(self) -> int:
        """Time in which kernels ran while a channel was busy; part of `compute_ps`."""
        return stalls.overlap_ps(self)

    @property
    def fraction_of_ideal(self) -> float:
        """Compute time over total time: 1 is a GPU with unlimited memory (and an iteration without length)."""
        return self.compute_ps / self.total_ps if self.total_ps else 1.0

    def traffic(self, channel: str) -> int:
        """Return the bytes that a channel carried, all causes together."""
        return int(self.traffic_bytes[self.channels.index(channel)].sum())

    def summary(self) -> dict[str, Any]:
        """Return the totals with units in the keys, as JSON values."""
        return {
            "workload": self.workload,
            "policy": self.policy,
            "profile": self.profile,
            "iteration_s": self.total_ps / 1e12,
            "compute_s": self.compute_ps / 1e12,
            "overlap_s": self.overlap_ps / 1e12,
            "stall_s": self.stall_ps / 1e12,
            "stall_by_cause_s": {
                cause: int(part) / 1e12
                for cause, part in zip(
                    self.stall_causes, self.stall_parts_ps.sum(axis=0), strict=True
                )
            },
            "fraction_of_ideal": self.fraction_of_ideal,
            "fault_blocks": int(self.fault_blocks.sum()),
            "fault_batches": self.fault_batches,
            "gpu_peak_bytes": self.gpu_peak_bytes,
            "traffic_bytes": {
                channel: {
                    cause: int(self.traffic_bytes[c, n]) for n, cause in enumerate(self.causes)
                }
                for c, channel in enumerate(self.channels)
            },
            "ssd_written_bytes": self.traffic("gpu->ssd"),
            "iterations": self.iterations,
            "system": dict(self.system),
            "provenance": dict(self.provenance),
        }

    def save(self, path: Path) -> Path:
        """Write a JSON file and tables beside it, atomically; the same result gives the same bytes.

        Args:
            path: a file that ends in ``.json``, or a folder, in which the file is named after the policy. The tables are
                ``NAME.kernels.parquet``, ``NAME.transfers.parquet`` and ``NAME.tensors.parquet``.

        Returns:
            The JSON file.
        """
        from pagetide.model.result_files import save_result

        return save_result(self, path)

    @staticmethod
    def load(path: Path) -> "Result":
        """Read a result that `save` wrote.

        Args:
            path: the JSON file, with or without ``.json``.

        Raises:
            InputError: a file is missing, damaged, of another kind or from a newer version.
        """
        from pagetide.model.result_files import load_result

        return load_result(path)
