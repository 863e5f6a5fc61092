"""The timing engine: runs a plan on a system and measures one iteration.

Per kernel: the plan's entries are issued, the kernel waits until all its operands are in GPU memory (stall), then runs
(compute), while transfers go on. What the plan did not bring comes by page faults, in batches (`System.fault`). The model
behind it is described in `pagetide.model.engine.core`.
"""

import itertools
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pagetide.model import stalls
from pagetide.model.engine import core, deepum
from pagetide.model.engine.core import REG
from pagetide.model.errors import InfeasibleError, InputError
from pagetide.model.plan import MigrationPlan
from pagetide.model.result import Result, Transfers
from pagetide.model.system import System
from pagetide.model.units import format_bytes
from pagetide.model.workload.workload import Workload

__all__ = ["PAGE_BYTES", "cut_into_blocks", "run", "start"]

PAGE_BYTES = 4096
"""Frames are handed out in pages of this size: a smaller tensor takes a whole page (no packing)."""

_LOG_ROWS = 1_000_000
_STEPS = 40


def cut_into_blocks(
    size_bytes: NDArray[np.int64], block_bytes: int
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
    """Cut tensors into blocks of at most `block_bytes`, the last of a tensor rounded up to whole pages.

    Args:
        size_bytes: int64[T].
        block_bytes: block size, a multiple of `PAGE_BYTES`.

    Returns:
        Bytes of each block int64[B], tensor of each block int32[B], first block of each tensor int64[T + 1].
    """
    paged = -(-size_bytes // PAGE_BYTES) * PAGE_BYTES
    count = -(-paged // block_bytes)
    first = np.zeros(len(size_bytes) + 1, dtype=np.int64)
    np.cumsum(count, out=first[1:])
    blocks = np.full(first[-1], block_bytes, dtype=np.int64)
    blocks[first[1:] - 1] = paged - (count - 1) * block_bytes
    return blocks, np.repeat(np.arange(len(size_bytes), dtype=np.int32), count), first


def run(
    workload: Workload,
    plan: MigrationPlan,
    system: System,
    *,
    progress: Callable[[float], None] | None = None,
) -> Result:
    """Run `system.engine.iterations` iterations of `workload` under `plan` and return the last one's result.

    The same input gives the same result on any machine.

    Args:
        workload: what is run.
        plan: made for this workload by any policy.
        system: the machine.
        progress: called now and then with the share of the work that is done, 0 to 1.

    Raises:
        InputError: the plan is not for this workload, a kernel's operands exceed GPU memory, no place has room for a block that must
            leave, or simulated time exceeds 53 days.
    """
    state = start(workload, plan, system)
    online = _online_state(plan, state)
    iterations = system.engine.iterations
    if plan.online is not None:
        iterations = max(iterations, plan.online["options"]["learning_iterations"] + 1)
    counts: list[dict[str, int]] = []
    kernels = len(workload.kernels)
    bounds = np.unique(np.linspace(0, kernels, min(kernels, _STEPS) + 1).astype(np.int64))
    for iteration in range(iterations):
        core.begin_iteration(state, iteration == iterations - 1)
        for first, last in itertools.pairwise(bounds):
            core.run_kernels(state, online, first, last)
            _raise_for(state, workload, system)
            if progress is not None:
                progress((iteration + last / kernels) / iterations)
        if online is not None:
            counts.append(_online_counts(state, online))
    return _result(state, workload, plan, system, iterations, counts)


def start(workload: Workload, plan: MigrationPlan, system: System) -> core.State:
    """Return the engine's state before the first iteration, global tensors in place. `run` is what most callers want.

    Raises:
        InputError, InfeasibleError: as `run`.
    """
    plan.check(workload)
    if system.profile != "faithful":
        raise InputError(
            f"this engine is for the profile 'faithful', not {system.profile!r}; use pagetide.model.artifact.run"
        )
    if system.engine.block_bytes % PAGE_BYTES:
        raise InputError(
            f"engine.block is {system.engine.block_bytes} bytes; use a multiple of {PAGE_BYTES}"
        )
    block_bytes, block_tensor, tensor_block = cut_into_blocks(
        workload.tensors.size_bytes, system.engine.block_bytes
    )
    _check_capacity(workload, plan, system, tensor_block, block_bytes)
    state = _new_state(workload, plan, system, block_bytes, block_tensor, tensor_block)
    core.place_globals(state, workload.tensors.is_global)
    _raise_for(state, workload, system)
    return state


def _check_capacity(
    workload: Workload,
    plan: MigrationPlan,
    system: System,
    tensor_block: NDArray[np.int64],
    block_bytes: NDArray[np.int64],
) -> None:
    if plan.unlimited_gpu:
        return
    cumulative = np.concatenate([[0], np.cumsum(block_bytes)])
    paged = cumulative[tensor_block[1:]] - cumulative[tensor_block[:-1]]
    operands = workload.operands
    needed = np.bincount(
        operands.rows, weights=paged[operands.ids], minlength=len(workload.kernels)
    )
    worst = int(needed.argmax())
    if needed[worst] > system.gpu.memory_bytes:
        raise InfeasibleError(
            f"kernel {worst} ({workload.kernels.names[worst]!r}) of {workload.name!r} needs "
            f"{needed[worst] / 2**30:.2f} GiB at once, but gpu.memory is {format_bytes(system.gpu.memory_bytes)}; "
            "use a smaller batch or a larger GPU"
        )


def _new_state(
    workload: Workload,
    plan: MigrationPlan,
    system: System,
    block_bytes: NDArray[np.int64],
    block_tensor: NDArray[np.int32],
    tensor_block: NDArray[np.int64],
) -> core.State:
    operands = workload.operands
    block = np.zeros(len(block_bytes), dtype=core.BLOCK)
    block["size"] = block_bytes
    block["tensor"] = block_tensor
    kernel = np.zeros(len(workload.kernels), dtype=core.KERNEL)
    kernel["duration_ps"] = np.rint(workload.kernels.duration_ns * 1e3)
    first_of = tensor_block[plan.tensor]
    entry = np.zeros(len(plan), dtype=core.ENTRY)
    entry["trigger"] = plan.trigger
    entry["action"] = plan.action
    entry["target"] = plan.target
    entry["first"] = first_of + plan.offset_bytes // system.engine.block_bytes
    entry["last"] = first_of - (-(plan.offset_bytes + plan.size_bytes) // system.engine.block_bytes)
    link, ssd = system.link, system.ssd
    link_rate = link.bandwidth_bytes_per_s
    state = core.new_state(
        block=block,
        kernel=kernel,
        entry=entry,
        tensor_block=tensor_block,
        operand_ptr=operands.indptr,
        operand_ids=operands.ids,
        limit=np.array(
            [link_rate, ssd.read_bandwidth_bytes_per_s, link_rate, ssd.write_bandwidth_bytes_per_s]
        )
        / 1e12,
        latency_ps=np.array([0, ssd.read_latency_ps, 0, ssd.write_latency_ps], dtype=np.int64)
        + link.latency_ps,
        log_rows=_LOG_ROWS,
    )
    reg = state.reg
    reg[REG.gpu_capacity] = (
        np.iinfo(np.int64).max // 4 if plan.unlimited_gpu else system.gpu.memory_bytes
    )
    reg[REG.host_capacity] = system.host.memory_bytes
    reg[REG.ssd_capacity] = system.ssd.capacity_bytes
    reg[REG.batch_latency] = system.fault.batch_latency_ps
    reg[REG.blocks_per_batch] = system.fault.blocks_per_batch
    reg[REG.whole_batches] = not system.fault.overlap_eviction
    reg[REG.faults_free] = plan.unlimited_gpu
    return state


def _raise_for(state: core.State, workload: Workload, system: System) -> None:
    error = int(state.reg[REG.error])
    if error == core.ERROR_SSD_FULL:
        raise InfeasibleError(
            f"{workload.name!r} does not fit: GPU and host memory are full and so are the SSD's "
            f"{format_bytes(system.ssd.capacity_bytes)} (ssd.capacity); use a smaller batch or a larger SSD"
        )
    if error == core.ERROR_TOO_LONG:
        raise InputError(
            f"{workload.name!r} takes more than {core.MAX_PS / 1e12 / 86400:.0f} days of simulated time, which is more than "
            "the engine can count; check bandwidths and kernel times"
        )
    if error != core.ERROR_NONE:
        raise RuntimeError(
            f"the engine found no next event in {workload.name!r} though a kernel still waits; this is a defect of the "
            "engine, please report it with the workload and the system"
        )


_DEEPUM_COUNTS = (
    "commands",
    "late",
    "stale",
    "dropped",
    "not_started",
    "predicted",
    "mispredicted",
    "evicted_entries",
    "pre_evicted_bytes",
)


def _online_state(plan: MigrationPlan, state: core.State) -> deepum.DeepumState | None:
    if plan.online is None:
        return None
    if plan.online["policy"] != "deepum":
        raise InputError(
            f"the plan names the online policy {plan.online['policy']!r}, but this version knows only 'deepum'; plan again"
        )
    execution = np.array(plan.online["execution"], dtype=np.int32)
    options = plan.online["options"]
    return deepum.new_deepum_state(execution, int(execution.max()) + 1, len(state.block), options)


def _online_counts(state: core.State, online: deepum.DeepumState) -> dict[str, int]:
    """Return the counts of the iteration that has just ended, and start them again."""
    reg, places = online.reg, deepum.DREG
    counts = {
        "faults": int(state.reg[REG.faults]),
        "time_ps": int(state.reg[REG.now] - state.reg[REG.iteration_start]),
    }
    for name in _DEEPUM_COUNTS:
        counts[name] = int(reg[getattr(places, name)])
        reg[getattr(places, name)] = 0
    return counts


def _result(
    state: core.State,
    workload: Workload,
    plan: MigrationPlan,
    system: System,
    iterations: int,
    counts: Sequence[dict[str, int]],
) -> Result:
    start = int(state.reg[REG.iteration_start])
    kernel = state.kernel
    log = state.log[: int(state.reg[REG.log_rows])]
    online: dict[str, Any] = {}
    if plan.online is not None:
        online = {"options": plan.online["options"], "iterations": list(counts)}
    ready_ps, start_ps = kernel["ready_ps"] - start, kernel["start_ps"] - start
    transfers = Transfers(
        channel=log[:, 0].copy(),
        tensor=log[:, 1].copy(),
        cause=log[:, 2].copy(),
        start_ps=log[:, 3] - start,
        end_ps=log[:, 4] - start,
        size_bytes=log[:, 5].copy(),
        lost=int(state.reg[REG.log_lost]),
    )
    return Result(
        workload=workload.name,
        policy=plan.policy,
        profile=plan.profile,
        system=system.to_dict(),
        kernels=workload.kernels,
        tensors=workload.tensors,
        ready_ps=ready_ps,
        start_ps=start_ps,
        end_ps=kernel["end_ps"] - start,
        blame_tensor=stalls.blame_tensor(
            workload.operands, ready_ps, start_ps, transfers, core.CHANNELS
        ),
        fault_blocks=kernel["fault_blocks"].copy(),
        fault_batches=int(state.reg[REG.batches]),
        occupancy_bytes=np.stack(
            [kernel[f"{place}_bytes"] for place in ("gpu", "host", "ssd")], axis=1
        ),
        gpu_peak_bytes=int(state.reg[REG.gpu_peak]),
        traffic_bytes=state.traffic,
        transfers=transfers,
        channels=core.CHANNELS,
        causes=core.CAUSES,
        iterations=iterations,
        provenance={
            **workload.metadata,
            "pagetide": version("pagetide"),
            "plan": dict(plan.statistics),
            **online,
        },
    )
