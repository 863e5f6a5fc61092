"""The compiled tables and chain of the online policy `deepum`, and the hooks through which the engine's core calls them.

The policy learns which blocks each kernel faults on and which kernel comes next, and prefetches along both (DeepUM, ASPLOS'23,
sections 3 and 4). Three hooks make up the interface of an online policy:

- `kernel_started`: a kernel starts; its execution ID is known before any of its accesses.
- `block_faulted`: the driver has taken a fault of a block from the fault buffer.
- `next_command`: the migration thread has nothing more urgent to do and asks for the next block to prefetch.

`is_needed` is the filter on victims. The hooks see of the engine only whether a block is in GPU memory or on its way there, so the
same decisions can be compared with `pagetide.model.planners.deepum_reference.ReferenceDeepum`, the readable form, and with
hardware. All state is in few arrays (`DeepumState`); a table's memory is touched only for kernels that fault.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pagetide.model.engine.blocks import compiled, here_or_coming

__all__ = [
    "DREG",
    "DeepumState",
    "block_faulted",
    "is_needed",
    "kernel_started",
    "new_deepum_state",
    "next_command",
    "remove_command",
]


class _Reg(NamedTuple):
    """Places of the scalars in `DeepumState.reg`."""

    # Parameters.
    degree: int = 0  # N: how many kernels ahead are prefetched
    prefetch: int = 1  # whether faults start chains
    pre_evict: int = 2
    low_bytes: int = 3  # pre-eviction begins below this much free memory
    high_bytes: int = 4  # and goes on up to this much
    fallback: int = 5  # whether an unknown history is predicted by the latest record of the kernel
    extend: int = (
        6  # whether start and end registers span all faults ever seen, not the latest ones
    )
    callback_ps: int = 7  # time that the callback of a kernel start takes on the critical path
    late_faults: int = 8  # whether a block touched while its command is queued faults
    # The kernel that runs.
    sequence: int = 9  # kernels started so far
    running: int = 10  # execution ID, -1 before the first kernel
    before_1: int = 11  # the kernels before it, -1 if none
    before_2: int = 12
    before_3: int = 13
    last: int = 14  # the last faulted block under it, -1 if none
    tick: int = 15  # clock of the ways' LRU
    # The chain.
    alive: int = 16
    ahead: int = 17  # distance of the kernel that the chain walks next
    chain_0: int = 18  # the kernel it walked last and the three before
    chain_1: int = 19
    chain_2: int = 20
    chain_3: int = 21
    walk: int = 22  # stamp of the current walk of one kernel
    # The prefetch queue.
    head: int = 23
    tail: int = 24
    # Counts.
    commands: int = 25
    stale: int = 26
    dropped: int = 27
    not_started: int = 28  # faults that found no entry
    mispredicted: int = 29  # kernel starts other than predicted
    predicted: int = 30  # kernel starts as predicted
    evicted_entries: int = 31
    records: int = 32  # execution records in use
    late: int = 33  # blocks touched while their command was queued
    pre_evicted_bytes: int = 34


DREG = _Reg()

TABLE = np.dtype(
    [
        ("start", np.int32),  # block of the first fault after the change to this kernel, -1 if none
        ("end", np.int32),  # block of the last fault before the change away
        ("latest", np.int32),  # latest recorded next kernel whatever the history, -1 if none
    ]
)
WATCH = np.dtype(
    [
        (
            "until",
            np.int64,
        ),  # sequence number of the last kernel that is expected to need the block
        ("walk", np.int64),  # stamp of the last walk that visited it
        ("queued", np.bool_),
    ],
    align=True,
)


class DeepumState(NamedTuple):
    """All state of the policy."""

    reg: NDArray[np.int64]  # scalars, see `DREG`
    execution: NDArray[np.int32]  # [K], execution ID of each kernel of the iteration
    table: NDArray[Any]  # TABLE[E]
    entry: NDArray[
        np.int32
    ]  # [E, rows, ways, 2 + successors]: block + 1, LRU stamp, successors + 1 with MRU first
    record: NDArray[
        np.int32
    ]  # [C, 5]: p3, p2, p1, current, next, each + 2; 0 is empty; open addressing
    watch: NDArray[Any]  # WATCH[B]
    frontier: NDArray[np.int32]  # [B], blocks of the walk that are to be expanded
    queue: NDArray[
        np.int32
    ]  # [Q, 2], ring of commands: block, execution ID that is expected to need it
    ring: NDArray[np.int32]  # [degree + 2], predicted execution ID by sequence number, -1 if none


def new_deepum_state(
    execution: NDArray[np.int32],
    executions: int,
    blocks: int,
    options: Mapping[str, int],
    *,
    records: int = 0,
) -> DeepumState:
    """Return the policy's state before the first kernel: nothing learnt.

    Args:
        execution: int32[K], execution ID of each kernel of an iteration.
        executions: number of execution IDs.
        blocks: number of blocks.
        options: as `DeepumOptions.to_dict` gives them.
        records: execution records to have room for, 0 for as many as an iteration repeated for ever can give.
    """
    room = 1 << max(4, (2 * (records or len(execution) + 8)).bit_length())
    shape = (executions, options["rows"], options["ways"], 2 + options["successors"])
    reg = np.zeros(len(DREG), dtype=np.int64)
    for name in ("degree", "prefetch", "pre_evict", "low_bytes", "high_bytes", "callback_ps"):
        reg[getattr(DREG, name)] = options[name]
    reg[DREG.fallback] = options["history_fallback"]
    reg[DREG.extend] = options["extend"]
    reg[DREG.late_faults] = options["late_faults"]
    for place in (DREG.running, DREG.before_1, DREG.before_2, DREG.before_3, DREG.last):
        reg[place] = -1
    watch = np.zeros(blocks, dtype=WATCH)
    watch["until"] = -1
    return DeepumState(
        reg=reg,
        execution=execution,
        table=np.full(executions, -1, dtype=TABLE),
        entry=np.zeros(shape, dtype=np.int32),
        record=np.zeros((room, 5), dtype=np.int32),
        watch=watch,
        frontier=np.zeros(blocks, dtype=np.int32),
        queue=np.zeros((options["queue"], 2), dtype=np.int32),
        ring=np.full(options["degree"] + 2, -1, dtype=np.int32),
    )


# -- execution-ID correlation table ---------------------------------------------------------------------------------------


@compiled
def _record_place(p: DeepumState, p3: int, p2: int, p1: int, current: int) -> int:
    """Place of the record of a history, or of the empty record where it would go; -1 if the table is full."""
    size = len(p.record)
    key = ((p3 + 2) * 31 + (p2 + 2)) * 31 + (p1 + 2)
    place = ((key * 31 + current + 2) * 2654435761) & (size - 1)
    for _ in range(size):
        r = p.record[place]
        if r[3] == 0 or (
            r[0] == p3 + 2 and r[1] == p2 + 2 and r[2] == p1 + 2 and r[3] == current + 2
        ):
            return place
        place = (place + 1) & (size - 1)
    return -1


@compiled
def _predict(p: DeepumState, p3: int, p2: int, p1: int, current: int) -> int:
    """Execution ID that follows `current` after this history, -1 if there is no prediction."""
    place = _record_place(p, p3, p2, p1, current)
    if place >= 0 and p.record[place, 3] != 0:
        return int(p.record[place, 4]) - 2
    if p.reg[DREG.fallback]:
        return int(p.table[current].latest)
    return -1


@compiled
def _record(p: DeepumState, p3: int, p2: int, p1: int, current: int, following: int) -> None:
    """Record that `following` came after `current` with this history; the last writer wins."""
    p.table[current].latest = following
    place = _record_place(p, p3, p2, p1, current)
    if place < 0:
        return
    if p.record[place, 3] == 0:
        p.reg[DREG.records] += 1
    r = p.record[place]
    r[0], r[1], r[2], r[3], r[4] = p3 + 2, p2 + 2, p1 + 2, current + 2, following + 2


# -- block correlation tables ---------------------------------------------------------------------------------------------


@compiled
def _find(p: DeepumState, execution: int, b: int) -> int:
    """Way of block `b` in its set of a table, -1 if it has no entry."""
    row = b % p.entry.shape[1]
    for way in range(p.entry.shape[2]):
        if p.entry[execution, row, way, 0] == b + 1:
            return way
    return -1


@compiled
def _insert_successor(p: DeepumState, execution: int, b: int, successor: int) -> None:
    """Make `successor` the most recent one of block `b`, if `b` has an entry; the least recent one falls off."""
    way = _find(p, execution, b)
    if way < 0 or b == successor:
        return
    entry = p.entry[execution, b % p.entry.shape[1], way]
    place = 2
    while place < len(entry) - 1 and entry[place] != successor + 1:
        place += 1
    while place > 2:
        entry[place] = entry[place - 1]
        place -= 1
    entry[2] = successor + 1


@compiled
def _use_entry(p: DeepumState, execution: int, b: int) -> bool:
    """Make the entry of block `b` the most recent of its set; False if it had none and was given one."""
    row = b % p.entry.shape[1]
    way = _find(p, execution, b)
    found = way >= 0
    if not found:
        way = 0
        for other in range(p.entry.shape[2]):
            # An empty way has stamp 0, so it is the least recent of all; the first of equals is taken.
            if p.entry[execution, row, other, 1] < p.entry[execution, row, way, 1]:
                way = other
        if p.entry[execution, row, way, 0] != 0:
            p.reg[DREG.evicted_entries] += 1
        p.entry[execution, row, way, :] = 0
        p.entry[execution, row, way, 0] = b + 1
    p.reg[DREG.tick] += 1
    p.entry[execution, row, way, 1] = p.reg[DREG.tick]
    return bool(found)


# -- the chain ------------------------------------------------------------------------------------------------------------


@compiled
def _visit(p: DeepumState, block: NDArray[Any], b: int, tail: int) -> int:
    """The chain reaches block `b`: command it unless it is there, coming or queued. Returns the frontier's new tail."""
    reg = p.reg
    if p.watch[b].walk == reg[DREG.walk]:
        return tail
    p.watch[b].walk = reg[DREG.walk]
    p.frontier[tail] = b
    p.watch[b].until = max(p.watch[b].until, reg[DREG.sequence] + reg[DREG.ahead])
    if not p.watch[b].queued and not here_or_coming(block, b):
        if reg[DREG.tail] - reg[DREG.head] == len(p.queue):
            reg[DREG.dropped] += 1
        else:
            p.queue[reg[DREG.tail] % len(p.queue), 0] = b
            p.queue[reg[DREG.tail] % len(p.queue), 1] = reg[DREG.chain_0]
            reg[DREG.tail] += 1
            reg[DREG.commands] += 1
            p.watch[b].queued = True
    return tail + 1


@compiled
def _walk(p: DeepumState, block: NDArray[Any], tail: int) -> None:
    """Expand the frontier breadth first, most recent successor first, up to the kernel's end block or until it is empty."""
    execution = p.reg[DREG.chain_0]
    end = -1 if p.reg[DREG.extend] else p.table[execution].end
    head = 0
    while head < tail:
        b = p.frontier[head]
        if b == end:
            return
        head += 1
        way = _find(p, execution, b)
        if way < 0:
            continue
        row = b % p.entry.shape[1]
        for place in range(2, p.entry.shape[3]):
            successor = p.entry[execution, row, way, place] - 1
            if successor < 0:
                break
            tail = _visit(p, block, successor, tail)


@compiled
def _advance(p: DeepumState, block: NDArray[Any]) -> None:
    """Go on with the chain, kernel by kernel, until it has covered the next N kernels or a prediction fails."""
    reg = p.reg
    while reg[DREG.alive] and reg[DREG.ahead] <= reg[DREG.degree]:
        following = _predict(
            p, reg[DREG.chain_3], reg[DREG.chain_2], reg[DREG.chain_1], reg[DREG.chain_0]
        )
        if following < 0:
            reg[DREG.alive] = 0
            return
        reg[DREG.chain_3], reg[DREG.chain_2] = reg[DREG.chain_2], reg[DREG.chain_1]
        reg[DREG.chain_1], reg[DREG.chain_0] = reg[DREG.chain_0], following
        p.ring[(reg[DREG.sequence] + reg[DREG.ahead]) % len(p.ring)] = following
        start = p.table[following].start
        if start >= 0:
            reg[DREG.walk] += 1
            _walk(p, block, _visit(p, block, start, 0))
        reg[DREG.ahead] += 1


@compiled
def kernel_started(p: DeepumState, block: NDArray[Any], execution: int) -> None:
    """Hook: the kernel with this execution ID starts. Learns the change, then moves the window of the chain on."""
    reg = p.reg
    before = reg[DREG.running]
    if before >= 0:
        if reg[DREG.last] >= 0 and not reg[DREG.extend]:
            p.table[before].end = reg[DREG.last]
        _record(p, reg[DREG.before_3], reg[DREG.before_2], reg[DREG.before_1], before, execution)
        reg[DREG.before_3], reg[DREG.before_2] = reg[DREG.before_2], reg[DREG.before_1]
        reg[DREG.before_1] = before
    reg[DREG.running] = execution
    reg[DREG.last] = -1
    reg[DREG.sequence] += 1
    reg[DREG.ahead] -= 1
    if reg[DREG.alive]:
        if p.ring[reg[DREG.sequence] % len(p.ring)] == execution:
            reg[DREG.predicted] += 1
            _advance(p, block)
        else:
            reg[DREG.mispredicted] += 1
            reg[DREG.alive] = 0


@compiled
def block_faulted(p: DeepumState, block: NDArray[Any], b: int) -> None:
    """Hook: the running kernel has faulted on block `b`. Starts a chain from what is known, then learns."""
    reg = p.reg
    execution = reg[DREG.running]
    reg[DREG.alive] = 0
    if reg[DREG.prefetch]:
        if _find(p, execution, b) >= 0:
            reg[DREG.alive] = 1
            reg[DREG.ahead] = 0
            reg[DREG.chain_0], reg[DREG.chain_1] = execution, reg[DREG.before_1]
            reg[DREG.chain_2], reg[DREG.chain_3] = reg[DREG.before_2], reg[DREG.before_3]
            reg[DREG.walk] += 1
            _walk(p, block, _visit(p, block, b, 0))
            reg[DREG.ahead] = 1
            _advance(p, block)
        else:
            reg[DREG.not_started] += 1
    # Learning.
    table = p.table[execution]
    if reg[DREG.last] >= 0:
        _insert_successor(p, execution, reg[DREG.last], b)
    elif not reg[DREG.extend] or table.start < 0:
        table.start = b
    elif table.start != b:
        # The walk did not bring it: hang it on the end of what the walk reaches.
        _insert_successor(p, execution, table.end, b)
    if not _use_entry(p, execution, b) and reg[DREG.extend]:
        table.end = b
    reg[DREG.last] = b


# -- the prefetch queue and the filter ------------------------------------------------------------------------------------


@compiled
def is_needed(p: DeepumState, b: int) -> bool:
    """Whether the running kernel or one of the next N is expected to need block `b`."""
    return bool(p.watch[b].until >= p.reg[DREG.sequence])


@compiled
def next_command(p: DeepumState, block: NDArray[Any]) -> int:
    """Block of the first command that is still worth carrying out, -1 if there is none. The command stays queued."""
    reg = p.reg
    while reg[DREG.head] < reg[DREG.tail]:
        b = p.queue[reg[DREG.head] % len(p.queue), 0]
        if p.watch[b].queued:
            if not is_needed(p, b):
                reg[DREG.stale] += 1
            elif not here_or_coming(block, b):
                return int(b)
        remove_command(p, b)
    return -1


@compiled
def remove_command(p: DeepumState, b: int) -> None:
    """Take the first command, that of block `b`, off the queue."""
    p.watch[b].queued = False
    p.reg[DREG.head] += 1
