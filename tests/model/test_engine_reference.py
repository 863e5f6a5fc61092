"""The engine event by event against a slow simulator of the same rules in plain Python with exact fractions.

Rates are sums of few powers of two, so that the engine's floating-point arithmetic is exact too and equal means equal.
"""

import math
import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagetide.model import engine
from pagetide.model.errors import InputError
from pagetide.model.plan import Action, MigrationPlan, PlanBuilder, Target
from pagetide.model.planners import get_planner
from pagetide.model.system import System, load_system
from pagetide.model.workload import TensorKind, Workload, WorkloadBuilder

PAGE = 4096
FROM_HOST, FROM_SSD, TO_HOST, TO_SSD = range(4)
DEMAND, PREFETCH, PRE_EVICT, DEMAND_EVICT = range(4)


class Block:
    """A range of a tensor: where it is, and on which list."""

    def __init__(self, tensor: int, size: int) -> None:
        self.tensor, self.size = tensor, size
        self.place: str | None = None  # gpu, host, ssd
        self.on: list[Block] | None = None  # the list that it waits on
        self.channel: int | None = None  # moving on it (queued, in service or in its latency)
        self.left = Fraction(0)
        self.cause = DEMAND
        self.in_service = self.in_latency = False
        self.ready = 0
        self.in_batch = self.doomed = self.wanted = False

    @property
    def idle(self) -> bool:
        return self.on is None and self.channel is None

    @property
    def out_not_begun(self) -> bool:
        return (
            self.channel in (TO_HOST, TO_SSD)
            and not self.in_service
            and not self.in_latency
            and self.left == self.size
        )


class SsdFullError(Exception):
    """No tier has room for a block that must leave."""


class Reference:
    """The rules of the engine, one list for each queue."""

    def __init__(self, workload: Workload, system: System, plan: MigrationPlan) -> None:
        self.workload, self.plan, self.system = workload, plan, system
        self.link = Fraction(system.link.bandwidth_bytes_per_s) / 10**12
        ssd = system.ssd
        self.ssd_limit = [
            Fraction(rate) / 10**12
            for rate in (ssd.read_bandwidth_bytes_per_s, ssd.write_bandwidth_bytes_per_s)
        ]
        common = system.link.latency_ps
        self.latency = [common, ssd.read_latency_ps + common, common, ssd.write_latency_ps + common]
        self.capacity = {
            "gpu": math.inf if plan.unlimited_gpu else system.gpu.memory_bytes,
            "host": system.host.memory_bytes,
            "ssd": system.ssd.capacity_bytes,
        }
        self.used = {"gpu": 0, "host": 0, "ssd": 0}
        self.now = 0
        self.urgent: list[list[Block]] = [[] for _ in range(4)]
        self.planned: list[list[Block]] = [[] for _ in range(4)]
        self.service: list[Block | None] = [None] * 4
        self.settled = [0] * 4
        self.rate = [Fraction(0)] * 4
        self.began: list[tuple[int, Fraction]] = [(0, Fraction(0))] * 4
        self.latency_line: list[list[Block]] = [[] for _ in range(4)]
        self.demand_wait: list[Block] = []
        self.planned_wait: list[Block] = []
        self.faults: list[Block] = []
        self.migrated: list[Block] = []  # idle in GPU memory, least recently migrated first
        self.needed: set[Block] = set()
        self.handling: int | None = None  # when the batch in handling has been handled
        self.moving: list[Block] = []  # the batch that moves
        self.tensors: list[list[Block]] = []
        self.reset_results()
        step = system.engine.block_bytes
        for tensor, size in enumerate(workload.tensors.size_bytes.tolist()):
            paged = math.ceil(size / PAGE) * PAGE
            self.tensors.append(
                [Block(tensor, min(step, paged - at)) for at in range(0, paged, step)]
            )
            for block in self.tensors[-1] if workload.tensors.is_global[tensor] else ():
                block.place = next(
                    (p for p in ("gpu", "host", "ssd") if self.fits(p, block.size)), None
                )
                if block.place is None:
                    raise SsdFullError
                self.used[block.place] += block.size
                if block.place == "gpu":
                    self.migrated.append(block)

    def fits(self, place: str, size: int) -> bool:
        return self.used[place] + size <= self.capacity[place]

    def reset_results(self) -> None:
        self.kernels: list[tuple[int, ...]] = []
        self.batches = 0
        self.peak = self.used["gpu"]
        self.traffic = np.zeros((4, 4), dtype=np.int64)
        self.log: list[list[list[int]]] = [[] for _ in range(4)]
        self.start = self.now
        for c, block in enumerate(self.service):
            if block is not None:
                self.settle(c)
                self.began[c] = (self.now, block.left)

    # -- channels

    def settle(self, c: int) -> None:
        block = self.service[c]
        if block is not None:
            block.left = max(Fraction(0), block.left - self.rate[c] * (self.now - self.settled[c]))
        self.settled[c] = self.now

    def share(self, direction: int) -> None:
        host, ssd = 2 * direction, 2 * direction + 1
        self.settle(host)
        self.settle(ssd)
        both = self.service[host] is not None and self.service[ssd] is not None
        self.rate[ssd] = min(self.ssd_limit[direction], self.link / 2 if both else self.link)
        self.rate[host] = self.link - self.rate[ssd] if both else self.link

    def finish(self, c: int) -> float:
        block = self.service[c]
        if block is None:
            return math.inf
        return self.settled[c] + math.ceil(block.left / self.rate[c])

    def stop(self, c: int) -> None:
        """The block in service stops now, at its end or preempted."""
        block = self.service[c]
        assert block is not None
        begin, left = self.began[c]
        if begin < self.now:
            moved = round(left) - round(block.left)
            rows = self.log[c]
            if rows and rows[-1][:2] == [block.tensor, block.cause] and rows[-1][3] == begin:
                rows[-1][3] = self.now
                rows[-1][4] += moved
            else:
                rows.append([block.tensor, block.cause, begin, self.now, moved])
        block.in_service = False
        self.service[c] = None

    def next(self, c: int) -> None:
        if self.service[c] is None and (self.urgent[c] or self.planned[c]):
            block = (self.urgent[c] or self.planned[c]).pop(0)
            block.in_service = True
            self.service[c] = block
            self.began[c] = (self.now, block.left)
            self.settled[c] = self.now
        self.share(c // 2)

    def move(self, block: Block, c: int, cause: int, left: Fraction | int) -> None:
        block.channel, block.cause, block.left = c, cause, Fraction(left)
        urgent = cause in (DEMAND, DEMAND_EVICT)
        (self.urgent if urgent else self.planned)[c].append(block)
        other = self.service[c]
        if urgent and other is not None and other.cause in (PREFETCH, PRE_EVICT):
            self.settle(c)
            self.stop(c)
            self.planned[c].insert(0, other)
        self.next(c)

    def unqueue(self, block: Block) -> None:
        assert block.channel is not None
        for line in (self.urgent[block.channel], self.planned[block.channel]):
            if block in line:
                line.remove(block)

    # -- frames

    def arrived(self, block: Block) -> None:
        block.place = "gpu"
        self.migrated.append(block)
        if block.in_batch:
            block.in_batch = False
            self.moving.remove(block)

    def wait(self, block: Block, line: list[Block]) -> None:
        block.on = line
        line.append(block)

    def grant(self) -> None:
        for line in (self.demand_wait, self.planned_wait):
            while line:
                block = line[0]
                size = block.size
                if block.in_batch and not self.system.fault.overlap_eviction:
                    size = sum(b.size for b in line if b.in_batch)
                if not self.fits("gpu", size):
                    return
                line.pop(0)
                block.on = None
                self.used["gpu"] += block.size
                self.peak = max(self.peak, self.used["gpu"])
                cause = DEMAND if line is self.demand_wait else PREFETCH
                if block.place is None:
                    self.arrived(block)
                else:
                    self.move(
                        block, FROM_HOST if block.place == "host" else FROM_SSD, cause, block.size
                    )

    def leave(self, block: Block, *, host_first: bool, cause: int) -> None:
        order = ("host", "ssd") if host_first else ("ssd", "host")
        place = next((p for p in order if self.fits(p, block.size)), None)
        if place is None:
            if cause == DEMAND_EVICT:
                raise SsdFullError
            return
        self.migrated.remove(block)
        self.used[place] += block.size
        self.move(block, TO_HOST if place == "host" else TO_SSD, cause, block.size)

    def leaving(self) -> list[Block]:
        return [b for blocks in self.tensors for b in blocks if b.channel in (TO_HOST, TO_SSD)]

    def take_back(self, block: Block) -> None:
        self.unqueue(block)
        self.used["host" if block.channel == TO_HOST else "ssd"] -= block.size
        block.channel = None
        block.doomed = block.wanted = False
        self.migrated.append(block)

    def make_room(self) -> None:
        short = (
            sum(b.size for b in self.demand_wait)
            - (self.capacity["gpu"] - self.used["gpu"])
            - sum(b.size for b in self.leaving())
        )
        for block in list(self.migrated):
            if short <= 0:
                return
            if block not in self.needed:
                short -= block.size
                self.leave(block, host_first=True, cause=DEMAND_EVICT)

    # -- events

    def landed(self, block: Block) -> None:
        c = block.channel
        block.channel = None
        block.in_latency = False
        doomed, block.doomed = block.doomed, False
        needed = block in self.needed
        if c in (FROM_HOST, FROM_SSD):
            assert block.place is not None
            self.used[block.place] -= block.size
            self.arrived(block)
            if doomed and not needed:
                self.free(block)
        else:
            block.place = "host" if c == TO_HOST else "ssd"
            self.used["gpu"] -= block.size
            wanted, block.wanted = block.wanted, False
            if doomed:
                self.free(block)
            if needed:
                self.wait(block, self.faults)
            elif wanted and not doomed:
                self.wait(block, self.planned_wait)
        self.grant()

    def next_event(self) -> float:
        times = [self.finish(c) for c in range(4)]
        times += [line[0].ready for line in self.latency_line if line]
        if self.handling is not None:
            times.append(self.handling)
        return min(times)

    def process(self) -> None:
        for c in range(4):
            block = self.service[c]
            if block is not None and self.finish(c) == self.now:
                self.settle(c)
                assert block.left == 0
                self.stop(c)
                self.traffic[c, block.cause] += block.size
                if self.latency[c]:
                    block.in_latency = True
                    block.ready = self.now + self.latency[c]
                    self.latency_line[c].append(block)
                    self.next(c)
                else:
                    self.next(c)
                    self.landed(block)
        for c in range(4):
            while self.latency_line[c] and self.latency_line[c][0].ready == self.now:
                self.landed(self.latency_line[c].pop(0))
        if self.handling == self.now:
            self.handling = None
            count = self.system.fault.blocks_per_batch
            for block in self.faults[:count]:
                block.in_batch = True
                self.moving.append(block)
                self.wait(block, self.demand_wait)
            del self.faults[:count]
            self.batches += 1
            self.make_room()
            self.grant()

    # -- the plan

    def free(self, block: Block) -> None:
        if block.in_service or block.in_latency:
            block.doomed = True
            return
        if block.channel in (TO_HOST, TO_SSD):
            if not block.out_not_begun:
                block.doomed = True
                return
            self.take_back(block)
        elif block.channel is not None:
            self.unqueue(block)
            block.channel = None
            self.used["gpu"] -= block.size
        elif block.on is not None:
            block.on.remove(block)
            block.on = None
        if block.place == "gpu":
            self.migrated.remove(block)
        if block.place is not None:
            self.used[block.place] -= block.size
        block.place = None
        block.doomed = block.wanted = False

    def apply(self, action: Action, target: Target, block: Block) -> None:
        if action is Action.FREE:
            self.free(block)
        elif action is Action.PRE_EVICT:
            if block.place == "gpu" and block.idle:
                self.leave(block, host_first=target is Target.HOST, cause=PRE_EVICT)
        elif action is Action.ALLOC:
            if block.place is None and block.idle:
                self.wait(block, self.planned_wait)
        elif block.idle:
            if block.place in ("host", "ssd"):
                self.wait(block, self.planned_wait)
        elif block.out_not_begun and not block.doomed:
            self.take_back(block)
        elif block.place == "gpu":
            block.wanted = True

    def issue(self, kernel: int) -> None:
        plan = self.plan
        for n in np.flatnonzero(plan.trigger == kernel):
            for block in self.tensors[plan.tensor[n]]:
                self.apply(Action(plan.action[n]), Target(plan.target[n]), block)
            self.grant()

    # -- kernels

    def touch(self, block: Block) -> int:
        if block.out_not_begun:
            self.take_back(block)
        if block.place == "gpu" and block.idle:
            return 0
        if block.idle:
            if block.place is None and self.plan.unlimited_gpu:
                self.wait(block, self.demand_wait)
                return 0
            self.wait(block, self.faults)
            return 1
        if block.on is self.planned_wait:
            self.planned_wait.remove(block)
            self.wait(block, self.demand_wait)
        elif block.channel in (FROM_HOST, FROM_SSD) and block in self.planned[block.channel]:
            self.unqueue(block)
            self.move(block, block.channel, DEMAND, block.left)
        return int(block.place == "gpu")

    def missing(self) -> bool:
        return any(b.place != "gpu" or not b.idle for b in self.needed)

    def run_kernel(self, kernel: int) -> None:
        ready = self.now
        self.needed = set()
        self.issue(kernel)
        faults = 0
        operands = [b for t in self.workload.operands[kernel] for b in self.tensors[t]]
        for block in operands:
            self.needed.add(block)
            faults += self.touch(block)
        self.grant()
        while self.missing():
            if self.handling is None and not self.moving and self.faults:
                self.handling = self.now + self.system.fault.batch_latency_ps
            if self.demand_wait:
                self.make_room()
            self.now = self.next_event()  # type: ignore[assignment]
            self.process()
        begin = self.now
        occupancy = (self.used["gpu"], self.used["host"], self.used["ssd"])
        end = begin + round(self.workload.kernels.duration_ns[kernel] * 1000)
        while self.next_event() <= end:
            self.now = self.next_event()  # type: ignore[assignment]
            self.process()
        self.now = end
        row = (ready, begin, end)
        self.kernels.append((*(t - self.start for t in row), faults, *occupancy))

    def run(self) -> None:
        kernels = len(self.workload.kernels)
        for _ in range(self.system.engine.iterations):
            self.reset_results()
            for kernel in range(kernels):
                self.run_kernel(kernel)
            self.needed = set()
            self.issue(kernels)


Pick = Callable[..., Any]


def make_case(pick: Pick) -> tuple[Workload, System, MigrationPlan]:
    """A small workload, system and plan; `pick` chooses one of its arguments."""
    builder = WorkloadBuilder("random")
    tensors = [
        builder.tensor(
            f"t{n}",
            pick(1, PAGE, 3 * PAGE, 4 * PAGE + 1),
            TensorKind.ACTIVATION,
            is_global=pick(True, False),
        )
        for n in range(pick(*range(1, 8)))
    ]
    # A page takes 4.096 ns over the link at 1 B/ps.
    durations = pick((0.0, 0.5, 4.096, 10.0), (0.0, 10.0, 40.0, 200.0))
    count = pick(*range(1, 9))
    owed = list(tensors)
    while owed or count > 0:
        operands = {*owed[:3], *(pick(*tensors) for _ in range(pick(0, 1, 2)))}
        owed, count = owed[3:], count - 1
        builder.kernel("k", pick(*durations), inputs=sorted(operands))
    workload = builder.build()
    count = len(workload.kernels)
    paged = -(-workload.tensors.size_bytes // PAGE) * PAGE
    need = max(int(paged[workload.operands[k]].sum()) for k in range(count))
    system = load_system(
        overrides=[
            f"gpu.memory={max(need, PAGE) + pick(0, 0, 1, 2, 5) * PAGE} B",
            f"host.memory={pick(0, 1, 3, 8, 40) * PAGE} B",
            f"ssd.capacity={pick(1, 6, 100, 100, 100) * PAGE} B",
            "link.bandwidth=1000 GB/s",
            f"link.latency={pick(0, 0, 3)} ns",
            f"ssd.read_bandwidth={pick(125, 250, 500, 2000)} GB/s",
            f"ssd.write_bandwidth={pick(125, 250, 500, 2000)} GB/s",
            f"ssd.read_latency={pick(0, 0, 5)} ns",
            f"ssd.write_latency={pick(0, 0, 7)} ns",
            f"fault.batch_latency={pick(0, 1, 9)} ns",
            f"fault.batch_faults={pick(1, 2, 256)}",
            "fault.faults_per_block=1",
            f"fault.overlap_eviction={pick('true', 'false')}",
            f"engine.block={pick(1, 2, 8) * PAGE} B",
            f"engine.iterations={pick(1, 2, 3)}",
        ]
    )
    policy = pick("ideal", "uvm", "g10", "g10-benefit", *["random"] * 8)
    if policy != "random":
        return workload, system, get_planner(policy).plan(workload, system)
    entries = PlanBuilder(workload)

    def add(action: Action, trigger: int, tensor: int) -> None:
        target = pick(Target.HOST, Target.SSD)
        entries.add(action, target, trigger=[min(trigger, count)], tensor=[tensor])

    for _ in range(pick(0, 1, 3, 6, 12)):
        trigger, tensor = pick(*range(count + 1)), pick(*tensors)
        # One at random, or two on one tensor, of which the second meets what the first began.
        first = pick(*Action, Action.PRE_EVICT, Action.PREFETCH)
        add(first, trigger, tensor)
        if pick(True, False):
            add(pick(*Action), trigger + pick(0, 1), tensor)
    return workload, system, entries.build("random", "faithful")


@st.composite
def cases(draw: st.DrawFn) -> tuple[Workload, System, MigrationPlan]:
    return make_case(lambda *values: draw(st.sampled_from(values)))


def compare(case: tuple[Workload, System, MigrationPlan]) -> None:
    workload, system, plan = case
    try:
        result = engine.run(workload, plan, system)
    except InputError as error:
        assert "does not fit" in str(error)
        with pytest.raises(SsdFullError):
            Reference(*case).run()
        return
    reference = Reference(*case)
    reference.run()
    found = np.column_stack(
        [
            result.ready_ps,
            result.start_ps,
            result.end_ps,
            result.fault_blocks,
            result.occupancy_bytes,
        ]
    )
    assert found.tolist() == [list(row) for row in reference.kernels]
    assert result.fault_batches == reference.batches
    assert result.gpu_peak_bytes == reference.peak
    assert result.traffic_bytes.tolist() == reference.traffic.tolist()
    moved = result.transfers
    for c in range(4):
        mine = moved.channel == c
        rows = np.column_stack(
            [moved.tensor, moved.cause, moved.start_ps, moved.end_ps, moved.size_bytes]
        )[mine]
        offset = np.array([0, 0, reference.start, reference.start, 0])
        assert (rows + offset).tolist() == reference.log[c]


@settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(cases())
def test_event_by_event(case: tuple[Workload, System, MigrationPlan]) -> None:
    compare(case)


@pytest.mark.parametrize("part", range(4))
def test_event_by_event_far_and_wide(part: int) -> None:
    """Hypothesis draws small cases; these are as large as they come."""
    for seed in range(part * 500, (part + 1) * 500):
        rng = random.Random(seed)
        try:
            compare(make_case(lambda *values, rng=rng: rng.choice(values)))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.slow
@settings(deadline=None, max_examples=10_000, suppress_health_check=[HealthCheck.too_slow])
@given(cases())
def test_event_by_event_long(case: tuple[Workload, System, MigrationPlan]) -> None:
    compare(case)
