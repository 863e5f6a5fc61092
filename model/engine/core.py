"""The compiled core of the timing engine: blocks, queues, channels and the event loop.

Everything here works on one `State` of numpy arrays and is compiled by numba; there are no Python objects in the loop. Time
is in integer picoseconds, sizes in bytes. `pagetide.model.engine.engine` is the public face.

**Blocks.** A tensor is cut into blocks of at most `System.engine.block` bytes. A block has a location (none, GPU, host, SSD)
and a flight state. It is in at most one queue at a time, so queues are doubly linked lists through the blocks.

**Channels.** Four: host to GPU, SSD to GPU, GPU to host, GPU to SSD. Each serves one block at a time, demand before planned
traffic; a demand arrival preempts a planned block, which resumes later. The two channels of a direction share the GPU's
link by max-min fairness: the SSD channel gets its own bandwidth if that is under half the link, the host channel the rest;
rates change the moment a channel starts or stops.

**Frames.** An incoming or new block first takes its bytes of GPU memory. If there are none it waits: demand first, in order;
planned requests are granted only when no demand waits. Demand evicts the least recently migrated blocks that are no operand
of the waiting kernel. An outgoing block gives its bytes back when its transfer is complete.

**Online policies.** A static policy is its plan. An online policy (`deepum`) decides while the run goes on: functions that lead to a
decision take its state `p` and call its hooks (`pagetide.model.engine.deepum`). For a static policy `p` is None, and the branches
are gone when the function is compiled.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pagetide.model.engine import deepum
from pagetide.model.engine.blocks import (
    BLOCK,
    DELAYED,
    GPU,
    HOST,
    IDLE,
    NONE,
    QUEUED,
    SERVED,
    SSD,
    WAITING,
    compiled,
)

__all__ = [
    "BLOCK",
    "CAUSES",
    "CHANNELS",
    "ENTRY",
    "ERROR_NONE",
    "ERROR_SSD_FULL",
    "ERROR_STUCK",
    "ERROR_TOO_LONG",
    "KERNEL",
    "REG",
    "State",
    "begin_iteration",
    "new_state",
    "place_globals",
    "run_kernels",
]

# Channels; the direction is channel // 2 and the odd ones are the SSD's.
CHANNELS = ("host->gpu", "ssd->gpu", "gpu->host", "gpu->ssd")
HOST_IN, SSD_IN, HOST_OUT, SSD_OUT = 0, 1, 2, 3

# Causes of a transfer.
CAUSES = ("demand", "prefetch", "pre-evict", "demand-evict")
DEMAND, PREFETCH, PRE_EVICT, DEMAND_EVICT = 0, 1, 2, 3

# Plan actions and targets (values of `plan.Action` and `plan.Target`).
FREE, EVICT, ALLOC, FETCH = 0, 1, 2, 3
TO_HOST = 1

# Queues: two classes a channel, a delay line a channel, two classes of waiting for frames, faults not yet in a batch.
N_QUEUES = 15
DELAY_QUEUE = 8
WAIT_QUEUE = 12
FAULT_QUEUE = 14

# Phases of the fault path.
FAULT_IDLE, FAULT_HANDLING, FAULT_MOVING = 0, 1, 2

ERROR_NONE, ERROR_SSD_FULL, ERROR_STUCK, ERROR_TOO_LONG = 0, 1, 2, 3

NEVER = np.iinfo(np.int64).max
MAX_PS = 1 << 62  # no single step is longer, so that time never overflows


class _Reg(NamedTuple):
    """Places of the scalars in `State.reg`."""

    now: int = 0
    gpu_capacity: int = 1
    host_capacity: int = 2
    ssd_capacity: int = 3
    gpu_used: int = 4
    host_used: int = 5
    ssd_used: int = 6
    wait_bytes: int = 7  # demand blocks that wait for frames
    out_bytes: int = 8  # blocks on their way out
    missing: int = 9  # operand blocks of the current kernel that are not in GPU memory
    kernel_seq: int = 10  # stamp of the current kernel in `State.pin`
    cursor: int = 11  # where the search for a victim goes on
    fault_phase: int = 12
    fault_ready: int = 13  # when the batch in handling has been handled
    batch_left: int = 14  # blocks of the current batch that are not there yet
    blocks_per_batch: int = 15
    batch_latency: int = 16
    whole_batches: int = (
        17  # a batch gets its frames all at once: evictions do not overlap its fetches
    )
    faults: int = 18
    batches: int = 19
    gpu_peak: int = 20
    log_on: int = 21
    log_rows: int = 22
    log_lost: int = 23
    error: int = 24
    entry: int = 25  # next plan entry
    lru_head: int = 26
    lru_tail: int = 27
    faults_free: int = 28  # first touches cost nothing (policy `ideal`)
    iteration_start: int = 29
    batch_wait: int = 30  # bytes of the current batch that wait for frames


REG = _Reg()
N_REG = len(REG)


LINE = np.dtype([("head", np.int32), ("tail", np.int32)])
LANE = np.dtype(
    [
        (
            "limit",
            np.float64,
        ),  # bytes per ps: the SSD's for an SSD channel, the link's for a host channel
        ("latency_ps", np.int64),
        ("rate", np.float64),  # bytes per ps
        ("since_ps", np.int64),  # time up to which `remaining` of the block in service holds
        ("finish_ps", np.int64),
        ("began_ps", np.int64),
        ("began_bytes", np.float64),
        ("log_last", np.int64),
        ("serving", np.int32),
    ],
    align=True,
)
KERNEL = np.dtype(
    [
        ("duration_ps", np.int64),
        ("ready_ps", np.int64),
        ("start_ps", np.int64),
        ("end_ps", np.int64),
        ("fault_blocks", np.int64),
        ("gpu_bytes", np.int64),  # in use when it starts
        ("host_bytes", np.int64),
        ("ssd_bytes", np.int64),
    ]
)
ENTRY = np.dtype(
    [
        ("first", np.int64),  # blocks first to last - 1
        ("last", np.int64),
        ("trigger", np.int32),
        ("action", np.uint8),
        ("target", np.uint8),
    ],
    align=True,
)


class State(NamedTuple):
    """All state of a run, in few arrays so that compiled calls stay cheap."""

    reg: NDArray[np.int64]  # scalars, see `REG`
    block: NDArray[Any]  # BLOCK[B]
    line: NDArray[Any]  # LINE[N_QUEUES], the queues
    lane: NDArray[Any]  # LANE[4], the channels
    kernel: NDArray[Any]  # KERNEL[K]
    entry: NDArray[Any]  # ENTRY[N], plan entries
    tensor_block: NDArray[np.int64]  # [T + 1], first block of each tensor
    operand_ptr: NDArray[np.int64]  # [K + 1]
    operand_ids: NDArray[np.int32]
    traffic: NDArray[np.int64]  # [4, 4] bytes by channel and cause
    log: NDArray[np.int64]  # [L, 6] channel, tensor, cause, start, end, bytes


# -- queues ---------------------------------------------------------------------------------------------------------------


@compiled
def _push(s: State, q: int, b: int) -> None:
    s.block[b].queue = q
    s.block[b].following = -1
    s.block[b].preceding = s.line[q].tail
    if s.line[q].tail >= 0:
        s.block[s.line[q].tail].following = b
    else:
        s.line[q].head = b
    s.line[q].tail = b


@compiled
def _push_front(s: State, q: int, b: int) -> None:
    s.block[b].queue = q
    s.block[b].preceding = -1
    s.block[b].following = s.line[q].head
    if s.line[q].head >= 0:
        s.block[s.line[q].head].preceding = b
    else:
        s.line[q].tail = b
    s.line[q].head = b


@compiled
def _remove(s: State, b: int) -> None:
    q = s.block[b].queue
    before, after = s.block[b].preceding, s.block[b].following
    if before >= 0:
        s.block[before].following = after
    else:
        s.line[q].head = after
    if after >= 0:
        s.block[after].preceding = before
    else:
        s.line[q].tail = before
    s.block[b].queue = -1


@compiled
def _lru_append(s: State, b: int) -> None:
    tail = s.reg[REG.lru_tail]
    s.block[b].lru_next = -1
    s.block[b].lru_prev = tail
    if tail >= 0:
        s.block[tail].lru_next = b
    else:
        s.reg[REG.lru_head] = b
    s.reg[REG.lru_tail] = b
    if s.reg[REG.cursor] < 0:
        s.reg[REG.cursor] = b


@compiled
def _lru_remove(s: State, b: int) -> None:
    before, after = s.block[b].lru_prev, s.block[b].lru_next
    if before >= 0:
        s.block[before].lru_next = after
    else:
        s.reg[REG.lru_head] = after
    if after >= 0:
        s.block[after].lru_prev = before
    else:
        s.reg[REG.lru_tail] = before
    if s.reg[REG.cursor] == b:
        s.reg[REG.cursor] = after


# -- channels -------------------------------------------------------------------------------------------------------------


@compiled
def _settle(s: State, c: int) -> None:
    """Bring the remaining bytes of the block in service up to now."""
    b = s.lane[c].serving
    if b >= 0:
        moved = s.lane[c].rate * (s.reg[REG.now] - s.lane[c].since_ps)
        s.block[b].remaining = max(0.0, s.block[b].remaining - moved)
    s.lane[c].since_ps = s.reg[REG.now]


@compiled
def _share(s: State, direction: int) -> None:
    """Set the rates of a direction's two channels from what is in service, and their finish times."""
    host, ssd = 2 * direction, 2 * direction + 1
    link = s.lane[host].limit
    _settle(s, host)
    _settle(s, ssd)
    ssd_rate = 0.0
    if s.lane[ssd].serving >= 0:
        ssd_rate = min(s.lane[ssd].limit, link / 2 if s.lane[host].serving >= 0 else link)
    s.lane[ssd].rate = ssd_rate
    s.lane[host].rate = link - ssd_rate if s.lane[host].serving >= 0 else 0.0
    for c in (host, ssd):
        b = s.lane[c].serving
        if b >= 0:
            s.lane[c].finish_ps = s.reg[REG.now] + np.int64(
                np.ceil(s.block[b].remaining / s.lane[c].rate)
            )
        else:
            s.lane[c].finish_ps = NEVER


@compiled
def _note(s: State, c: int, b: int) -> None:
    """Log the service of block `b` that stops now; runs of one tensor and cause become one row."""
    if s.reg[REG.log_on] == 0:
        return
    last = s.lane[c].log_last
    start, now = s.lane[c].began_ps, s.reg[REG.now]
    if start == now:
        return
    moved = np.int64(np.rint(s.lane[c].began_bytes) - np.rint(s.block[b].remaining))
    tensor, cause = s.block[b].tensor, s.block[b].cause
    if (
        last >= 0
        and s.log[last, 1] == tensor
        and s.log[last, 2] == cause
        and s.log[last, 4] == start
    ):
        s.log[last, 4] = now
        s.log[last, 5] += moved
        return
    row = s.reg[REG.log_rows]
    if row >= len(s.log):
        s.reg[REG.log_lost] += 1
        return
    s.log[row, 0] = c
    s.log[row, 1] = tensor
    s.log[row, 2] = cause
    s.log[row, 3] = start
    s.log[row, 4] = now
    s.log[row, 5] = moved
    s.lane[c].log_last = row
    s.reg[REG.log_rows] = row + 1


@compiled
def _dispatch(s: State, c: int) -> None:
    """Put the next block of channel `c` in service if the channel is free."""
    if s.lane[c].serving < 0:
        b = s.line[2 * c].head
        if b < 0:
            b = s.line[2 * c + 1].head
        if b >= 0:
            _remove(s, b)
            s.lane[c].serving = b
            s.block[b].flight = SERVED
            s.lane[c].since_ps = s.reg[REG.now]
            s.lane[c].began_ps = s.reg[REG.now]
            s.lane[c].began_bytes = s.block[b].remaining
    _share(s, c // 2)


@compiled
def _enqueue(s: State, b: int, c: int, urgent: bool, cause: int, left: float) -> None:
    """Queue block `b` on channel `c` with `left` bytes to move; an urgent one preempts a planned one in service."""
    s.block[b].flight = QUEUED
    s.block[b].channel = c
    s.block[b].cause = cause
    s.block[b].remaining = left
    _push(s, 2 * c if urgent else 2 * c + 1, b)
    other = s.lane[c].serving
    if (
        urgent
        and other >= 0
        and (s.block[other].cause == PREFETCH or s.block[other].cause == PRE_EVICT)
    ):
        _settle(s, c)
        _note(s, c, other)
        s.block[other].flight = QUEUED
        _push_front(s, 2 * c + 1, other)
        s.lane[c].serving = -1
    _dispatch(s, c)


# -- frames and locations -------------------------------------------------------------------------------------------------


@compiled
def _arrived(s: State, b: int) -> None:
    """Block `b` is in GPU memory now."""
    s.block[b].location = GPU
    s.block[b].flight = IDLE
    _lru_append(s, b)
    if s.block[b].pin == s.reg[REG.kernel_seq]:
        s.reg[REG.missing] -= 1
    if s.block[b].in_batch:
        s.block[b].in_batch = False
        s.reg[REG.batch_left] -= 1


@compiled
def _bring(s: State, b: int, urgent: bool) -> None:
    """Block `b` has its frames: fetch its bytes, or hand out the frames if it has none yet."""
    cause = DEMAND if urgent else PREFETCH
    if s.block[b].location == HOST:
        _enqueue(s, b, HOST_IN, urgent, cause, s.block[b].size)
    elif s.block[b].location == SSD:
        _enqueue(s, b, SSD_IN, urgent, cause, s.block[b].size)
    else:
        _arrived(s, b)


@compiled
def _grant(s: State) -> None:
    """Give free frames to the blocks that wait for them."""
    reg = s.reg
    for urgent in (True, False):
        q = WAIT_QUEUE if urgent else WAIT_QUEUE + 1
        while s.line[q].head >= 0:
            b = s.line[q].head
            needed = (
                reg[REG.batch_wait]
                if s.block[b].in_batch and reg[REG.whole_batches]
                else s.block[b].size
            )
            if reg[REG.gpu_used] + needed > reg[REG.gpu_capacity]:
                return
            _remove(s, b)
            if s.block[b].in_batch:
                reg[REG.batch_wait] -= s.block[b].size
            if urgent:
                reg[REG.wait_bytes] -= s.block[b].size
            reg[REG.gpu_used] += s.block[b].size
            reg[REG.gpu_peak] = max(reg[REG.gpu_peak], reg[REG.gpu_used])
            _bring(s, b, urgent)


@compiled
def _request(s: State, b: int, urgent: bool) -> None:
    """Ask for frames for block `b`; `_grant` must follow."""
    s.block[b].flight = WAITING
    if urgent:
        s.reg[REG.wait_bytes] += s.block[b].size
        _push(s, WAIT_QUEUE, b)
    else:
        _push(s, WAIT_QUEUE + 1, b)


@compiled
def _send_out(s: State, b: int, to_host: bool, urgent: bool) -> None:
    """Evict the idle GPU block `b`; to the other place if the first has no room.

    With no room anywhere a planned eviction is not carried out, and a demand is an error.
    """
    reg = s.reg
    size = s.block[b].size
    host_fits = reg[REG.host_used] + size <= reg[REG.host_capacity]
    ssd_fits = reg[REG.ssd_used] + size <= reg[REG.ssd_capacity]
    if not host_fits and not ssd_fits:
        if urgent:
            reg[REG.error] = ERROR_SSD_FULL
        return
    _lru_remove(s, b)
    reg[REG.out_bytes] += size
    cause = DEMAND_EVICT if urgent else PRE_EVICT
    if host_fits and (to_host or not ssd_fits):
        reg[REG.host_used] += size
        _enqueue(s, b, HOST_OUT, urgent, cause, size)
    else:
        reg[REG.ssd_used] += size
        _enqueue(s, b, SSD_OUT, urgent, cause, size)


@compiled
def _forget_copy(s: State, b: int, place: int) -> None:
    """Give back the bytes that block `b` takes in host memory or on the SSD."""
    if place == HOST:
        s.reg[REG.host_used] -= s.block[b].size
    elif place == SSD:
        s.reg[REG.ssd_used] -= s.block[b].size


@compiled
def _cancel_out(s: State, b: int) -> None:
    """Take back an eviction whose transfer has not begun: the block is an idle GPU block again."""
    _remove(s, b)
    # Set while it was in service, before a demand took its turn at the same instant.
    s.block[b].doomed = False
    s.block[b].wanted = False
    s.reg[REG.out_bytes] -= s.block[b].size
    _forget_copy(s, b, HOST if s.block[b].channel == HOST_OUT else SSD)
    s.block[b].flight = IDLE
    _lru_append(s, b)


@compiled
def _can_cancel(s: State, b: int) -> bool:
    """Whether `b` waits to go out and no byte of it has moved (a preempted transfer must run to its end)."""
    return bool(
        s.block[b].flight == QUEUED
        and s.block[b].channel >= HOST_OUT
        and s.block[b].remaining == s.block[b].size
    )


@compiled
def _evict(s: State, p: Any, short: int, urgent: bool) -> int:
    """Evict least recently migrated blocks, from the cursor on, until `short` bytes are on their way; returns what is left of it.

    Operands of the current kernel stay, and with an online policy that evicts ahead also what is expected to be needed soon.
    """
    reg = s.reg
    b = reg[REG.cursor]
    while short > 0 and b >= 0:
        after = s.block[b].lru_next
        keep = s.block[b].pin == reg[REG.kernel_seq]
        if p is not None:
            keep = keep or (p.reg[deepum.DREG.pre_evict] != 0 and deepum.is_needed(p, b))
        if not keep:
            short -= s.block[b].size
            _send_out(s, b, True, urgent)
        b = after
        reg[REG.cursor] = b
    return int(short)


@compiled
def _make_room(s: State, p: Any) -> None:
    """Evict enough least recently migrated blocks for the demand that waits."""
    reg = s.reg
    short = reg[REG.wait_bytes] - (reg[REG.gpu_capacity] - reg[REG.gpu_used]) - reg[REG.out_bytes]
    short = _evict(s, p, short, True)
    if p is not None:
        # Everything else is expected to be needed soon: a fault goes before expectations.
        b = reg[REG.lru_head]
        while short > 0 and b >= 0:
            after = s.block[b].lru_next
            if s.block[b].pin != reg[REG.kernel_seq]:
                short -= s.block[b].size
                _send_out(s, b, True, True)
            b = after


@compiled
def _work_ahead(s: State, p: Any) -> None:
    """The migration thread of an online policy has served all faults: evict ahead, then prefetch what is commanded."""
    reg = s.reg
    ahead = p.reg[deepum.DREG.pre_evict] != 0
    if ahead:
        free = reg[REG.gpu_capacity] - reg[REG.gpu_used] + reg[REG.out_bytes] - reg[REG.wait_bytes]
        if free < p.reg[deepum.DREG.low_bytes]:
            left = _evict(s, p, p.reg[deepum.DREG.high_bytes] - free, False)
            p.reg[deepum.DREG.pre_evicted_bytes] += p.reg[deepum.DREG.high_bytes] - free - left
    while (
        reg[REG.batch_left] == 0
        and reg[REG.wait_bytes] == 0
        and s.line[2 * HOST_IN + 1].head < 0
        and s.line[2 * SSD_IN + 1].head < 0
    ):
        b = deepum.next_command(p, s.block)
        if b < 0:
            return
        if s.block[b].flight != IDLE:  # on its way out
            if not _can_cancel(s, b):
                return
            deepum.remove_command(p, b)
            _cancel_out(s, b)
            continue
        free = reg[REG.gpu_capacity] - reg[REG.gpu_used]
        if free < s.block[b].size:
            # Without eviction ahead the one migration thread ends a fetch, then evicts, then fetches again.
            if not ahead and s.lane[HOST_IN].serving < 0 and s.lane[SSD_IN].serving < 0:
                _evict(s, p, s.block[b].size - free - reg[REG.out_bytes], False)
            return
        deepum.remove_command(p, b)
        _request(s, b, False)
        _grant(s)


# -- events ---------------------------------------------------------------------------------------------------------------


@compiled
def _landed(s: State, b: int) -> None:
    """The transfer of block `b` is complete, latency included."""
    reg = s.reg
    size = s.block[b].size
    c = s.block[b].channel
    doomed = s.block[b].doomed
    s.block[b].doomed = False
    needed = s.block[b].pin == reg[REG.kernel_seq]
    if c < HOST_OUT:
        _forget_copy(s, b, s.block[b].location)
        _arrived(s, b)
        # Freed meanwhile and needed again: the frames serve as those of a new allocation.
        if doomed and not needed:
            _free(s, b)
    else:
        s.block[b].location = HOST if c == HOST_OUT else SSD
        s.block[b].flight = IDLE
        reg[REG.gpu_used] -= size
        reg[REG.out_bytes] -= size
        if doomed:
            _free(s, b)
        if needed:
            _push(s, FAULT_QUEUE, b)
            s.block[b].flight = WAITING
        elif s.block[b].wanted and not doomed:
            _request(s, b, False)
        s.block[b].wanted = False
    _grant(s)


@compiled
def _next_event_ps(s: State) -> int:
    """Time of the next event, `NEVER` if there is none."""
    when = NEVER
    for c in range(4):
        when = min(when, s.lane[c].finish_ps)
        b = s.line[DELAY_QUEUE + c].head
        if b >= 0:
            when = min(when, s.block[b].ready_ps)
    if s.reg[REG.fault_phase] == FAULT_HANDLING:
        when = min(when, s.reg[REG.fault_ready])
    return when


@compiled
def _take_batch(s: State, p: Any) -> None:
    """The driver has handled a batch: its blocks ask for frames."""
    reg = s.reg
    count = 0
    while count < reg[REG.blocks_per_batch] and s.line[FAULT_QUEUE].head >= 0:
        b = s.line[FAULT_QUEUE].head
        _remove(s, b)
        s.block[b].in_batch = True
        reg[REG.batch_left] += 1
        reg[REG.batch_wait] += s.block[b].size
        _request(s, b, True)
        if p is not None:
            deepum.block_faulted(p, s.block, b)
        count += 1
    reg[REG.batches] += 1
    reg[REG.fault_phase] = FAULT_MOVING
    _make_room(s, p)
    _grant(s)


@compiled
def _process(s: State, p: Any) -> None:
    """Process every event of the current time."""
    reg = s.reg
    now = reg[REG.now]
    for c in range(4):
        if s.lane[c].finish_ps == now:
            b = s.lane[c].serving
            s.lane[c].serving = -1
            s.block[b].remaining = 0.0
            _note(s, c, b)
            s.traffic[c, s.block[b].cause] += s.block[b].size
            if s.lane[c].latency_ps > 0:
                s.block[b].flight = DELAYED
                s.block[b].ready_ps = now + s.lane[c].latency_ps
                _push(s, DELAY_QUEUE + c, b)
                _dispatch(s, c)
            else:
                _dispatch(s, c)
                _landed(s, b)
    for c in range(4):
        while (
            s.line[DELAY_QUEUE + c].head >= 0
            and s.block[s.line[DELAY_QUEUE + c].head].ready_ps == now
        ):
            b = s.line[DELAY_QUEUE + c].head
            _remove(s, b)
            _landed(s, b)
    if reg[REG.fault_phase] == FAULT_HANDLING and reg[REG.fault_ready] == now:
        _take_batch(s, p)
    if p is not None:
        _work_ahead(s, p)


# -- plan entries ---------------------------------------------------------------------------------------------------------


@compiled
def _free(s: State, b: int) -> None:
    """Drop the content of block `b` wherever it is; on the move it is dropped on arrival."""
    reg = s.reg
    if s.block[b].flight == SERVED or s.block[b].flight == DELAYED:
        s.block[b].doomed = True
        return
    if s.block[b].flight == QUEUED:
        if s.block[b].channel >= HOST_OUT:
            if not _can_cancel(s, b):
                s.block[b].doomed = True
                return
            _cancel_out(s, b)
        else:
            _remove(s, b)
            reg[REG.gpu_used] -= s.block[b].size
            s.block[b].flight = IDLE
    elif s.block[b].flight == WAITING:
        if s.block[b].queue == WAIT_QUEUE:
            reg[REG.wait_bytes] -= s.block[b].size
        _remove(s, b)
        s.block[b].flight = IDLE
    if s.block[b].location == GPU:
        _lru_remove(s, b)
        reg[REG.gpu_used] -= s.block[b].size
    else:
        _forget_copy(s, b, s.block[b].location)
    s.block[b].location = NONE
    s.block[b].doomed = False
    s.block[b].wanted = False


@compiled
def _apply(s: State, action: int, target: int, b: int) -> None:
    """Carry out one plan action on one block; what makes no sense in the block's state is skipped."""
    if action == FREE:
        _free(s, b)
    elif action == EVICT:
        if s.block[b].location == GPU and s.block[b].flight == IDLE:
            _send_out(s, b, target == TO_HOST, False)
    elif action == ALLOC:
        if s.block[b].location == NONE and s.block[b].flight == IDLE:
            _request(s, b, False)
    elif s.block[b].flight == IDLE:
        if s.block[b].location == HOST or s.block[b].location == SSD:
            _request(s, b, False)
    elif _can_cancel(s, b) and not s.block[b].doomed:
        _cancel_out(s, b)
    elif s.block[b].location == GPU:
        s.block[b].wanted = True


@compiled
def _issue(s: State, kernel: int) -> None:
    """Issue the plan entries whose trigger is `kernel`."""
    reg = s.reg
    n = reg[REG.entry]
    while n < len(s.entry) and s.entry[n].trigger == kernel:
        for b in range(s.entry[n].first, s.entry[n].last):
            _apply(s, s.entry[n].action, s.entry[n].target, b)
        _grant(s)
        n += 1
    reg[REG.entry] = n


# -- kernels --------------------------------------------------------------------------------------------------------------


@compiled
def _touch(s: State, p: Any, b: int) -> int:
    """The next kernel needs block `b`: make sure it comes. Returns 1 if that takes a page fault."""
    reg = s.reg
    s.block[b].pin = reg[REG.kernel_seq]
    if _can_cancel(s, b):
        _cancel_out(s, b)
    if s.block[b].location == GPU and s.block[b].flight == IDLE:
        return 0
    reg[REG.missing] += 1
    if s.block[b].flight == IDLE:
        if s.block[b].location == NONE and reg[REG.faults_free]:
            _request(s, b, True)
            return 0
        if p is not None:  # noqa: SIM102 - only a bare test of None is gone when compiled
            # A command that waits is a planned fetch that has not begun: it becomes urgent, as that of a plan does.
            if p.watch[b].queued and deepum.is_needed(p, b):
                p.reg[deepum.DREG.late] += 1
                if p.reg[deepum.DREG.late_faults] == 0:
                    _request(s, b, True)
                    return 0
        s.block[b].flight = WAITING
        _push(s, FAULT_QUEUE, b)
        return 1
    if s.block[b].flight == WAITING and s.block[b].queue == WAIT_QUEUE + 1:
        _remove(s, b)
        _request(s, b, True)
    elif (
        s.block[b].flight == QUEUED
        and s.block[b].channel < HOST_OUT
        and s.block[b].queue == 2 * s.block[b].channel + 1
    ):
        # A planned fetch that has become urgent; what has moved of it stays moved.
        _remove(s, b)
        _enqueue(s, b, s.block[b].channel, True, DEMAND, s.block[b].remaining)
    elif s.block[b].location == GPU:
        return 1  # on its way out: it comes back by a fault once it has left
    return 0


@compiled
def _await_operands(s: State, p: Any) -> None:
    """Advance time until every operand of the current kernel is in GPU memory."""
    reg = s.reg
    while reg[REG.missing] > 0 and reg[REG.error] == ERROR_NONE:
        if reg[REG.fault_phase] == FAULT_MOVING and reg[REG.batch_left] == 0:
            reg[REG.fault_phase] = FAULT_IDLE
        if reg[REG.fault_phase] == FAULT_IDLE and s.line[FAULT_QUEUE].head >= 0:
            reg[REG.fault_phase] = FAULT_HANDLING
            reg[REG.fault_ready] = reg[REG.now] + reg[REG.batch_latency]
        if reg[REG.wait_bytes] > 0:
            _make_room(s, p)
            if reg[REG.error] != ERROR_NONE:
                return
        when = _next_event_ps(s)
        if when == NEVER:
            reg[REG.error] = ERROR_STUCK
            return
        if when > MAX_PS:
            reg[REG.error] = ERROR_TOO_LONG
            return
        reg[REG.now] = when
        _process(s, p)
    reg[REG.fault_phase] = FAULT_IDLE


@compiled
def _pass_time(s: State, p: Any, duration_ps: int) -> None:
    """Let time pass, while transfers go on."""
    reg = s.reg
    end = reg[REG.now] + duration_ps
    when = _next_event_ps(s)
    while when <= end:
        reg[REG.now] = when
        _process(s, p)
        when = _next_event_ps(s)
    reg[REG.now] = end


@compiled
def run_kernels(s: State, p: Any, first: int, last: int) -> None:
    """Run kernels `first` to `last` - 1 of the current iteration; after the last kernel also the entries at its end.

    `p` is the state of the online policy, None for a static one.
    """
    reg = s.reg
    for kernel in range(first, last):
        s.kernel[kernel].ready_ps = reg[REG.now]
        reg[REG.kernel_seq] += 1
        if p is not None:
            deepum.kernel_started(p, s.block, p.execution[kernel])
        _issue(s, kernel)
        reg[REG.cursor] = reg[REG.lru_head]
        reg[REG.missing] = 0
        faults = 0
        for n in range(s.operand_ptr[kernel], s.operand_ptr[kernel + 1]):
            tensor = s.operand_ids[n]
            for b in range(s.tensor_block[tensor], s.tensor_block[tensor + 1]):
                faults += _touch(s, p, b)
        _grant(s)
        if p is not None:
            _work_ahead(s, p)
            if p.reg[deepum.DREG.callback_ps] > 0:
                _pass_time(s, p, p.reg[deepum.DREG.callback_ps])
        s.kernel[kernel].fault_blocks = faults
        reg[REG.faults] += faults
        _await_operands(s, p)
        if reg[REG.error] != ERROR_NONE:
            return
        s.kernel[kernel].start_ps = reg[REG.now]
        s.kernel[kernel].gpu_bytes = reg[REG.gpu_used]
        s.kernel[kernel].host_bytes = reg[REG.host_used]
        s.kernel[kernel].ssd_bytes = reg[REG.ssd_used]
        _pass_time(s, p, s.kernel[kernel].duration_ps)
        s.kernel[kernel].end_ps = reg[REG.now]
        if reg[REG.now] > MAX_PS:
            reg[REG.error] = ERROR_TOO_LONG
            return
    if last == len(s.kernel):
        reg[REG.kernel_seq] += 1
        _issue(s, last)


@compiled
def begin_iteration(s: State, measured: bool) -> None:
    """Start an iteration: plan entries from the first again, results from zero."""
    reg = s.reg
    reg[REG.entry] = 0
    reg[REG.faults] = 0
    reg[REG.batches] = 0
    reg[REG.gpu_peak] = reg[REG.gpu_used]
    reg[REG.log_on] = 1 if measured else 0
    reg[REG.iteration_start] = reg[REG.now]
    s.traffic[:, :] = 0
    for c in range(4):
        # What is under way is logged from here on.
        _settle(s, c)
        s.lane[c].began_ps = reg[REG.now]
        if s.lane[c].serving >= 0:
            s.lane[c].began_bytes = s.block[s.lane[c].serving].remaining


@compiled
def place_globals(s: State, is_global: NDArray[np.bool_]) -> None:
    """Place global tensors before the first iteration: GPU memory while it lasts, then host memory, then the SSD."""
    reg = s.reg
    for tensor in range(len(is_global)):
        if not is_global[tensor]:
            continue
        for b in range(s.tensor_block[tensor], s.tensor_block[tensor + 1]):
            size = s.block[b].size
            if reg[REG.gpu_used] + size <= reg[REG.gpu_capacity]:
                reg[REG.gpu_used] += size
                s.block[b].location = GPU
                _lru_append(s, b)
            elif reg[REG.host_used] + size <= reg[REG.host_capacity]:
                reg[REG.host_used] += size
                s.block[b].location = HOST
            else:
                if reg[REG.ssd_used] + size > reg[REG.ssd_capacity]:
                    reg[REG.error] = ERROR_SSD_FULL
                    return
                reg[REG.ssd_used] += size
                s.block[b].location = SSD


def new_state(
    *,
    block: NDArray[Any],
    kernel: NDArray[Any],
    entry: NDArray[Any],
    tensor_block: NDArray[np.int64],
    operand_ptr: NDArray[np.int64],
    operand_ids: NDArray[np.int32],
    limit: NDArray[np.float64],
    latency_ps: NDArray[np.int64],
    log_rows: int,
) -> State:
    """Return the state before the first kernel: every block nowhere, every queue empty.

    Args:
        block: BLOCK[B] with sizes and tensors; the rest is set here.
        kernel: KERNEL[K] with durations.
        entry: ENTRY[N], the plan.
        tensor_block: first block of each tensor, [T + 1].
        operand_ptr, operand_ids: operands of each kernel (CSR).
        limit: bandwidth of each channel in bytes per ps, [4].
        latency_ps: latency of each channel, [4].
        log_rows: how many transfers the log holds.
    """
    reg = np.zeros(N_REG, dtype=np.int64)
    for place in (REG.cursor, REG.lru_head, REG.lru_tail):
        reg[place] = -1
    block["queue"] = block["following"] = block["preceding"] = block["lru_next"] = block[
        "lru_prev"
    ] = -1
    line = np.full(N_QUEUES, -1, dtype=LINE)
    lane = np.zeros(4, dtype=LANE)
    lane["limit"] = limit
    lane["latency_ps"] = latency_ps
    lane["finish_ps"] = NEVER
    lane["serving"] = lane["log_last"] = -1
    return State(
        reg=reg,
        block=block,
        line=line,
        lane=lane,
        kernel=kernel,
        entry=entry,
        tensor_block=tensor_block,
        operand_ptr=operand_ptr,
        operand_ids=operand_ids,
        traffic=np.zeros((4, 4), dtype=np.int64),
        log=np.zeros((log_rows, 6), dtype=np.int64),
    )
