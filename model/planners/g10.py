"""The policy `g10`: smart eviction and smart prefetch planned from the graph (G10 paper, sections 4.2 to 4.4)."""

import heapq
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pagetide.model.engine import cut_into_blocks
from pagetide.model.plan import Action, MigrationPlan, PlanBuilder, Target
from pagetide.model.planners.base import add_frees
from pagetide.model.system import System
from pagetide.model.vitality import Vitality, analyse
from pagetide.model.workload.workload import Workload

__all__ = ["G10", "Rank"]

STAY, TO_SSD, TO_HOST = 0, 1, 2


class Rank(StrEnum):
    """What candidates are ranked by; the paper gives both."""

    BENEFIT_PER_COST = "benefit-per-cost"
    """Its prose, section 4.3."""
    BENEFIT = "benefit"
    """Its Algorithm 1, and the public artifact."""


class G10:
    """Plan evictions by critical pressure relieved per I/O time, then fetch as early as memory allows.

    The rule, with its source in the G10 paper:

    1. Candidates are the inactive periods of all tensors (4.2).
    2. The benefit of evicting one is the area, bytes x time, by which it lowers the part of the memory-pressure curve that
       lies above capacity, between the end of its eviction and the latest safe start of its fetch (4.3). Its cost is the
       time that both transfers take. The candidate with the largest benefit over cost is taken first (the prose of 4.3), or
       the one with the largest benefit (Algorithm 1; policy `g10-benefit`), until the curve is below capacity or nothing
       helps.
    3. It goes to the SSD, and to host memory if the SSD's write channel cannot carry it in the time that an idle channel
       would need and host memory has room for the whole period (4.3).
    4. Each transfer takes bandwidth from its channel and from the link: the eviction from the start of the period on, the
       fetch from its end backwards, so that later candidates see what is left.
    5. Latest safe fetches are then moved, in the order of their start, to the earliest kernel from which on the tensor's
       bytes fit under capacity (eager prefetch, 4.4).
    6. Intermediate tensors are allocated right before their first kernel and freed right after their last (4.4, 4.6).

    Demand faults serve what the plan does not cover, as in `uvm`. Kernel times are taken as profiled, without stalls.
    """

    def __init__(self, rank: Rank = Rank.BENEFIT_PER_COST) -> None:
        self.name = "g10" if rank is Rank.BENEFIT_PER_COST else f"g10-{rank.value}"
        self._per_cost = rank is Rank.BENEFIT_PER_COST

    def plan(self, workload: Workload, system: System) -> MigrationPlan:
        """Return the plan; statistics hold the evictions by target and the pressure that is left above capacity."""
        vitality = analyse(workload)
        blocks, _, first = cut_into_blocks(workload.tensors.size_bytes, system.engine.block_bytes)
        size = np.add.reduceat(blocks, first[:-1])
        builder = PlanBuilder(workload)
        add_frees(builder, workload, vitality)
        _add_allocations(builder, workload, vitality)

        kernels = len(workload.kernels)
        periods = vitality.periods
        pressure = _pressure(vitality, size, workload)
        schedule = _new_schedule(workload, system, pressure, self._per_cost)
        period_size = size[periods.tensor]
        target = np.zeros(len(periods), dtype=np.uint8)
        gone = np.zeros(len(periods), dtype=np.int64)
        back = np.zeros(len(periods), dtype=np.int64)
        _evict(schedule, period_size, periods.start, periods.end, target, gone, back)
        _prefetch_eagerly(schedule, period_size, target, gone, back)

        chosen = np.flatnonzero(target != STAY)
        for place, where in ((TO_SSD, Target.SSD), (TO_HOST, Target.HOST)):
            these = chosen[target[chosen] == place]
            these = these[np.argsort(periods.start[these], kind="stable")]
            builder.add(
                Action.PRE_EVICT,
                where,
                trigger=_wrap(periods.start[these], kernels),
                tensor=periods.tensor[these],
            )
        # Of fetches issued together, the one that is needed first goes first.
        these = chosen[np.argsort(periods.end[chosen] % kernels, kind="stable")]
        builder.add(
            Action.PREFETCH, Target.GPU, trigger=back[these] % kernels, tensor=periods.tensor[these]
        )
        return builder.build(
            self.name,
            system.profile,
            statistics={
                "evictions_to_ssd": int((target == TO_SSD).sum()),
                "evictions_to_host": int((target == TO_HOST).sum()),
                "evicted_bytes_to_ssd": int(period_size[target == TO_SSD].sum()),
                "evicted_bytes_to_host": int(period_size[target == TO_HOST].sum()),
                "peak_pressure_bytes": int(pressure.max()),
                "planned_peak_bytes": int(schedule.pressure.max()),
                "capacity_bytes": system.gpu.memory_bytes,
            },
        )


class _Schedule(NamedTuple):
    """What the planner fills up, kernel slot by kernel slot (K slots, one iteration, periodic)."""

    capacity: int
    host_capacity: int
    duration_s: NDArray[np.float64]
    pressure: NDArray[np.int64]
    host_used: NDArray[np.int64]
    ssd_out: NDArray[np.float64]  # bytes that each channel can still carry in each slot
    ssd_in: NDArray[np.float64]
    link_out: NDArray[np.float64]
    link_in: NDArray[np.float64]
    ssd_write_rate: float
    ssd_read_rate: float
    link_rate: float
    per_cost: bool


def _new_schedule(
    workload: Workload, system: System, pressure: NDArray[np.int64], per_cost: bool
) -> _Schedule:
    duration_s = workload.kernels.duration_ns * 1e-9
    link_rate = system.link.bandwidth_bytes_per_s
    write_rate = min(system.ssd.write_bandwidth_bytes_per_s, link_rate)
    read_rate = min(system.ssd.read_bandwidth_bytes_per_s, link_rate)
    return _Schedule(
        capacity=system.gpu.memory_bytes,
        host_capacity=system.host.memory_bytes,
        duration_s=duration_s,
        pressure=pressure.copy(),
        host_used=np.zeros(len(duration_s), dtype=np.int64),
        ssd_out=duration_s * write_rate,
        ssd_in=duration_s * read_rate,
        link_out=duration_s * link_rate,
        link_in=duration_s * link_rate,
        ssd_write_rate=write_rate,
        ssd_read_rate=read_rate,
        link_rate=link_rate,
        per_cost=per_cost,
    )


def _pressure(vitality: Vitality, size: NDArray[np.int64], workload: Workload) -> NDArray[np.int64]:
    """Bytes of whole pages alive during each kernel, int64[K]."""
    used = vitality.birth >= 0
    change = np.zeros(len(workload.kernels) + 1, dtype=np.int64)
    np.add.at(change, vitality.birth[used], size[used])
    np.add.at(change, vitality.death[used] + 1, -size[used])
    return np.cumsum(change)[:-1]


def _add_allocations(builder: PlanBuilder, workload: Workload, vitality: Vitality) -> None:
    born = np.flatnonzero(~workload.tensors.is_global & (vitality.birth >= 0))
    builder.add(Action.ALLOC, Target.GPU, trigger=vitality.birth[born], tensor=born)


def _wrap(slot: NDArray[np.int32], kernels: int) -> NDArray[np.int64]:
    """Triggers of slots that may lie in the next iteration; the slot after the last kernel stays its own trigger."""
    return np.where(slot > kernels, slot - kernels, slot).astype(np.int64)


_compiled: Any = njit(cache=True, nogil=True)


@_compiled
def _room(s: _Schedule, place: int, out: bool, slot: int) -> float:
    """Bytes that a transfer can still move in a slot."""
    room = float(s.link_out[slot] if out else s.link_in[slot])
    if place == TO_SSD:
        room = min(room, float(s.ssd_out[slot] if out else s.ssd_in[slot]))
    return room


@_compiled
def _window(s: _Schedule, size: int, start: int, end: int, place: int) -> tuple[int, int]:
    """Slots between which the bytes of a period are away: gone from the first, back before the second.

    The eviction fills what is left of its channel from `start` on, the fetch from `end` backwards. An empty window (first
    not below second) means that it does not fit.
    """
    kernels = len(s.duration_s)
    left = float(size)
    gone = start
    while left > 0 and gone < end:
        left -= _room(s, place, True, gone % kernels)
        gone += 1
    if left > 0:
        return end, end
    left = float(size)
    back = end
    while left > 0 and back > gone:
        back -= 1
        left -= _room(s, place, False, back % kernels)
    if left > 0:
        return end, end
    return gone, back


@_compiled
def _benefit(s: _Schedule, size: int, gone: int, back: int) -> float:
    """Area of the pressure above capacity that the absence of `size` bytes removes, in byte seconds."""
    kernels = len(s.duration_s)
    area = 0.0
    for t in range(gone, back):
        slot = t % kernels
        above = s.pressure[slot] - s.capacity
        if above > 0:
            area += min(above, size) * s.duration_s[slot]
    return area


@_compiled
def _choose_place(s: _Schedule, size: int, start: int, end: int) -> int:
    """SSD, or host memory if the SSD's write channel is too busy and host memory has room all the time."""
    kernels = len(s.duration_s)
    ideal_s = size / s.ssd_write_rate
    carried = 0.0
    t = start
    while ideal_s > 0 and t < end:
        slot = t % kernels
        share = min(1.0, ideal_s / s.duration_s[slot]) if s.duration_s[slot] > 0 else 1.0
        carried += min(_room(s, TO_SSD, True, slot), share * s.duration_s[slot] * s.ssd_write_rate)
        ideal_s -= s.duration_s[slot]
        t += 1
    if carried >= 0.999999 * size:
        return TO_SSD
    for t in range(start, end):
        if s.host_used[t % kernels] + size > s.host_capacity:
            return TO_SSD
    return TO_HOST


@_compiled
def _rank(s: _Schedule, size: int, start: int, end: int) -> tuple[float, int, int, int]:
    """Rank of evicting a period now, with the place and the window it would get; 0 if it does not fit or help."""
    place = _choose_place(s, size, start, end)
    gone, back = _window(s, size, start, end, place)
    benefit = _benefit(s, size, gone, back) if gone < back else 0.0
    if not s.per_cost:
        return benefit, place, gone, back
    if place == TO_HOST:
        cost = 2 * size / s.link_rate
    else:
        cost = size / s.ssd_write_rate + size / s.ssd_read_rate
    return benefit / cost, place, gone, back


@_compiled
def _take(s: _Schedule, size: int, start: int, end: int, place: int, gone: int, back: int) -> None:
    """Book a period's transfers, its absence from the GPU and its stay in host memory."""
    kernels = len(s.duration_s)
    left = float(size)
    for t in range(start, gone):
        slot = t % kernels
        moved = min(left, _room(s, place, True, slot))
        s.link_out[slot] -= moved
        if place == TO_SSD:
            s.ssd_out[slot] -= moved
        left -= moved
    left = float(size)
    for t in range(end - 1, back - 1, -1):
        slot = t % kernels
        moved = min(left, _room(s, place, False, slot))
        s.link_in[slot] -= moved
        if place == TO_SSD:
            s.ssd_in[slot] -= moved
        left -= moved
    for t in range(gone, back):
        s.pressure[t % kernels] -= size
    if place == TO_HOST:
        for t in range(start, end):
            s.host_used[t % kernels] += size


@_compiled
def _evict(
    s: _Schedule,
    size: NDArray[np.int64],
    start: NDArray[np.int32],
    end: NDArray[np.int32],
    target: NDArray[np.uint8],
    gone: NDArray[np.int64],
    back: NDArray[np.int64],
) -> None:
    """Choose the periods to evict, best first; fills `target`, `gone` and `back` of those chosen.

    A candidate is ranked again only when it comes to the top (lazy greedy). Benefits only fall as pressure and bandwidth are
    used up; a rank can still rise when the place changes from the SSD to the faster host link, and is then seen late.
    Ranking everything in each step instead costs far more and does not plan better (docs, "Fidelity").
    """
    heap: list[tuple[float, int]] = []
    for period in range(len(size)):
        rank, _, _, _ = _rank(s, size[period], start[period], end[period])
        if rank > 0:
            heap.append((-rank, period))
    heapq.heapify(heap)
    while len(heap) > 0 and s.pressure.max() > s.capacity:
        _, p = heapq.heappop(heap)
        rank, place, first, second = _rank(s, size[p], start[p], end[p])
        if rank <= 0:
            continue
        if len(heap) > 0 and -rank > heap[0][0]:
            heapq.heappush(heap, (-rank, p))
            continue
        _take(s, size[p], start[p], end[p], place, first, second)
        target[p] = place
        gone[p] = first
        back[p] = second


@_compiled
def _prefetch_eagerly(
    s: _Schedule,
    size: NDArray[np.int64],
    target: NDArray[np.uint8],
    gone: NDArray[np.int64],
    back: NDArray[np.int64],
) -> None:
    """Move each fetch to the earliest slot from which on its bytes fit under capacity; changes `back`."""
    kernels = len(s.duration_s)
    order = np.argsort(back, kind="mergesort")
    for p in order:
        if target[p] == STAY:
            continue
        t = back[p]
        while t > gone[p] and s.pressure[(t - 1) % kernels] + size[p] <= s.capacity:
            t -= 1
            s.pressure[t % kernels] += size[p]
        back[p] = t
