"""The policy `deepum`: the paper's worked examples, each open point, and the compiled form against the reference."""

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagetide.model import engine
from pagetide.model.engine import deepum
from pagetide.model.engine.blocks import BLOCK, GPU, HOST
from pagetide.model.engine.deepum import DREG
from pagetide.model.errors import InputError
from pagetide.model.plan import MigrationPlan
from pagetide.model.planners import Deepum, DeepumOptions, Registers, get_planner
from pagetide.model.planners.deepum import execution_ids
from pagetide.model.planners.deepum_reference import ReferenceDeepum
from pagetide.model.result import Result
from pagetide.model.system import System, load_system
from pagetide.model.workload import TensorKind, Workload, WorkloadBuilder, zoo

MIB = 1 << 20


class Pair:
    """The compiled policy and the reference, given the same events; their decisions are compared after each."""

    def __init__(
        self, *, blocks: int = 256, executions: int = 128, records: int = 4096, **options: object
    ) -> None:
        values = DeepumOptions(**{"rows": 64, "queue": 64, **options}).to_dict()
        self.block = np.zeros(blocks, dtype=BLOCK)
        self.block["location"] = HOST
        self.reference = ReferenceDeepum(values, self.coming)
        self.compiled = deepum.new_deepum_state(
            np.zeros(1, dtype=np.int32), executions, blocks, values, records=records
        )

    def coming(self, block: int) -> bool:
        return bool(self.block[block]["location"] == GPU)

    def place(self, *blocks: int, where: int = GPU) -> None:
        for block in blocks:
            self.block[block]["location"] = where

    def kernel(self, execution: int, *faults: int) -> None:
        """Start a kernel that then faults on blocks, which arrive."""
        deepum.kernel_started(self.compiled, self.block, execution)
        self.reference.kernel_started(execution)
        self.check_queue()
        for block in faults:
            self.fault(block)

    def fault(self, block: int) -> None:
        self.place(block)
        deepum.block_faulted(self.compiled, self.block, block)
        self.reference.block_faulted(block)
        self.check_queue()

    def take(self) -> tuple[int, int] | None:
        """Carry out the next command."""
        found = self.reference.next_command()
        assert deepum.next_command(self.compiled, self.block) == (-1 if found is None else found[0])
        self.check_queue()
        if found is not None:
            self.reference.remove_command()
            deepum.remove_command(self.compiled, found[0])
            self.place(found[0])
        return found

    def take_all(self) -> list[tuple[int, int]]:
        return list(iter(self.take, None))

    def count(self, name: str) -> int:
        return int(self.compiled.reg[getattr(DREG, name)])

    def successors(self, execution: int, block: int) -> list[int] | None:
        self.check_tables()
        return self.reference.table(execution).get(block)

    def check_queue(self) -> None:
        reg, ring = self.compiled.reg, self.compiled.queue
        places = np.arange(reg[DREG.head], reg[DREG.tail]) % len(ring)
        assert ring[places].tolist() == [list(command) for command in self.reference.queue]

    def check_tables(self) -> None:
        """Compare everything that has been learnt."""
        state, reference = self.compiled, self.reference
        for execution in range(len(state.table)):
            table = reference.table(execution)
            ends = (table.start, table.end)
            assert state.table[execution].tolist()[:2] == tuple(
                -1 if e is None else e for e in ends
            )
            assert state.table[execution]["latest"] == reference.latest.get(execution, -1)
            for row in np.flatnonzero(state.entry[execution].any(axis=(1, 2))):
                entries = [e for e in state.entry[execution, row].tolist() if e[0]]
                entries.sort(key=lambda entry: entry[1])
                assert [(e[0] - 1, [s - 1 for s in e[2:] if s]) for e in entries] == list(
                    table.sets[int(row)].items()
                )
            rows = {row for row, entries in table.sets.items() if entries}
            assert rows == set(np.flatnonzero(state.entry[execution].any(axis=(1, 2))).tolist())
        used = state.record[state.record[:, 3] != 0] - 2
        assert {tuple(r[:4]): r[4] for r in used.tolist()} == {
            tuple(-1 if e is None else e for e in key): following
            for key, following in reference.records.items()
        }
        needed = [b for b in range(len(self.block)) if deepum.is_needed(state, b)]
        assert needed == [b for b in range(len(self.block)) if reference.is_needed(b)]


A, B, C, D, E = range(1, 6)


# -- the paper's worked examples ------------------------------------------------------------------------------------------


def test_figure_5_misses_a_b_c_a() -> None:
    """Two levels of one row become one level and chaining: the second a prefetches b and c all the same."""
    pair = Pair(successors=2, ways=1)
    pair.kernel(0, A, B, C)
    assert [pair.successors(0, b) for b in (A, B, C)] == [[B], [C], []]
    pair.place(A, B, C, where=HOST)
    pair.fault(A)
    assert pair.take_all() == [(B, 0), (C, 0)]
    assert [pair.successors(0, b) for b in (A, B, C)] == [[B], [C], [A]]


def test_figure_6_execution_id_table() -> None:
    pair = Pair()
    for execution in (7, 9, 92, 0, 75):
        pair.kernel(execution)
    pair.check_tables()
    assert pair.reference.records[7, 9, 92, 0] == 75
    assert pair.reference.predict((7, 9, 92), 0) == 75
    assert deepum._predict(pair.compiled, 7, 9, 92, 0) == 75


def test_figure_7_chain_from_one_kernel_into_the_next() -> None:
    a, b, e, q, k, u = 1, 2, 3, 4, 5, 6
    pair = Pair()
    pair.kernel(0, a, b, e, b, q)  # b -> [q, e], and e -> [b]
    pair.kernel(1, k, u)
    pair.kernel(2)
    pair.kernel(0)
    table = pair.reference.table(0)
    assert (table.start, table.end, table.get(b)) == (a, q, [q, e])
    pair.kernel(1)  # now (1, 2, 0) -> 1 is known, too
    pair.kernel(2)
    pair.kernel(0)
    pair.place(b, e, q, k, u, where=HOST)
    pair.fault(b)
    # q is the end block: what follows it is the start block of the predicted kernel.
    assert [block for block, _ in pair.take_all()] == [q, e, k, u]


# -- the open points, by their number -------------------------------------------------------------------------------------


def test_point_1_low_bits_are_the_row() -> None:
    pair = Pair(rows=8, ways=1)
    pair.kernel(0, 3, 4, 11)  # 3 and 11 share a row, 4 does not
    assert pair.successors(0, 3) is None
    assert pair.successors(0, 4) == [11]
    assert pair.successors(0, 11) == []
    assert pair.count("evicted_entries") == 1


def test_point_2_empty_way_first_then_least_recently_used() -> None:
    pair = Pair(rows=1, ways=2)
    pair.kernel(0, A, B, A, C)
    assert [pair.successors(0, b) for b in (A, B, C)] == [[C, B], None, []]


def test_point_3_no_chain_starts_without_an_entry() -> None:
    pair = Pair()
    pair.kernel(0, A, B)
    pair.kernel(1, C)
    pair.kernel(0, D)
    assert pair.take_all() == []
    assert pair.count("not_started") == 4
    assert pair.successors(0, D) == []


def test_point_4_breadth_first_most_recent_first_expanding_what_is_skipped() -> None:
    pair = Pair()
    pair.kernel(0, A, B, D, A, C, E)  # A -> [C, B], B -> [D], C -> [E]
    pair.place(A, B, D, E, where=HOST)  # C is resident
    pair.kernel(1)
    pair.kernel(0)
    pair.fault(A)
    assert pair.take_all() == [(B, 0), (E, 0), (D, 0)]


def test_point_4_the_visited_filter_ends_a_cycle() -> None:
    pair = Pair()
    pair.kernel(0, A, B, A, B)
    pair.place(A, B, where=HOST)
    pair.kernel(0, A)
    assert pair.take_all() == [(B, 0)]


@pytest.mark.parametrize(("fallback", "expected"), [(False, []), (True, [(B, 1)])])
def test_point_5_unknown_history_ends_the_chain_unless_told_otherwise(fallback, expected) -> None:
    pair = Pair(history_fallback=fallback)
    for execution, block in ((5, A), (0, A), (1, B), (6, C), (0, A)):
        pair.kernel(execution)
        pair.place(block, where=HOST)
        pair.fault(block)
    pair.take_all()
    pair.place(A, B, where=HOST)
    for execution in (1, 7, 8, 9):
        pair.kernel(execution)
    pair.kernel(0, A)
    assert pair.take_all() == expected


def test_point_6_the_latest_record_wins() -> None:
    pair = Pair()
    for execution in (1, 2, 3, 4, 5, 1, 2, 3, 4, 6):
        pair.kernel(execution)
    assert pair.reference.predict((1, 2, 3), 4) == 6
    assert deepum._predict(pair.compiled, 1, 2, 3, 4) == 6


def cycle(pair: Pair, *kernels: tuple[int, Iterable[int]], times: int = 3) -> None:
    """Run kernels in a circle, every block evicted in between, with faults on all that prefetches have not brought."""
    for _ in range(times):
        for execution, blocks in kernels:
            pair.kernel(execution)
            pair.take_all()
            for block in blocks:
                if not pair.coming(block):
                    pair.fault(block)
                    pair.take_all()
            pair.place(*blocks, where=HOST)


def teach(pair: Pair, *kernels: tuple[int, Iterable[int]], times: int = 3) -> None:
    """Run kernels in a circle with a fault on every block; then nothing is resident and no command is queued."""
    for _ in range(times):
        for execution, blocks in kernels:
            pair.kernel(execution)
            for block in blocks:
                pair.fault(block)
                pair.place(block, where=HOST)
    pair.take_all()
    for _, blocks in kernels:
        pair.place(*blocks, where=HOST)


def test_point_7_end_never_reached() -> None:
    pair = Pair(rows=1, ways=2, degree=1)
    pair.kernel(0, A, B, C)  # A's entry is gone: B -> C is all that is left
    pair.kernel(1, D)
    pair.kernel(2)
    for execution in (0, 1, 2):
        pair.kernel(execution)
    pair.kernel(0)
    pair.place(A, B, C, D, where=HOST)
    table = pair.reference.table(0)
    table.end = 99
    pair.compiled.table[0]["end"] = 99
    pair.fault(B)
    assert pair.take_all() == [(C, 0), (D, 1)]


def test_point_8_registers_stay_and_kernels_without_a_table_count() -> None:
    pair = Pair(degree=2)
    cycle(pair, (0, [A]), (1, []), (2, [B]), (3, [C]), times=2)
    assert (pair.reference.table(0).start, pair.reference.table(0).end) == (A, A)
    pair.kernel(0)
    pair.place(A, B, C, where=HOST)
    pair.reference.queue.clear()
    pair.reference._queued.clear()
    pair.compiled.reg[DREG.head] = pair.compiled.reg[DREG.tail]
    pair.compiled.watch["queued"] = False
    pair.fault(A)
    # N = 2 reaches kernels 1 (without a table) and 2, not 3; the change to 1 moves the window to 3.
    assert pair.take_all() == [(B, 2)]
    pair.kernel(1)
    assert pair.take_all() == [(C, 3)]
    assert (pair.reference.table(0).start, pair.reference.table(0).end) == (A, A)


def test_point_9_only_faults_teach() -> None:
    pair = Pair(degree=3)
    kernels = ((0, [A]), (1, [B, C]), (2, [D, E]), (3, [7, 8]))
    teach(pair, *kernels)
    cycle(pair, *kernels, times=1)  # A's fault starts the chain that never ends
    before = pair.compiled.entry.copy(), pair.compiled.table.copy()
    commands = pair.count("commands")
    cycle(pair, *kernels, times=2)
    # No fault any more: the tables are frozen.
    assert (pair.compiled.entry == before[0]).all()
    assert (pair.compiled.table == before[1]).all()
    assert pair.count("commands") == commands + 2 * 7


def test_point_10_no_link_across_kernels() -> None:
    pair = Pair()
    pair.kernel(0, A)
    pair.kernel(0, B)
    assert pair.successors(0, A) == []
    assert (pair.reference.table(0).start, pair.reference.table(0).end) == (B, A)


def test_point_14_queued_commands_outlive_the_chain_until_their_kernel_is_over() -> None:
    pair = Pair(degree=1)
    pair.kernel(0, A, B)
    for execution in (1, 2, 0):
        pair.kernel(execution)
    pair.place(A, B, where=HOST)
    pair.fault(A)  # commands B
    pair.place(C, where=HOST)
    pair.fault(C)  # ends the chain and starts none
    assert list(pair.reference.queue) == [(B, 0)]
    pair.kernel(1)
    assert pair.take() is None
    assert pair.count("stale") == 1


def test_a_fault_in_mid_chain_restarts_it_there() -> None:
    pair = Pair(degree=3)
    kernels = [(0, [A, B]), (1, [C, D]), (2, [E, 7]), (3, [8, 9])]
    teach(pair, *kernels)
    pair.kernel(0)  # the chain of the last fault goes on: kernel 3 has come within reach
    assert pair.take_all() == [(8, 3), (9, 3)]
    pair.place(8, 9, where=HOST)
    pair.fault(A)
    assert pair.take() == (B, 0)
    assert [block for block, _ in pair.reference.queue] == [C, D, E, 7, 8, 9]
    pair.kernel(1)
    pair.fault(D)  # while its command is queued
    # What was queued stays, once; the new chain reaches one kernel further.
    assert [block for block, _ in pair.take_all()] == [C, E, 7, 8, 9]
    pair.place(A, B, where=HOST)
    pair.kernel(2)
    assert pair.count("mispredicted") == 0
    assert [block for block, _ in pair.take_all()] == []
    pair.kernel(4)  # not what was predicted
    assert pair.count("mispredicted") == 1
    pair.place(*range(1, 10), where=HOST)
    pair.kernel(0)
    assert pair.take_all() == []


def test_registers_as_the_paper_says_shrink_and_extended_ones_do_not() -> None:
    for registers, reached in ((Registers.LATEST, [C]), (Registers.EXTEND, [B, C, D])):
        pair = Pair(degree=1, registers=registers)
        for _ in range(2):
            for execution, blocks in ((0, [A]), (1, [B, C, D]), (2, [])):
                pair.kernel(execution)
                for block in blocks:
                    pair.place(block, where=HOST)
                    pair.fault(block)
        pair.kernel(0)
        pair.kernel(1, C)  # one late block
        pair.kernel(2)
        pair.kernel(0)
        pair.take_all()
        pair.place(A, B, C, D, where=HOST)
        pair.fault(A)
        assert [block for block, _ in pair.take_all()] == reached


@pytest.mark.parametrize("queue", [1, 3])
def test_a_full_queue_drops_and_counts(queue) -> None:
    pair = Pair(queue=queue)
    pair.kernel(0, A, B, C, D, E)
    pair.place(A, B, C, D, E, where=HOST)
    pair.kernel(0, A)
    assert len(pair.take_all()) == queue
    assert pair.count("dropped") == 4 - queue


# -- the compiled form is the reference -----------------------------------------------------------------------------------


@st.composite
def events(draw: st.DrawFn) -> list[tuple[str, int]]:
    number = st.integers(0, 23)
    kinds = st.sampled_from(
        ["kernel", "cycle", "fault", "fault", "fault", "take", "evict", "evict"]
    )
    return draw(st.lists(st.tuples(kinds, number), max_size=150))


@settings(deadline=None, max_examples=150)
@given(
    events=events(),
    rows=st.integers(1, 8),
    ways=st.integers(1, 3),
    successors=st.integers(1, 4),
    degree=st.integers(0, 5),
    queue=st.integers(1, 16),
    fallback=st.booleans(),
    registers=st.sampled_from(Registers),
)
def test_any_events(events, rows, ways, successors, degree, queue, fallback, registers) -> None:
    pair = Pair(
        blocks=24,
        executions=8,
        rows=rows,
        ways=ways,
        successors=successors,
        degree=degree,
        queue=queue,
        history_fallback=fallback,
        registers=registers,
    )
    play(pair, events)


def play(pair: Pair, events: Iterable[tuple[str, int]]) -> None:
    now = 0
    pair.kernel(now)
    for kind, number in events:
        if kind == "kernel":
            now = number % 8
            pair.kernel(now)
        elif kind == "cycle":
            now = (now + 1) % 8
            pair.kernel(now)
        elif kind == "fault":
            if not pair.coming(number):
                pair.fault(number)
        elif kind == "take":
            pair.take()
        else:
            pair.place(number, where=HOST)
    pair.check_tables()


def test_a_long_random_stream() -> None:
    rng = np.random.default_rng(5)
    pair = Pair(blocks=24, executions=8, rows=8, degree=3)
    kinds = np.array(["cycle", "kernel", "fault", "take", "evict"])
    for _ in range(10):
        chosen = kinds[rng.choice(5, size=3000, p=[0.15, 0.01, 0.4, 0.14, 0.3])]
        play(pair, zip(chosen.tolist(), rng.integers(0, 24, 3000).tolist(), strict=True))
    assert pair.count("commands") > 1000
    assert pair.count("predicted") > 100


@pytest.mark.parametrize("registers", list(Registers))
def test_events_of_a_workload(registers) -> None:
    """GPT-2's step over a GPU memory of 60 % of its blocks, the oldest evicted first."""
    workload = zoo.load("gpt2", batch=8)
    block_bytes = 8 * MIB
    _, _, first = engine.cut_into_blocks(workload.tensors.size_bytes, block_bytes)
    execution = execution_ids(workload)
    pair = Pair(
        blocks=int(first[-1]),
        executions=int(execution.max()) + 1,
        records=4 * len(execution),
        degree=8,
        rows=512,
        queue=4096,
        registers=registers,
    )
    resident: dict[int, None] = {}
    room = int(first[-1]) * 6 // 10
    faults = []

    def arrive(block: int) -> None:
        resident[block] = None
        if len(resident) > room:
            oldest = next(iter(resident))
            del resident[oldest]
            pair.place(oldest, where=HOST)

    for _ in range(3):
        faults.append(0)
        for k in range(len(workload.kernels)):
            pair.kernel(int(execution[k]))
            for tensor in workload.operands[k]:
                for block in range(first[tensor], first[tensor + 1]):
                    if not pair.coming(block):
                        faults[-1] += 1
                        pair.fault(block)
                        arrive(block)
            for _ in range(20):
                found = pair.take()
                if found is not None:
                    arrive(found[0])
    pair.check_tables()
    assert faults[0] > 500
    assert faults[-1] < faults[0] / 4


# -- in the engine --------------------------------------------------------------------------------------------------------


def machine(*overrides: str) -> System:
    """A link of 10 GB/s, blocks of 1 MiB, 10 us a batch of one block."""
    return load_system(
        overrides=[
            "gpu.memory=8 MiB",
            "link.bandwidth=10 GB/s",
            "fault.batch_latency=10 us",
            "fault.batch_faults=1",
            "fault.faults_per_block=1",
            "engine.block=1 MiB",
            *overrides,
        ]
    )


def layers(count: int, *, us: float = 1000.0, mib: int = 1) -> Workload:
    """Kernels in a row, each on weights of its own and on an activation that lives for one kernel."""
    builder = WorkloadBuilder("layers")
    for n in range(count):
        weight = builder.tensor(f"w{n}", mib * MIB, TensorKind.WEIGHT, is_global=True)
        value = builder.tensor(f"a{n}", MIB, TensorKind.ACTIVATION)
        builder.kernel(f"k{n}", us * 1000, inputs=[weight], outputs=[value])
    return builder.build()


def run(workload: Workload, system: System, **options: object) -> Result:
    return engine.run(workload, Deepum(DeepumOptions(**options)).plan(workload, system), system)


def faults(result: Result) -> list[int]:
    return [int(counts["faults"]) for counts in result.provenance["iterations"]]


SMALL = {"degree": 2, "learning_iterations": 5}


def test_faults_vanish_and_with_them_the_stall() -> None:
    workload, system = layers(12), machine()
    base = engine.run(workload, get_planner("uvm").plan(workload, system), system)
    result = run(workload, system, **SMALL)
    assert (
        int(base.fault_blocks.sum()) == 23
    )  # all but one weight have gone, every activation is new
    assert faults(result)[-1] == 0
    assert result.stall_ps < base.stall_ps / 50
    assert result.iterations == 6
    assert result.total_ps == result.compute_ps + result.stall_ps


def test_the_same_input_gives_the_same_result() -> None:
    workload, system = layers(12), machine()
    one, two = (run(workload, system, **SMALL) for _ in range(2))
    assert (one.end_ps == two.end_ps).all()
    assert one.provenance == two.provenance


def test_point_12_a_fault_takes_what_is_needed_soon_and_a_prefetch_does_not() -> None:
    """With N as long as the iteration, every block that has been learnt is protected all the time."""
    workload, system = layers(12), machine()
    result = run(workload, system, degree=12, learning_iterations=3)
    counts = result.provenance["iterations"][-1]
    # Prefetches stall, so each kernel waits for a command that is late or takes a fault, and evicts for itself.
    assert counts["late"] + counts["faults"] >= 8
    assert result.traffic_bytes[2, 3] > 0  # demand evictions


def test_point_11_eviction_ahead_keeps_between_its_watermarks() -> None:
    workload = layers(24)
    marks = {"low_bytes": 2 * MIB, "high_bytes": 4 * MIB}
    result = run(workload, machine("gpu.memory=16 MiB"), **SMALL, **marks)
    assert result.provenance["iterations"][-1]["pre_evicted_bytes"] > 0
    assert result.traffic_bytes[2, 3] == 0  # none on demand
    free = 16 * MIB - result.occupancy_bytes[:, 0]
    assert (
        free.max() < 4 * MIB + 4 * MIB
    )  # the high mark, and one kernel's dead activation and prefetches


def test_point_13_evictions_ahead_overlap_fetches() -> None:
    workload, system = layers(24, us=130, mib=1), machine("gpu.memory=16 MiB")
    serial = run(workload, system, pre_evict=False, **SMALL)
    overlapped = run(workload, system, pre_evict=True, **SMALL)
    assert overlapped.total_ps < serial.total_ps


def test_point_16_a_callback_on_the_critical_path_delays_each_kernel() -> None:
    workload = layers(6)
    system = machine("gpu.memory=64 MiB")
    plain, delayed = (run(workload, system, callback_ps=t, **SMALL) for t in (0, 5_000_000))
    assert delayed.total_ps - plain.total_ps == 6 * 5_000_000


def test_invalidation_writes_no_dead_block() -> None:
    workload, system = layers(12), machine()
    dead, kept = (run(workload, system, invalidate=i, **SMALL) for i in (True, False))
    assert dead.traffic("gpu->host") == 12 * MIB  # the weights
    assert kept.traffic("gpu->host") == 24 * MIB


def test_each_mechanism_gains() -> None:
    workload, system = layers(24, us=150), machine("gpu.memory=16 MiB")
    steps = [
        {"prefetch": False, "pre_evict": False, "invalidate": False},
        {"pre_evict": False, "invalidate": False},
        {"invalidate": False},
        {},
    ]
    times = [run(workload, system, **SMALL, **step).total_ps for step in steps]
    assert times == sorted(times, reverse=True)
    assert len(set(times)) == 4


def test_prefetch_degree() -> None:
    """Too short a window comes late, too long a one protects everything."""
    workload, system = layers(24, us=150), machine("gpu.memory=16 MiB")
    times = {n: run(workload, system, degree=n, learning_iterations=5).total_ps for n in (0, 2, 24)}
    assert times[2] < times[0]
    assert times[2] < times[24]


@pytest.mark.parametrize("registers", list(Registers))
@pytest.mark.parametrize(("name", "batch"), [("gpt2", 12), ("bert-base", 256)])
def test_steady_state_has_a_hundredth_of_the_faults(name, batch, registers) -> None:
    workload = zoo.load(name, batch=batch, gpu="v100-32gb")
    system = load_system("v100-32gb")
    base = engine.run(workload, get_planner("uvm").plan(workload, system), system)
    result = run(workload, system, registers=registers, learning_iterations=5)
    assert faults(result)[-1] < base.fault_blocks.sum() / 100
    assert result.provenance["iterations"][-1]["mispredicted"] == 0
    assert result.total_ps < base.total_ps


# -- interface ------------------------------------------------------------------------------------------------------------


def test_execution_ids_are_by_name_and_operands() -> None:
    builder = WorkloadBuilder("ids")
    a, b = (builder.tensor(n, MIB, TensorKind.WEIGHT, is_global=True) for n in "ab")
    builder.kernel("mm", 1.0, inputs=[a], outputs=[b])
    builder.kernel("mm", 1.0, inputs=[b], outputs=[a])
    builder.kernel("mm", 2.0, inputs=[a], outputs=[b])
    builder.kernel("add", 1.0, inputs=[a], outputs=[b])
    assert execution_ids(builder.build()).tolist() == [0, 1, 0, 2]


def test_a_plan_keeps_what_the_policy_needs(tmp_path) -> None:
    workload, system = layers(6), machine()
    plan = Deepum(DeepumOptions(**SMALL)).plan(workload, system)
    plan.save(tmp_path / "plan.npz")
    loaded = MigrationPlan.load(tmp_path / "plan.npz")
    one, two = (engine.run(workload, p, system) for p in (plan, loaded))
    assert (one.end_ps == two.end_ps).all()
    assert one.provenance["iterations"] == two.provenance["iterations"]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"rows": 0}, InputError),
        ({"degree": -1}, InputError),
        ({"low_bytes": 0}, InputError),
        ({"low_bytes": 64 * MIB}, InputError),
        ({"ways": 1.5}, TypeError),
        ({"queue": True}, TypeError),
    ],
)
def test_bad_options_are_refused(options, error) -> None:
    with pytest.raises(error, match=next(iter(options))):
        DeepumOptions(**options)
