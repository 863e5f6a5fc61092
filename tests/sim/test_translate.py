"""Streams through the RTL MMU in the fast bench."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

from pagetide.hw.pagetable.nvidia_v2 import PageSize, Status
from pagetide.hw.pagetable.table import Location, PageTable
from pagetide.model.errors import InputError
from pagetide.model.planners import get_planner
from pagetide.model.system import load_system
from pagetide.model.workload import zoo
from pagetide.model.workload.g10_tables import load_g10
from pagetide.model.workload.lowering import AccessStream
from pagetide.sim import translate
from pagetide.sim.build import BuildError, Trace, check_tools
from pagetide.sim.translate import (
    MemoryModel,
    Stress,
    build_bench,
    simulate,
    simulate_workload,
)

G10_TABLES = Path(__file__).parents[3] / "shared" / "data" / "g10"

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


@pytest.fixture
def lies(small, liar, monkeypatch, tmp_path):
    """Run accesses to a stand-in that answers wrongly as the address says; every page's frame is its own address.

    Always with waves, so that one build serves all.
    """
    table = PageTable()
    va = (1 << 30) + np.arange(16, dtype=np.uint64) * np.uint64(2 << 20)
    table.map_many(va, PageSize.SIZE_2M, Location.GPU, va >> np.uint64(12))
    monkeypatch.setattr(translate, "Mmu", liar)

    def run(faults, **options):
        stream = AccessStream(
            workload="lies",
            page_bytes=2 << 20,
            touch_bytes=2 << 20,
            requesters=small.ports,
            va=va[np.array(faults)],
            requester=np.zeros(len(faults), dtype=np.uint16),
            access=np.zeros(len(faults), dtype=np.uint8),
            kernel=np.full(len(faults), 3, dtype=np.int32),
        )
        waves = {"waves": tmp_path / "new" / "lies.vcd", **options}
        return simulate(stream, table.image(), small, **waves)

    return run


@pytest.mark.xdist_group("liar")
def test_honest_stand_in_is_clean_and_its_waves_are_where_they_were_asked_for(
    lies, fault, tmp_path, monkeypatch
) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "work"))
    result = lies([fault.NONE] * 5)
    assert result.first_mismatch == ""
    assert result.clean
    assert result.statuses == {"OK": 5}
    text = (tmp_path / "new" / "lies.vcd").read_text()
    assert "$enddefinitions" in text
    assert "requests__0__payload" in text
    assert text.count("\n#") > 2 * result.cycles
    assert list((tmp_path / "work").iterdir()) == []


@pytest.mark.slow
def test_waves_change_nothing(small, mixed_table, mixed_stream, tmp_path) -> None:
    """Without waves the clock runs in batches, with waves edge by edge: the design must not notice."""
    memory = MemoryModel(latency_cycles=10, jitter_cycles=20)
    runs = [
        simulate(mixed_stream, mixed_table.image(), small, memory=memory, waves=waves).to_dict()
        for waves in (None, tmp_path / "w.vcd")
    ]
    for run in runs:
        del run["seconds"], run["cycles_per_second"], run["waves"]
    assert runs[0] == runs[1]


@pytest.mark.slow
@pytest.mark.xdist_group("liar")
def test_fst_waves(lies, fault, tmp_path) -> None:
    try:
        check_tools(Trace.FST)
    except BuildError as error:
        pytest.skip(str(error))
    assert lies([fault.NONE] * 3, waves=tmp_path / "lies.fst", trace=Trace.FST).clean
    # The file begins with a header block (type 0) of 329 bytes.
    assert (tmp_path / "lies.fst").read_bytes()[:9] == bytes([0]) + (329).to_bytes(8, "big")


@pytest.mark.xdist_group("liar")
def test_every_lie_is_caught(lies, fault) -> None:
    def told(*faults, **options):
        result = lies(faults, **options)
        assert not result.clean
        text = result.first_mismatch
        return (result.mismatches, result.lost, result.duplicates, result.rule_breaks), text

    counts, text = told(fault.NONE, fault.WRONG_ADDRESS, fault.NONE)
    assert counts == (1, 0, 0, 0)
    assert text.startswith("request 1 (va 0x40200000, access 0, port 0, kernel 3): taken in cycle ")
    assert "got status OK, pa 0x200000," in text
    assert "expected status OK, pa 0x40200000," in text

    counts, text = told(fault.WRONG_STATUS, fault.WRONG_STATUS)
    assert counts == (2, 0, 0, 0)
    assert text.startswith("request 0 ")
    assert "got status PTE" in text

    # Once among others and once as the last answer of the run.
    for faults in ((fault.ANSWERS_TWICE, fault.NONE), (fault.NONE, fault.ANSWERS_TWICE)):
        counts, text = told(*faults)
        assert counts == (0, 0, 1, 0)
        assert text == "1 responses with the id of no request in flight"

    hold = Stress(hold_responses_percent=70)
    counts, text = told(*[fault.CHANGES_ITS_ANSWER] * 20, stress=hold)
    assert counts[3] > 0
    assert text.startswith("the stream of responses of port 0 withdrew or changed its item")

    counts, text = told(fault.NONE, fault.WRONG_ID, fault.NONE)
    assert counts[1:3] == (1, 1)
    assert text.startswith("hang: ")


@pytest.mark.xdist_group("liar")
def test_a_hang_says_what_is_outstanding(lies, fault) -> None:
    result = lies([fault.NONE, fault.NEVER_ANSWERS, fault.NONE, fault.NONE])
    assert (result.mismatches, result.lost) == (0, 3)
    assert result.first_mismatch.startswith("hang: no request taken or answered for long")
    assert "3 of 4 requests unanswered (port 0: 1 in flight, 1 offered and not taken, 1 not" in (
        result.first_mismatch
    )
    assert "request 1 (va 0x40c00000" in result.first_mismatch
    assert "no response; expected status OK" in result.first_mismatch


def test_a_memory_that_takes_nothing_hangs_the_walker(small, mixed_table, mixed_stream) -> None:
    result = simulate(
        mixed_stream, mixed_table.image(), small, stress=Stress(hold_memory_percent=100)
    )
    assert result.lost == len(mixed_stream)
    assert "waiting: a read that the memory does not take" in result.first_mismatch


SLOW = """
import sys
from pathlib import Path
from pagetide.hw.config import PRESETS
from pagetide.model.workload import zoo
from pagetide.sim.translate import MemoryModel, simulate_workload

step = zoo.load("bert-base", batch=256)
simulate_workload(step, PRESETS["small"], memory=MemoryModel(latency_cycles=20_000))
"""


def test_interrupt_ends_the_simulator_and_leaves_no_files(small, tmp_path) -> None:
    build_bench(small)
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        # The first report says that the simulator runs.
        while not list(tmp_path.glob("*/progress.txt")) and process.poll() is None:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == -signal.SIGINT, errors
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert list(tmp_path.iterdir()) == []


def test_reads_keep_their_interval(small, mixed_table, mixed_stream) -> None:
    result = simulate(
        mixed_stream,
        mixed_table.image(),
        small,
        memory=MemoryModel(latency_cycles=5, read_interval_cycles=40),
    )
    assert result.clean
    assert result.cycles >= 40 * (result.extra["reads"] - 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"latency_cycles": 0}, "memory latency must be at least 1 cycle, not 0"),
        ({"outstanding_reads": 1}, "the memory must hold at least 2 reads at once, not 1"),
        ({"read_interval_cycles": 0}, "read interval must be at least 1 cycle, not 0"),
        ({"error_ppm": -1}, "errors must be 0 to 1000000 in a million"),
    ],
)
def test_bad_memory(arguments, message) -> None:
    with pytest.raises(InputError, match=message):
        MemoryModel(**arguments)


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


@pytest.mark.skipif(not G10_TABLES.is_dir(), reason=f"no G10 tables at {G10_TABLES}")
def test_g10_tables_of_bert_256_through_the_rtl(small) -> None:
    """The same with the published tables of BERT-Base at batch 256: 213 774 touches."""
    step = load_g10(G10_TABLES, "BERT_Base", 256)
    plan = get_planner("g10").plan(step, load_system())
    result = simulate_workload(step, small, plan=plan, memory=MemoryModel(latency_cycles=60))
    assert result.first_mismatch == ""
    assert (result.mismatches, result.lost, result.duplicates) == (0, 0, 0)
    assert result.translations == 213_774
    assert sum(result.statuses.values()) == result.translations
    assert {"OK", "FLASH"} <= set(result.statuses)
    assert set(result.apertures) == {"VIDEO", "SYSTEM_COHERENT"}
