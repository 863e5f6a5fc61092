"""The policy `deepum`: correlation prefetching as DeepUM (ASPLOS'23) describes it, learnt from page faults while it runs."""

from dataclasses import asdict, dataclass, fields
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from pagetide.model.errors import InputError
from pagetide.model.plan import MigrationPlan, PlanBuilder
from pagetide.model.planners.base import add_frees
from pagetide.model.system import System
from pagetide.model.vitality import analyse
from pagetide.model.workload.workload import Workload

__all__ = ["Deepum", "DeepumOptions", "Registers", "execution_ids"]

CHUNK_BYTES = 2 << 20
"""The driver's unit of GPU memory."""


class Registers(StrEnum):
    """What a table's start and end registers hold once faults become rare (the paper's open end of point 9)."""

    LATEST = "latest"
    """First and last fault under the kernel's latest run that faulted, as the paper says. A fault that a late or lost prefetch
    lets through moves both, and what they no longer span is not prefetched the next time."""
    EXTEND = "extend"
    """The first fault ever, and an end on which later faults hang: the walk goes on until its frontier is empty, so a block
    that has faulted under a kernel stays within reach. Not in the paper."""


@dataclass(frozen=True)
class DeepumOptions:
    """Parameters of `deepum`; numbers in brackets are the open points of the paper that they resolve.

    Attributes:
        degree: N, how many kernels ahead are prefetched [15]; the paper's best is 32, G10 ran it with 8.
        rows, ways, successors: size of a block table; the paper's default is 2048 x 2 x 4 (its Config9).
        prefetch: whether faults start chains.
        pre_evict: whether memory is freed ahead, and victims are filtered by what is expected to be needed.
        invalidate: whether dead tensors are dropped without a write-back.
        low_bytes, high_bytes: pre-evict below so much free memory, up to so much [11]; whole chunks of 2 MiB.
        history_fallback: predict by the latest record of a kernel where its history is unknown [5].
        registers: see `Registers` [8, 9].
        callback_ps: time that the callback of a kernel start takes on the critical path [16]; launches hide it, so 0.
        late_faults: whether a block faults that is touched while its command is queued. The engine's kernel touches every
            block at its start, a GPU page by page; by default the command becomes urgent, as a planned fetch does.
        queue: commands that the prefetch queue holds; more are dropped and counted.
        learning_iterations: iterations before the measured one, if `engine.iterations` does not give more.
    """

    degree: int = 32
    rows: int = 2048
    ways: int = 2
    successors: int = 4
    prefetch: bool = True
    pre_evict: bool = True
    invalidate: bool = True
    low_bytes: int = CHUNK_BYTES
    high_bytes: int = 8 * CHUNK_BYTES
    history_fallback: bool = False
    registers: Registers = Registers.LATEST
    callback_ps: int = 0
    late_faults: bool = False
    queue: int = 65536
    learning_iterations: int = 8

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if item.type is int and (isinstance(value, bool) or not isinstance(value, int)):
                raise TypeError(f"{item.name} must be an integer, not {value!r}")
        for name in ("rows", "ways", "successors", "queue"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be 1 or more, not {getattr(self, name)}")
        for name in ("degree", "callback_ps", "learning_iterations"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} must be 0 or more, not {getattr(self, name)}")
        if not 0 < self.low_bytes <= self.high_bytes:
            raise InputError(
                f"low_bytes must be from 1 to high_bytes ({self.high_bytes}), not {self.low_bytes}"
            )

    def to_dict(self) -> dict[str, int]:
        """Return every option as an integer, as the engine takes them."""
        values = asdict(self)
        values["extend"] = values.pop("registers") is Registers.EXTEND
        return {name: int(value) for name, value in values.items()}


def execution_ids(workload: Workload) -> NDArray[np.int32]:
    """Return the execution ID of each kernel, int32[K]: equal name and operands, equal ID; numbered as first seen.

    The paper hashes the name and the arguments of a launch; arguments of a tensor operator are its operands' addresses. Equality
    of the names and operands themselves stands for a hash without collisions.
    """
    seen: dict[tuple[str, bytes, bytes], int] = {}
    return np.array(
        [
            seen.setdefault(
                (name, workload.inputs[k].tobytes(), workload.outputs[k].tobytes()), len(seen)
            )
            for k, name in enumerate(workload.kernels.names)
        ],
        dtype=np.int32,
    )


class Deepum:
    """DeepUM: learn from faults which blocks a kernel needs and which kernel follows, then prefetch along both, N kernels ahead.

    The rule, with its source in the DeepUM paper (ASPLOS'23):

    1. A kernel launch has an execution ID, by name and arguments (3.1). The execution-ID table maps the three kernels before and
       the current one to the next (4.1).
    2. Each execution ID has a block table: set-associative, each entry a block with its successors in the order of faults, most
       recent first; a start and an end register (4.1).
    3. A fault starts a chain at its block: through successors to the end block, then on from the start block of the predicted
       next kernel, until the next N kernels are covered; it goes on when a kernel ends, and stops at the next fault (4.2).
    4. Commands of the chain are carried out in order when no fault waits (3.2).
    5. Free memory below a watermark is restored by evicting least recently migrated blocks that neither the running kernel nor
       one of the next N is expected to need (5.1).
    6. Blocks of dead tensors are dropped without a write-back (5.2).

    It decides while the engine runs (`pagetide.model.engine.deepum`); its plan only frees dead tensors. This is the published
    mechanism, not the oracle of the same name in the public G10 artifact.
    """

    name = "deepum"

    def __init__(self, options: DeepumOptions | None = None) -> None:
        self.options = options or DeepumOptions()

    def plan(self, workload: Workload, system: System) -> MigrationPlan:
        """Return a plan that frees dead tensors (if it invalidates) and carries options and execution IDs to the engine."""
        builder = PlanBuilder(workload)
        if self.options.invalidate:
            add_frees(builder, workload, analyse(workload))
        return builder.build(
            self.name,
            system.profile,
            online={
                "policy": self.name,
                "options": self.options.to_dict(),
                "execution": execution_ids(workload).tolist(),
            },
        )
