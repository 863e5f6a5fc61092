"""The `MigrationPlan`: which bytes move where before which kernel; the planner's output and the engine's input."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pagetide.model.columnar import load_columns, save_columns
from pagetide.model.errors import InputError
from pagetide.model.workload.workload import Workload

__all__ = ["Action", "MigrationPlan", "PlanBuilder", "Target"]

_VERSION = 1


class Action(IntEnum):
    """What an entry does; entries of one trigger run in this order, so that space is given back before it is taken."""

    FREE = 0
    PRE_EVICT = 1
    ALLOC = 2
    PREFETCH = 3


class Target(IntEnum):
    """Where bytes lie or go."""

    GPU = 0
    HOST = 1
    SSD = 2


_COLUMNS = {
    "trigger": np.int32,
    "tensor": np.int32,
    "offset_bytes": np.int64,
    "size_bytes": np.int64,
    "action": np.uint8,
    "target": np.uint8,
}


@dataclass(frozen=True, eq=False)
class MigrationPlan:
    """Plan entries as columns, in the order in which the runtime issues them.

    An entry is issued before its trigger kernel starts; trigger K (the number of kernels) means after the last one. The
    same entries are issued in every iteration.

    Attributes:
        policy: name of the policy that made the plan.
        profile: fidelity profile it was made in.
        workload: name of the workload.
        trigger: int32[N], not falling.
        tensor: int32[N].
        offset_bytes: int64[N], start of the range within the tensor.
        size_bytes: int64[N], length of the range.
        action: uint8[N] of `Action`.
        target: uint8[N] of `Target`; GPU for prefetch and alloc, HOST or SSD for pre-evict, without meaning for free.
        unlimited_gpu: the plan assumes a GPU that holds everything (policy `ideal`).
        online: what an online policy needs at run time (policy `deepum`: ``{"options": ..., "execution": ...}``); None for
            a static policy, whose entries are all there is; JSON values.
        statistics: what the planner wants to report; JSON values.
    """

    policy: str
    profile: str
    workload: str
    trigger: NDArray[np.int32]
    tensor: NDArray[np.int32]
    offset_bytes: NDArray[np.int64]
    size_bytes: NDArray[np.int64]
    action: NDArray[np.uint8]
    target: NDArray[np.uint8]
    unlimited_gpu: bool = False
    online: Mapping[str, Any] | None = None
    statistics: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.trigger)

    def check(self, workload: Workload) -> None:
        """Check this plan against the workload that it is to be run with.

        Raises:
            InputError: it is for another workload, an entry names no kernel or byte range of this one, or entries are
                not in trigger order.
        """
        kernels, tensors = len(workload.kernels), len(workload.tensors)
        if self.workload != workload.name:
            raise InputError(
                f"the plan is for workload {self.workload!r}, not for {workload.name!r}; plan again"
            )
        shapes = {getattr(self, name).shape for name in _COLUMNS}
        if shapes != {(self.trigger.size,)}:
            raise InputError("the plan's columns differ in shape; plan again")
        # One row more, so that an entry for a workload without tensors has something to be compared with.
        sizes = np.append(workload.tensors.size_bytes, 0)
        size = sizes[np.clip(self.tensor, 0, tensors)]
        bad = (
            (self.trigger < 0)
            | (self.trigger > kernels)
            | (self.tensor < 0)
            | (self.tensor >= tensors)
            | (self.offset_bytes < 0)
            | (self.size_bytes <= 0)
            | (self.size_bytes > size - self.offset_bytes)
            | (self.action >= len(Action))
            | (self.target >= len(Target))
        )
        if bad.any():
            n = int(np.flatnonzero(bad)[0])
            raise InputError(
                f"plan entry {n} (trigger {self.trigger[n]}, tensor {self.tensor[n]}, offset {self.offset_bytes[n]}, "
                f"size {self.size_bytes[n]}) lies outside workload {workload.name!r} with {kernels} kernels and "
                f"{tensors} tensors; plan again"
            )
        if (np.diff(self.trigger) < 0).any():
            raise InputError("plan entries are not in trigger order; plan again")

    def totals(self, action: Action, target: Target | None = None) -> tuple[int, int]:
        """Return how many entries of `action` (to `target`, if given) an iteration has, and the bytes they name."""
        chosen = self.action == action
        if target is not None:
            chosen &= self.target == target
        return int(chosen.sum()), int(self.size_bytes[chosen].sum())

    def save(self, path: Path) -> None:
        """Write to one compressed file (`.npz`); the same plan gives the same bytes."""
        save_columns(
            path,
            kind="plan",
            version=_VERSION,
            header={
                "policy": self.policy,
                "profile": self.profile,
                "workload": self.workload,
                "unlimited_gpu": self.unlimited_gpu,
                "online": None if self.online is None else dict(self.online),
                "statistics": dict(self.statistics),
            },
            columns={name: getattr(self, name) for name in _COLUMNS},
        )

    @classmethod
    def load(cls, path: Path) -> "MigrationPlan":
        """Read what `save` wrote; raises `InputError` for a missing or damaged file."""
        header, columns = load_columns(path, kind="plan", version=_VERSION, required=_COLUMNS)
        try:
            arrays = {
                name: columns[name].astype(dtype, casting="safe")
                for name, dtype in _COLUMNS.items()
            }
            if {array.shape for array in arrays.values()} != {(arrays["trigger"].size,)}:
                raise InputError("columns differ in length")
            return cls(
                policy=str(header["policy"]),
                profile=str(header["profile"]),
                workload=str(header["workload"]),
                unlimited_gpu=bool(header["unlimited_gpu"]),
                online=header.get("online"),
                statistics=dict(header["statistics"]),
                **arrays,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path}: damaged plan file ({error}); plan again") from None


class PlanBuilder:
    """Collects plan entries in any order and returns them in issue order."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._parts: list[tuple[NDArray[np.int64], NDArray[np.int64], Action, Target]] = []

    def add(
        self,
        action: Action,
        target: Target,
        *,
        trigger: Iterable[int] | NDArray[Any],
        tensor: Iterable[int] | NDArray[Any],
    ) -> None:
        """Add one entry for each (trigger, tensor) pair; each covers the whole tensor.

        Raises:
            ValueError: the two differ in length, or name a kernel or tensor that the workload does not have.
        """
        triggers, tensors = np.asarray(trigger, np.int64), np.asarray(tensor, np.int64)
        if triggers.ndim != 1 or triggers.shape != tensors.shape:
            raise ValueError(
                "trigger and tensor must be lists of equal length, but have shapes "
                f"{triggers.shape} and {tensors.shape}"
            )
        for name, values, most in (
            ("trigger", triggers, len(self._workload.kernels)),
            ("tensor", tensors, len(self._workload.tensors) - 1),
        ):
            bad = values[(values < 0) | (values > most)]
            if bad.size:
                raise ValueError(f"{name} must be 0 to {most}, but {bad[0]} came")
        self._parts.append((triggers, tensors, action, target))

    def build(self, policy: str, profile: str, **fields: Any) -> MigrationPlan:
        """Return the plan: entries by trigger, then by `Action`, then in the order in which they were added."""
        trigger = np.concatenate([part[0] for part in self._parts] or [np.zeros(0, dtype=np.int64)])
        tensor = np.concatenate([part[1] for part in self._parts] or [np.zeros(0, dtype=np.int64)])
        action = np.concatenate(
            [np.full(len(part[0]), part[2]) for part in self._parts] or [np.zeros(0)]
        )
        target = np.concatenate(
            [np.full(len(part[0]), part[3]) for part in self._parts] or [np.zeros(0)]
        )
        order = np.lexsort((np.arange(len(trigger)), action, trigger))
        tensor = tensor[order]
        return MigrationPlan(
            policy=policy,
            profile=profile,
            workload=self._workload.name,
            trigger=trigger[order].astype(np.int32),
            tensor=tensor.astype(np.int32),
            offset_bytes=np.zeros(len(tensor), dtype=np.int64),
            size_bytes=self._workload.tensors.size_bytes[tensor],
            action=action[order].astype(np.uint8),
            target=target[order].astype(np.uint8),
            **fields,
        )
