"""Stalls explained by the log: against a count of single picoseconds, and on runs of the engine."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagetide.model import engine, stalls
from pagetide.model.planners import get_planner
from pagetide.model.result import Result, Transfers
from pagetide.model.system import load_system
from pagetide.model.workload import zoo
from pagetide.model.workload.workload import Csr

CHANNELS = ("host->gpu", "ssd->gpu", "gpu->host", "gpu->ssd")
CAUSES = ("demand", "prefetch", "pre-evict", "demand-evict")


@pytest.fixture(scope="module")
def runs() -> dict[str, Result]:
    step = zoo.load("bert-base", batch=48)
    machine = load_system(overrides=["gpu.memory=6 GiB", "host.memory=1 GiB"])
    return {
        policy: engine.run(step, get_planner(policy).plan(step, machine), machine)
        for policy in ("ideal", "uvm", "g10")
    }


def changed(base: Result, waits: list[tuple[int, int]], moves: list[tuple[int, ...]]) -> Result:
    """The result with kernels that wait and run for given times, and with given (channel, cause, start, length)."""
    ready, start, end = [], [], []
    now = 0
    for wait, length in waits:
        ready.append(now)
        start.append(now + wait)
        now += wait + length
        end.append(now)
    table = np.array(moves, dtype=np.int64).reshape(-1, 4)
    return dataclasses.replace(
        base,
        ready_ps=np.array(ready),
        start_ps=np.array(start),
        end_ps=np.array(end),
        transfers=Transfers(
            channel=table[:, 0],
            cause=table[:, 1],
            start_ps=table[:, 2],
            end_ps=table[:, 2] + table[:, 3],
            tensor=np.arange(len(table)),
            size_bytes=table[:, 3],
            lost=0,
        ),
    )


MOVES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 60), st.integers(1, 15)),
    max_size=12,
)
WAITS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=8)


@given(waits=WAITS, moves=MOVES)
def test_every_picosecond_has_its_cause(
    runs: dict[str, Result], waits: list[tuple[int, int]], moves: list[tuple[int, ...]]
) -> None:
    result = changed(runs["g10"], waits, moves)
    parts = np.zeros((len(waits), 4), dtype=int)
    overlap = 0
    for k, (ready, start, end) in enumerate(
        zip(result.ready_ps, result.start_ps, result.end_ps, strict=True)
    ):
        for now in range(ready, end):
            busy = [(c, n) for c, n, s, d in moves if s <= now < s + d]
            overlap += now >= start and bool(busy)
            if now >= start:
                continue
            incoming = [CAUSES[n] for c, n in busy if CHANNELS[c].endswith("->gpu")]
            cause = 0 if "demand" in incoming else 1 if incoming else 2 if busy else 3
            parts[k, cause] += 1
    assert (result.stall_parts_ps == parts).all()
    assert result.overlap_ps == overlap


@given(
    waits=WAITS,
    moves=MOVES,
    tensors=st.lists(st.integers(0, 4), min_size=12, max_size=12),
    operands=st.lists(st.sets(st.integers(0, 4)), min_size=8, max_size=8),
)
def test_the_last_operand_to_come_is_to_blame(
    runs: dict[str, Result],
    waits: list[tuple[int, int]],
    moves: list[tuple[int, ...]],
    tensors: list[int],
    operands: list[set[int]],
) -> None:
    result = changed(runs["g10"], waits, moves)
    moved = dataclasses.replace(result.transfers, tensor=np.array(tensors[: len(moves)], dtype=int))
    blamed = stalls.blame_tensor(
        Csr.from_lists([sorted(ids) for ids in operands[: len(waits)]]),
        result.ready_ps,
        result.start_ps,
        moved,
        CHANNELS,
    )
    assert blamed.dtype == np.int32
    for k, tensor in enumerate(blamed.tolist()):
        came = [
            (s + d, -t)
            for (c, _, s, d), t in zip(moves, tensors, strict=False)
            if CHANNELS[c].endswith("->gpu")
            and t in operands[k]
            and result.ready_ps[k] < s + d <= result.start_ps[k]
        ]
        # Of those that come together, the one with the least id.
        assert tensor == (-max(came)[1] if came else -1)


def test_parts_add_up_on_real_runs(runs: dict[str, Result]) -> None:
    for policy, result in runs.items():
        parts = result.stall_parts_ps
        assert (parts >= 0).all()
        assert (parts.sum(axis=1) == result.start_ps - result.ready_ps).all()
        assert 0 <= result.overlap_ps <= result.compute_ps
        assert (result.blame_tensor[result.start_ps == result.ready_ps] == -1).all()
        assert result.stall_causes == stalls.STALL_CAUSES
        summary = result.summary()
        assert sum(summary["stall_by_cause_s"].values()) == pytest.approx(summary["stall_s"])
        if policy == "ideal":
            assert not parts.any()
            assert result.overlap_ps == 0


def test_demand_paging_waits_for_faults_and_never_for_prefetches(runs: dict[str, Result]) -> None:
    uvm = dict(zip(stalls.STALL_CAUSES, runs["uvm"].stall_parts_ps.sum(axis=0), strict=True))
    assert uvm["late prefetch"] == 0
    assert min(uvm["demand fetch"], uvm["eviction"], uvm["fault handling"]) > 0
    # The driver takes its time for every batch, and no channel is busy meanwhile unless a batch before still moves.
    latency_ps = load_system().fault.batch_latency_ps
    assert uvm["fault handling"] <= runs["uvm"].fault_batches * latency_ps * 1.5


def test_the_tensor_to_blame_is_an_operand(runs: dict[str, Result]) -> None:
    step = zoo.load("bert-base", batch=48)
    for policy in ("uvm", "g10"):
        result = runs[policy]
        blamed = np.flatnonzero(result.blame_tensor >= 0)
        assert len(blamed) > 10
        assert all(result.blame_tensor[k] in step.operands[k] for k in blamed)
        # Whoever waits while a channel brings something on demand took page faults and has a tensor to blame.
        assert {k for k in blamed if result.fault_blocks[k] and result.stall_parts_ps[k, 0]} == {
            k for k in range(len(result.kernels)) if result.stall_parts_ps[k, 0]
        }
