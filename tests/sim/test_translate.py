"""Streams through the RTL MMU in the fast bench."""

import dataclasses
import json

import numpy as np
import pytest

from pagetide.hw.pagetable.nvidia_v2 import Status
from pagetide.model.errors import InputError
from pagetide.model.planners import get_planner
from pagetide.model.system import load_system
from pagetide.model.workload import zoo
from pagetide.sim.translate import MemoryModel, Stress, simulate, simulate_workload

pytestmark = pytest.mark.xdist_group("small-bench")


def test_mixed_table_all_statuses_and_locations(small, mixed_table, mixed_stream) -> None:
    shares: list[float] = []
    result = simulate(mixed_stream, mixed_table.image(), small, progress=shares.append)
    assert result.first_mismatch == ""
    assert result.clean
    assert result.translations == len(mixed_stream) == sum(result.statuses.values())
    assert {"OK", "FLASH", "NOT_RESIDENT", "MIGRATING", "HOST_KEPT", "RO"} <= set(result.statuses)
    assert set(result.apertures) == {"VIDEO", "SYSTEM_COHERENT"}
    assert 0 < result.l1_hit_rate < 1
    lookups = sum(value for name, value in result.counters.items() if name.endswith(".lookups"))
    assert lookups == result.translations
    assert result.counters["mmu.walker.walks"] == result.walks
    assert result.counters["mmu.walker.reads"] == result.extra["reads"]
    # No walk is faster than one read; with a constant latency none is slower than six reads and some cycles of queueing.
    assert 200 < result.walk_mean_cycles < 6 * 200 + 100
    json.dumps(result.to_dict())


@pytest.mark.parametrize(
    ("memory", "stress"),
    [
        (MemoryModel(latency_cycles=1), Stress()),
        (MemoryModel(latency_cycles=20, jitter_cycles=60), Stress(30, 30, 30)),
        (
            MemoryModel(latency_cycles=5, jitter_cycles=30),
            Stress(10, 50, 0, invalidate_every_cycles=97),
        ),
        (MemoryModel(latency_cycles=30, jitter_cycles=5, outstanding_reads=2), Stress()),
    ],
    ids=["fast", "backpressure", "invalidations", "few-reads"],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_disturbed(small, mixed_table, mixed_stream, memory, stress, seed) -> None:
    result = simulate(
        mixed_stream, mixed_table.image(), small, memory=memory, stress=stress, seed=seed
    )
    assert result.first_mismatch == ""
    assert result.clean
    if stress.invalidate_every_cycles:
        assert result.extra["invalidations"] > 100


def test_bus_errors_are_answered(small, mixed_table, mixed_stream) -> None:
    memory = MemoryModel(latency_cycles=10, error_ppm=50_000)
    result = simulate(mixed_stream, mixed_table.image(), small, memory=memory)
    assert result.clean
    assert result.extra["injected_errors"] > 50
    assert result.statuses["BUS_ERROR"] >= result.extra["injected_errors"]


def test_the_scoreboard_sees_a_wrong_table(small, mixed_table, mixed_stream) -> None:
    image = mixed_table.image()
    golden = mixed_table.translate_many(mixed_stream.va, mixed_stream.access)
    flash = np.flatnonzero(golden.status == Status.FLASH)
    page = golden.flash_page[flash[0]]
    # Change one flash page number in the table that the RTL reads.
    contents = image.contents.copy()
    at = np.argwhere((contents >> np.uint64(12) & np.uint64((1 << 40) - 1)) == page)
    for row, column in at:
        contents[row, column] ^= np.uint64(1 << 20)
    wrong = dataclasses.replace(image, contents=contents)
    result = simulate(
        mixed_stream, wrong, small, golden=image, memory=MemoryModel(latency_cycles=5)
    )
    assert result.mismatches > 0
    assert not result.clean
    assert "expected status FLASH" in result.first_mismatch


def test_same_seed_same_cycles(small, mixed_table, mixed_stream) -> None:
    memory = MemoryModel(latency_cycles=10, jitter_cycles=20)
    runs = [
        simulate(mixed_stream, mixed_table.image(), small, memory=memory, seed=3).to_dict()
        for _ in range(2)
    ]
    for run in runs:
        del run["seconds"], run["cycles_per_second"]
    assert runs[0] == runs[1]


def test_stream_and_mmu_must_fit(small, mixed_table, mixed_stream) -> None:
    other = dataclasses.replace(small, ports=4)
    with pytest.raises(InputError, match="the stream has 2 requesters, but the MMU has 4 ports"):
        simulate(mixed_stream, mixed_table.image(), other)
    empty = dataclasses.replace(
        mixed_stream, va=mixed_stream.va[:0], requester=mixed_stream.requester[:0]
    )
    with pytest.raises(InputError, match="is empty"):
        simulate(empty, mixed_table.image(), small)


@pytest.mark.parametrize(("page_bytes", "touch_bytes"), [(64 << 10, 4 << 10), (4 << 10, 1 << 10)])
def test_window_of_kernels_with_small_pages(small, page_bytes, touch_bytes) -> None:
    step = zoo.load("gpt2", batch=1)
    result = simulate_workload(
        step,
        small,
        page_bytes=page_bytes,
        touch_bytes=touch_bytes,
        kernels=range(20, 24),
        memory=MemoryModel(latency_cycles=20),
    )
    assert result.first_mismatch == ""
    assert result.clean
    assert result.translations > 1000
    # Touches of a page follow each other: one walks, the others hit or wait for it.
    assert result.walks < 0.5 * result.translations


def test_bert_256_iteration_through_the_rtl(small) -> None:
    """The page touches of a whole iteration at 2 MiB, tensors where G10's plan keeps them."""
    step = zoo.load("bert-base", batch=256)
    # 30 GiB of GPU memory, so that the plan moves tensors to host memory and to the SSD.
    plan = get_planner("g10").plan(step, load_system(overrides=["gpu.memory=30 GiB"]))
    result = simulate_workload(
        step, small, plan=plan, gpu_bytes=30 << 30, memory=MemoryModel(latency_cycles=60)
    )
    assert result.first_mismatch == ""
    assert (result.mismatches, result.lost, result.duplicates) == (0, 0, 0)
    assert result.translations > 150_000
    assert result.apertures["SYSTEM_COHERENT"] > 1000
    assert result.statuses["FLASH"] > 0
