"""The `Workload`: tensors and kernels of one training iteration, columnar and validated.

Everything that enters the model becomes this type: captures of public model code, the G10 tables, and later importers.
"""

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from pagetide.model.columnar import load_columns, save_columns, text_column, text_from_column
from pagetide.model.errors import InputError

__all__ = [
    "Csr",
    "Kernels",
    "Phase",
    "TensorKind",
    "Tensors",
    "UnusedTensorWarning",
    "Workload",
    "WorkloadBuilder",
]

_VERSION = 1
_MAX_BYTES = 1 << 60
_MAX_NS = 4e15  # 46 days; whole picoseconds of it fit 63 bits


class TensorKind(IntEnum):
    """What a tensor is to the training step."""

    WEIGHT = 0
    GRADIENT = 1
    OPTIMIZER = 2
    ACTIVATION = 3
    WORKSPACE = 4
    INPUT = 5


class Phase(IntEnum):
    """The part of the training step that a kernel belongs to."""

    FORWARD = 0
    BACKWARD = 1
    OPTIMIZER = 2


class UnusedTensorWarning(UserWarning):
    """A tensor of the workload is an operand of no kernel: it takes no part in any result."""


@dataclass(frozen=True, eq=False)
class Tensors:
    """Tensors as columns; a tensor's id is its row.

    Attributes:
        names: one name a tensor, for people.
        size_bytes: int64[T], positive.
        kind: uint8[T], values of `TensorKind`.
        is_global: bool[T]; a global tensor lives across iterations (weights, optimizer states), all others are born at
            their first use and dead after their last (G10 paper, section 4.2).
    """

    names: tuple[str, ...]
    size_bytes: NDArray[np.int64]
    kind: NDArray[np.uint8]
    is_global: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True, eq=False)
class Kernels:
    """Kernels as columns in execution order; a kernel's id is its row.

    Attributes:
        names: one name a kernel.
        duration_ns: float64[K], execution time with every operand in GPU memory; finite, not negative.
        flops: float64[K], floating-point operations; 0 where unknown.
        phase: uint8[K], values of `Phase`.
    """

    names: tuple[str, ...]
    duration_ns: NDArray[np.float64]
    flops: NDArray[np.float64]
    phase: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True, eq=False)
class Csr:
    """A list of tensor ids for each kernel, in compressed-row form.

    Attributes:
        indptr: int64[K + 1]; the ids of kernel k are ``ids[indptr[k]:indptr[k + 1]]``.
        ids: int32[N].
    """

    indptr: NDArray[np.int64]
    ids: NDArray[np.int32]

    @classmethod
    def from_lists(cls, lists: Iterable[Sequence[int]]) -> Self:
        """Build from one sequence of ids a kernel; raises `InputError` for an id that is no whole number or beyond 32 bits."""
        rows = [np.asarray(row) if len(row) else np.zeros(0, dtype=np.int64) for row in lists]
        for row in rows:
            if row.dtype.kind not in "iu":
                raise InputError(
                    f"tensor ids must be whole numbers, but they are {row.tolist()!r:.60}"
                )
        indptr = np.zeros(len(rows) + 1, dtype=np.int64)
        indptr[1:] = np.cumsum([len(row) for row in rows], dtype=np.int64)
        ids = np.concatenate(rows).astype(np.int64) if rows else np.zeros(0, dtype=np.int64)
        if (ids != ids.astype(np.int32)).any():
            raise InputError("tensor ids must fit 32 bits; number the tensors from 0")
        return cls(indptr=indptr, ids=ids.astype(np.int32))

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def __getitem__(self, kernel: int) -> NDArray[np.int32]:
        return self.ids[self.indptr[kernel] : self.indptr[kernel + 1]]

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """int64[N]: the kernel of each entry of `ids`."""
        return np.repeat(np.arange(len(self), dtype=np.int64), np.diff(self.indptr))


@dataclass(frozen=True, eq=False)
class Workload:
    """One training iteration: tensors, kernels in execution order, and which kernel reads and writes what.

    A tensor is *active* in a kernel that reads or writes it. Units: bytes, nanoseconds.

    Attributes:
        name: short name, for people and file names.
        tensors: the tensor columns.
        kernels: the kernel columns.
        inputs: tensors each kernel reads.
        outputs: tensors each kernel writes (an in-place operand is in both).
        metadata: where graph, sizes and times come from; JSON values.

    Raises:
        InputError: an operand names no tensor, a size is zero or negative, a time is negative or not finite, a
            column has the wrong length, there is no kernel, or the sum of sizes or times is beyond all bounds (2^60
            bytes, 4e15 ns).

    Warns:
        UnusedTensorWarning: a tensor is an operand of no kernel.
    """

    name: str
    tensors: Tensors
    kernels: Kernels
    inputs: Csr
    outputs: Csr
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._check()

    # -- analysis that everything shares ----------------------------------------------------------------------------

    @cached_property
    def operands(self) -> Csr:
        """For each kernel the tensors it reads or writes, each once, in ascending id."""
        count = len(self.tensors)
        keys = np.concatenate(
            [
                self.inputs.rows * count + self.inputs.ids,
                self.outputs.rows * count + self.outputs.ids,
            ]
        )
        keys = np.unique(keys)
        rows, ids = np.divmod(keys, max(count, 1))
        indptr = np.zeros(len(self.kernels) + 1, dtype=np.int64)
        np.cumsum(np.bincount(rows, minlength=len(self.kernels)), out=indptr[1:])
        return Csr(indptr=indptr, ids=ids.astype(np.int32))

    @property
    def ideal_ns(self) -> float:
        """Iteration time with unlimited GPU memory: the sum of the kernel times, in ns."""
        return math.fsum(self.kernels.duration_ns)

    def ideal_cycles(self, clock_hz: float) -> int:
        """Iteration time with unlimited GPU memory in GPU cycles, each kernel cut down to whole cycles.

        This is how the public G10 artifact counts: milliseconds x Hz / 1000, truncated for each kernel; it gives the
        published Ideal cycle counts exactly at 1.2 GHz.
        """
        cycles = np.floor(self.kernels.duration_ns / 1e6 * clock_hz / 1000.0)
        return int(cycles.astype(np.int64).sum())

    @property
    def total_bytes(self) -> int:
        """Sum of all allocations of an iteration with no reuse of space (G10's "M" is this over the GPU's bytes)."""
        return int(self.tensors.size_bytes.sum())

    # -- construction -------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        tensors, kernels = self.tensors, self.kernels
        where = f"workload {self.name!r}"
        if not len(kernels):
            raise InputError(f"{where}: has no kernels; a workload is at least one kernel")
        for label, column, rows in (
            ("size_bytes", tensors.size_bytes, len(tensors)),
            ("kind", tensors.kind, len(tensors)),
            ("is_global", tensors.is_global, len(tensors)),
            ("duration_ns", kernels.duration_ns, len(kernels)),
            ("flops", kernels.flops, len(kernels)),
            ("phase", kernels.phase, len(kernels)),
            ("inputs.indptr", self.inputs.indptr, len(kernels) + 1),
            ("outputs.indptr", self.outputs.indptr, len(kernels) + 1),
        ):
            if column.shape != (rows,):
                raise InputError(
                    f"{where}: column {label} has shape {column.shape}, but ({rows},) is needed"
                )
        bad = np.flatnonzero(tensors.size_bytes <= 0)
        if bad.size:
            t = int(bad[0])
            raise InputError(
                f"{where}: tensor {t} ({tensors.names[t]!r}) has {tensors.size_bytes[t]} bytes; "
                "a size must be positive, leave out empty tensors"
            )
        total = math.fsum(tensors.size_bytes)
        if total > _MAX_BYTES:
            raise InputError(f"{where}: tensors have {total:.3g} bytes together; 2^60 are allowed")
        for label, column, values in (
            ("tensor kind", tensors.kind, TensorKind),
            ("kernel phase", kernels.phase, Phase),
        ):
            if column.size and int(column.max()) >= len(values):
                raise InputError(
                    f"{where}: {label} {int(column.max())} is unknown; use 0 to {len(values) - 1}"
                )
        for label, times in (("duration_ns", kernels.duration_ns), ("flops", kernels.flops)):
            bad = np.flatnonzero(~np.isfinite(times) | (times < 0))
            if bad.size:
                k = int(bad[0])
                raise InputError(
                    f"{where}: kernel {k} ({kernels.names[k]!r}) has {label} {times[k]}; "
                    "it must be finite and not negative"
                )
        longest = float(kernels.duration_ns.max())  # alone, for the sum of floats may overflow
        total_ns = longest if longest > _MAX_NS else self.ideal_ns
        if total_ns > _MAX_NS:
            raise InputError(
                f"{where}: kernels take {total_ns:.3g} ns together; {_MAX_NS:.0e} ns are allowed"
            )
        for label, csr in (("input", self.inputs), ("output", self.outputs)):
            if csr.ids.ndim != 1:
                raise InputError(f"{where}: the {label} lists are damaged (ids are no list)")
            steps = np.diff(csr.indptr)
            if csr.indptr[0] != 0 or (steps < 0).any() or csr.indptr[-1] != len(csr.ids):
                raise InputError(
                    f"{where}: the {label} lists are damaged (row pointers do not rise to the end)"
                )
            bad = np.flatnonzero((csr.ids < 0) | (csr.ids >= len(tensors)))
            if bad.size:
                n = int(bad[0])
                k = int(csr.rows[n])
                raise InputError(
                    f"{where}: kernel {k} ({kernels.names[k]!r}) names {label} tensor {csr.ids[n]}, "
                    f"but there are only tensors 0 to {len(tensors) - 1}"
                )
        used = np.zeros(len(tensors), dtype=bool)
        used[self.inputs.ids] = True
        used[self.outputs.ids] = True
        unused = np.flatnonzero(~used)
        if unused.size:
            warnings.warn(
                f"{where}: {unused.size} tensors are operands of no kernel, the first is "
                f"{int(unused[0])} ({tensors.names[int(unused[0])]!r}); they are left out of every analysis",
                UnusedTensorWarning,
                stacklevel=4,
            )

    def scaled(self, kernel_speedup: float) -> "Workload":
        """Return this workload with every kernel faster by `kernel_speedup` (> 0).

        The metadata's ``kernel_speedup`` is the product of all speed-ups since the kernel times were taken.
        """
        if not kernel_speedup > 0 or not math.isfinite(kernel_speedup):
            raise InputError(f"kernel speed-up must be a positive number, not {kernel_speedup}")
        kernels = Kernels(
            names=self.kernels.names,
            duration_ns=self.kernels.duration_ns / kernel_speedup,
            flops=self.kernels.flops,
            phase=self.kernels.phase,
        )
        return Workload(
            name=self.name,
            tensors=self.tensors,
            kernels=kernels,
            inputs=self.inputs,
            outputs=self.outputs,
            metadata={
                **self.metadata,
                "kernel_speedup": self.metadata.get("kernel_speedup", 1.0) * kernel_speedup,
            },
        )

    # -- files ----------------------------------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        """Write to one compressed file (`.npz`); the same workload gives the same bytes."""
        save_columns(
            path,
            kind="workload",
            version=_VERSION,
            header={"name": self.name, "metadata": dict(self.metadata)},
            columns={
                "tensor_names": text_column(self.tensors.names),
                "tensor_size_bytes": self.tensors.size_bytes,
                "tensor_kind": self.tensors.kind,
                "tensor_is_global": self.tensors.is_global,
                "kernel_names": text_column(self.kernels.names),
                "kernel_duration_ns": self.kernels.duration_ns,
                "kernel_flops": self.kernels.flops,
                "kernel_phase": self.kernels.phase,
                "input_indptr": self.inputs.indptr,
                "input_ids": self.inputs.ids,
                "output_indptr": self.outputs.indptr,
                "output_ids": self.outputs.ids,
            },
        )

    @classmethod
    def load(cls, path: Path) -> "Workload":
        """Read what `save` wrote; raises `InputError` for a missing, damaged or invalid file."""
        names = [
            "tensor_names",
            "tensor_size_bytes",
            "tensor_kind",
            "tensor_is_global",
            "kernel_names",
            "kernel_duration_ns",
            "kernel_flops",
            "kernel_phase",
            "input_indptr",
            "input_ids",
            "output_indptr",
            "output_ids",
        ]
        header, column = load_columns(path, kind="workload", version=_VERSION, required=names)
        try:
            return cls(
                name=str(header["name"]),
                tensors=Tensors(
                    names=text_from_column(column["tensor_names"]),
                    size_bytes=column["tensor_size_bytes"].astype(np.int64, casting="safe"),
                    kind=column["tensor_kind"].astype(np.uint8, casting="safe"),
                    is_global=column["tensor_is_global"].astype(np.bool_, casting="safe"),
                ),
                kernels=Kernels(
                    names=text_from_column(column["kernel_names"]),
                    duration_ns=column["kernel_duration_ns"].astype(np.float64, casting="safe"),
                    flops=column["kernel_flops"].astype(np.float64, casting="safe"),
                    phase=column["kernel_phase"].astype(np.uint8, casting="safe"),
                ),
                inputs=Csr(
                    indptr=column["input_indptr"].astype(np.int64, casting="safe"),
                    ids=column["input_ids"].astype(np.int32, casting="safe"),
                ),
                outputs=Csr(
                    indptr=column["output_indptr"].astype(np.int64, casting="safe"),
                    ids=column["output_ids"].astype(np.int32, casting="safe"),
                ),
                metadata=dict(header["metadata"]),
            )
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise InputError(f"{path}: damaged workload file ({error}); write it again") from None


class WorkloadBuilder:
    """Builds a `Workload` row by row; columns come out in call order.

    >>> b = WorkloadBuilder("toy")
    >>> w = b.tensor("w", 4096, TensorKind.WEIGHT, is_global=True)
    >>> y = b.tensor("y", 8192, TensorKind.ACTIVATION)
    >>> b.kernel("mm", 1000.0, inputs=[w], outputs=[y])
    0
    >>> b.build().ideal_ns
    1000.0
    """

    def __init__(self, name: str, metadata: Mapping[str, Any] | None = None) -> None:
        self._name = name
        self._metadata = dict(metadata or {})
        self._tensors: list[tuple[str, int, int, bool]] = []
        self._kernels: list[tuple[str, float, float, int]] = []
        self._inputs: list[list[int]] = []
        self._outputs: list[list[int]] = []

    def tensor(
        self, name: str, size_bytes: int, kind: TensorKind, *, is_global: bool = False
    ) -> int:
        """Add a tensor and return its id."""
        self._tensors.append((name, size_bytes, int(kind), is_global))
        return len(self._tensors) - 1

    def kernel(
        self,
        name: str,
        duration_ns: float,
        *,
        inputs: Sequence[int] = (),
        outputs: Sequence[int] = (),
        flops: float = 0.0,
        phase: Phase = Phase.FORWARD,
    ) -> int:
        """Add a kernel after the last one and return its id."""
        self._kernels.append((name, duration_ns, flops, int(phase)))
        self._inputs.append(list(inputs))
        self._outputs.append(list(outputs))
        return len(self._kernels) - 1

    def build(self) -> Workload:
        """Return the validated workload; raises `InputError` as `Workload` does."""
        try:
            return self._build()
        except OverflowError as error:
            raise InputError(
                f"workload {self._name!r}: a number is out of range ({error})"
            ) from None

    def _build(self) -> Workload:
        t, k = self._tensors, self._kernels
        return Workload(
            name=self._name,
            tensors=Tensors(
                names=tuple(row[0] for row in t),
                size_bytes=np.array([row[1] for row in t], dtype=np.int64),
                kind=np.array([row[2] for row in t], dtype=np.uint8),
                is_global=np.array([row[3] for row in t], dtype=np.bool_),
            ),
            kernels=Kernels(
                names=tuple(row[0] for row in k),
                duration_ns=np.array([row[1] for row in k], dtype=np.float64),
                flops=np.array([row[2] for row in k], dtype=np.float64),
                phase=np.array([row[3] for row in k], dtype=np.uint8),
            ),
            inputs=Csr.from_lists(self._inputs),
            outputs=Csr.from_lists(self._outputs),
            metadata=self._metadata,
        )
