"""The timing engine: cases worked out by hand, and what must hold in every run."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagetide.model import engine
from pagetide.model.engine import core
from pagetide.model.engine.core import REG
from pagetide.model.engine.engine import start
from pagetide.model.errors import InfeasibleError, InputError
from pagetide.model.plan import Action, MigrationPlan, PlanBuilder, Target
from pagetide.model.planners import get_planner, policies
from pagetide.model.result import Result
from pagetide.model.system import System, load_system
from pagetide.model.workload import TensorKind, Workload, WorkloadBuilder

# Tensors that only fill memory are operands of no kernel.
pytestmark = pytest.mark.filterwarnings("ignore::pagetide.model.workload.UnusedTensorWarning")

MIB = 1 << 20
US = 1_000_000  # picoseconds
LINK_S = MIB / 10e9  # a MiB over the link of `machine`


def machine(*overrides: str) -> System:
    """A link of 10 GB/s, an SSD of 2 and 1 GB/s without latency, 10 us a batch of one block."""
    return load_system(
        overrides=[
            "gpu.memory=4 MiB",
            "link.bandwidth=10 GB/s",
            "ssd.read_bandwidth=2 GB/s",
            "ssd.write_bandwidth=1 GB/s",
            "ssd.read_latency=0 us",
            "ssd.write_latency=0 us",
            "fault.batch_latency=10 us",
            "fault.batch_faults=1",
            "fault.faults_per_block=1",
            "engine.block=1 MiB",
            "engine.iterations=1",
            *overrides,
        ]
    )


class Case:
    """A workload of global tensors of 1 MiB (unless said otherwise) and kernels of 1 us on some of them."""

    def __init__(self) -> None:
        self._builder = WorkloadBuilder("case")
        self._entries: list[tuple[Action, Target, int, int]] = []

    def tensor(self, size_bytes: int = MIB, *, is_global: bool = True) -> int:
        return self._builder.tensor("t", size_bytes, TensorKind.WEIGHT, is_global=is_global)

    def kernel(self, *tensors: int, us: float = 1.0) -> int:
        return self._builder.kernel("k", us * 1000, inputs=tensors)

    def entry(self, action: Action, trigger: int, tensor: int, target: Target = Target.GPU) -> None:
        self._entries.append((action, target, trigger, tensor))

    def run(self, system: System) -> Result:
        workload = self._builder.build()
        builder = PlanBuilder(workload)
        for action, target, trigger, tensor in self._entries:
            builder.add(action, target, trigger=[trigger], tensor=[tensor])
        return engine.run(workload, builder.build("test", "faithful"), system)


def ps(seconds: float) -> float:
    return pytest.approx(seconds * 1e12, abs=10)


def test_everything_in_place_is_ideal() -> None:
    case = Case()
    a, b = case.tensor(), case.tensor()
    case.kernel(a, us=5)
    case.kernel(a, b, us=7)
    result = case.run(machine())
    assert (result.total_ps, result.stall_ps) == (12 * US, 0)
    assert result.traffic_bytes.sum() == 0
    assert result.fault_blocks.tolist() == [0, 0]


def test_a_fault_costs_the_batch_and_the_transfer() -> None:
    case = Case()
    tensors = [case.tensor() for _ in range(5)]  # the fifth starts in host memory
    case.kernel(tensors[4])
    result = case.run(machine())
    # Full GPU: the batch is handled, the least recently migrated block leaves, then the block comes.
    assert result.start_ps[0] == ps(10e-6 + 2 * LINK_S)
    assert result.fault_blocks.tolist() == [1]
    assert result.traffic("gpu->host") == result.traffic("host->gpu") == MIB


@pytest.mark.parametrize(("overlap", "transfers"), [("false", 4), ("true", 3)])
def test_evictions_of_a_batch_overlap_its_fetches_only_on_request(overlap, transfers) -> None:
    case = Case()
    case.tensor(2 * MIB)
    b = case.tensor(2 * MIB)
    case.kernel(b)
    system = machine(
        "gpu.memory=2 MiB", "fault.batch_faults=2", f"fault.overlap_eviction={overlap}"
    )
    # One after the other: two out, two in. Overlapped: out, out and in at once, in.
    assert case.run(system).start_ps[0] == ps(10e-6 + transfers * LINK_S)


@pytest.mark.parametrize(("faults", "batches"), [(1, 3), (2, 2), (3, 1)])
def test_batches_are_served_one_after_the_other(faults, batches) -> None:
    case = Case()
    case.tensor()
    far = [case.tensor() for _ in range(3)]
    case.kernel(*far)
    for n, tensor in enumerate(far):
        case.entry(Action.FREE, 1, tensor)
        del n
    result = case.run(
        machine("gpu.memory=3 MiB", f"fault.batch_faults={faults}", "host.memory=8 MiB")
    )
    # Two of the three start in GPU memory; one batch brings the third, whatever the batch size.
    assert result.fault_batches == 1
    assert result.fault_blocks.tolist() == [1]
    case = Case()
    new = [case.tensor(is_global=False) for _ in range(3)]
    case.kernel(*new)
    result = case.run(machine(f"fault.batch_faults={faults}"))
    # First touches move no bytes: only the batches take time.
    assert result.fault_batches == batches
    assert result.start_ps[0] == batches * 10 * US


def two_tiers(read_gb: float) -> Result:
    """A kernel that needs one block from host memory and one from the SSD, in one batch, with room for both."""
    case = Case()
    fill = [case.tensor() for _ in range(4)]
    on_host, on_ssd = case.tensor(), case.tensor()
    case.kernel(fill[0])
    case.kernel(on_host, on_ssd)
    for tensor in fill[1:]:
        case.entry(Action.FREE, 0, tensor)
    return case.run(
        machine("host.memory=1 MiB", "fault.batch_faults=2", f"ssd.read_bandwidth={read_gb} GB/s")
    )


def test_host_and_ssd_share_a_direction_by_max_min() -> None:
    # The SSD takes its 2 of the link's 10 GB/s, the host the other 8.
    result = two_tiers(2)
    assert result.start_ps[1] == ps(1e-6 + 10e-6 + MIB / 2e9)
    moved = {
        result.channels[c]: result.transfers.end_ps[n]
        for n, c in enumerate(result.transfers.channel)
    }
    assert moved["host->gpu"] == ps(11e-6 + MIB / 8e9)
    # A fast SSD gets half the link while the host sends, all of it afterwards.
    result = two_tiers(20)
    assert result.start_ps[1] == ps(11e-6 + 2 * LINK_S)


def test_ssd_latency_delays_the_block_and_not_the_channel() -> None:
    case = Case()
    fill = [case.tensor() for _ in range(4)]
    far = [case.tensor() for _ in range(2)]
    case.kernel(fill[0])
    case.kernel(*far)
    for tensor in fill[1:]:
        case.entry(Action.FREE, 0, tensor)
    system = machine("host.memory=0 GiB", "fault.batch_faults=2", "ssd.read_latency=20 us")
    assert case.run(system).start_ps[1] == ps(11e-6 + 2 * MIB / 2e9 + 20e-6)


def roomy() -> tuple[Case, list[int]]:
    """Four tensors in GPU memory, of which three are freed at once, and two in host memory."""
    case = Case()
    fill = [case.tensor() for _ in range(4)]
    for tensor in fill[1:]:
        case.entry(Action.FREE, 0, tensor)
    return case, [fill[0], case.tensor(), case.tensor()]


def test_a_prefetch_in_time_hides_the_transfer() -> None:
    case, (here, x, _) = roomy()
    case.kernel(here, us=200)
    case.kernel(x)
    case.entry(Action.PREFETCH, 0, x)
    result = case.run(machine())
    assert result.stall_ps == 0
    assert result.fault_blocks.sum() == 0
    assert result.traffic_bytes[0].tolist() == [0, MIB, 0, 0]


def test_a_late_prefetch_stalls_for_the_rest_only() -> None:
    case, (here, x, _) = roomy()
    case.kernel(here, us=40)
    case.kernel(x)
    case.entry(Action.PREFETCH, 0, x)
    result = case.run(machine())
    assert result.stall_ps == ps(LINK_S - 40e-6)
    assert result.fault_blocks.sum() == 0


def test_demand_preempts_a_prefetch_which_resumes() -> None:
    case, (_, x, y) = roomy()
    case.kernel(y)
    case.kernel(x)
    case.entry(Action.PREFETCH, 0, x)
    result = case.run(machine())
    # x moves for 10 us until the fault of y has been handled; then y goes first.
    assert result.start_ps[0] == ps(10e-6 + LINK_S)
    assert result.start_ps[1] == ps(2 * LINK_S)
    moved = result.transfers
    assert moved.size_bytes.sum() == 2 * MIB
    assert [int(t) for t in moved.tensor] == [x, y, x]
    assert moved.size_bytes[0] == pytest.approx(10e-6 * 10e9, abs=1)


def test_a_prefetch_waits_for_frames_and_evicts_nothing() -> None:
    case = Case()
    fill = [case.tensor() for _ in range(4)]
    x = case.tensor()
    case.kernel(*fill, us=300)
    case.kernel(fill[1], us=300)
    case.kernel(x)
    case.entry(Action.PREFETCH, 0, x)
    case.entry(Action.PRE_EVICT, 1, fill[0], Target.SSD)
    result = case.run(machine())
    # Eviction from 300 us on at 1 GB/s, then the fetch: ready long after the second kernel's end at 600 us.
    assert result.start_ps[2] == ps(300e-6 + MIB / 1e9 + LINK_S)
    assert result.traffic("gpu->ssd") == MIB
    assert result.fault_blocks.sum() == 0


def test_an_eviction_that_has_not_begun_is_taken_back() -> None:
    case = Case()
    a, b = case.tensor(), case.tensor()
    case.kernel(a)
    case.kernel(b)
    case.entry(Action.PRE_EVICT, 1, a, Target.HOST)
    case.entry(Action.PRE_EVICT, 1, b, Target.HOST)
    result = case.run(machine())
    assert result.stall_ps == 0
    assert result.traffic("gpu->host") + result.occupancy_bytes[-1, 1] <= 2 * MIB
    assert result.fault_blocks.sum() == 0


def test_an_eviction_under_way_is_waited_for_and_undone() -> None:
    case = Case()
    a = case.tensor()
    case.kernel(a)
    case.kernel(a)
    case.entry(Action.PRE_EVICT, 1, a, Target.HOST)
    result = case.run(machine())
    assert result.start_ps[1] == ps(1e-6 + LINK_S + 10e-6 + LINK_S)
    assert result.fault_blocks.tolist() == [0, 1]


def test_a_prefetch_of_a_block_on_its_way_out_brings_it_back() -> None:
    case = Case()
    a, b = case.tensor(), case.tensor()
    case.kernel(b)
    case.kernel(b, us=300)
    case.kernel(a)
    case.entry(Action.PRE_EVICT, 0, a, Target.HOST)
    case.entry(Action.PREFETCH, 1, a)
    result = case.run(machine())
    assert result.stall_ps == 0
    assert result.fault_blocks.sum() == 0
    assert result.traffic("host->gpu") == result.traffic("gpu->host") == MIB


def test_a_block_freed_on_the_move_is_dropped_on_arrival() -> None:
    case = Case()
    a, b = case.tensor(), case.tensor()
    case.kernel(a)
    case.kernel(b, us=300)
    case.kernel(b)
    case.entry(Action.PRE_EVICT, 1, a, Target.HOST)
    case.entry(Action.FREE, 2, a)
    result = case.run(machine())
    assert result.occupancy_bytes[2].tolist() == [MIB, 0, 0]


def test_a_block_freed_on_the_move_and_needed_again_comes_anew() -> None:
    case = Case()
    out, back, keep = case.tensor(), case.tensor(), case.tensor()
    case.kernel(keep)
    case.kernel(out, back)
    case.entry(Action.PRE_EVICT, 0, out, Target.SSD)
    case.entry(Action.FREE, 1, out)
    result = case.run(machine())
    # It leaves at 1 GB/s until its frames are free, then its first touch is a fault that moves nothing.
    assert result.start_ps[1] == ps(MIB / 1e9 + 10e-6)
    assert result.traffic("ssd->gpu") == 0
    # On its way in: what arrives serves as the new allocation.
    case, (here, x, _) = roomy()
    case.kernel(here)
    case.kernel(x)
    case.entry(Action.PREFETCH, 0, x)
    case.entry(Action.FREE, 1, x)
    assert case.run(machine()).start_ps[1] == ps(LINK_S)


def test_allocation_by_plan_takes_no_fault() -> None:
    case = Case()
    a, new = case.tensor(), case.tensor(is_global=False)
    case.kernel(a)
    case.kernel(new)
    case.entry(Action.ALLOC, 1, new)
    result = case.run(machine())
    assert (result.stall_ps, int(result.fault_blocks.sum())) == (0, 0)


def test_victims_are_the_least_recently_migrated_and_never_operands() -> None:
    case = Case()
    t = [case.tensor() for _ in range(6)]  # 4 and 5 start in host memory
    case.kernel(t[4], t[0])  # evicts 1, for 0 is an operand
    case.kernel(t[5])  # evicts 0: of 0, 2, 3 and 4 it migrated first
    case.kernel(t[2], t[3], t[4])
    result = case.run(machine())
    assert result.fault_blocks.tolist() == [1, 1, 0]


def test_victims_go_to_the_ssd_when_host_memory_is_full() -> None:
    case = Case()
    for _ in range(4):
        case.tensor()
    on_host, on_ssd = case.tensor(), case.tensor()
    case.kernel(on_ssd)
    del on_host
    result = case.run(machine("host.memory=1 MiB"))
    assert result.traffic("gpu->ssd") == MIB
    assert result.start_ps[0] == ps(10e-6 + MIB / 1e9 + MIB / 2e9)


def test_planned_evictions_go_to_host_memory_when_the_ssd_is_full() -> None:
    case = Case()
    a, b = case.tensor(), case.tensor()
    case.kernel(a)
    case.kernel(a, us=5000)
    case.kernel(a)
    for tensor in (a, b):
        case.entry(Action.PRE_EVICT, 1, tensor, Target.SSD)
    result = case.run(machine("ssd.capacity=1 MiB"))
    assert result.traffic("gpu->ssd") == result.traffic("gpu->host") == MIB
    assert result.occupancy_bytes[2].tolist() == [MIB, MIB, 0]


def test_a_planned_eviction_without_any_room_is_not_carried_out() -> None:
    case = Case()
    a, b = case.tensor(), case.tensor()
    case.kernel(a)
    case.kernel(b, us=5000)
    case.kernel(a)
    case.entry(Action.PRE_EVICT, 1, a, Target.SSD)
    result = case.run(machine("ssd.capacity=4 KiB", "host.memory=0 B"))
    assert (result.stall_ps, result.traffic_bytes.sum()) == (0, 0)


@pytest.mark.parametrize("policy", policies())
def test_a_gpu_of_exactly_one_tensor_without_host_memory(policy) -> None:
    builder = WorkloadBuilder("exact")
    tensors = [builder.tensor("t", MIB, TensorKind.WEIGHT, is_global=True) for _ in range(4)]
    for tensor in tensors:
        builder.kernel("k", 1000.0, inputs=[tensor])
    step = builder.build()
    system = machine("gpu.memory=1 MiB", "host.memory=0 B", "ssd.capacity=4 MiB")
    result = engine.run(step, get_planner(policy).plan(step, system), system)
    if policy == "ideal":
        assert result.stall_ps == 0
    else:
        assert result.gpu_peak_bytes == MIB
        assert result.traffic("ssd->gpu") >= 3 * MIB
    small = machine("gpu.memory=1 MiB", "host.memory=8 MiB", "ssd.capacity=4 KiB")
    assert engine.run(step, get_planner(policy).plan(step, small), small).traffic("gpu->ssd") == 0


def test_tensors_of_terabytes() -> None:
    builder = WorkloadBuilder("huge")
    tensors = [builder.tensor("t", 10**13, TensorKind.WEIGHT, is_global=True) for _ in range(3)]
    for tensor in tensors:
        builder.kernel("k", 1e9, inputs=[tensor])
    step = builder.build()
    system = machine(
        "gpu.memory=11 TB", "host.memory=5 TB", "ssd.capacity=40 TB", "engine.block=1 GiB"
    )
    result = engine.run(step, get_planner("uvm").plan(step, system), system)
    assert result.gpu_peak_bytes <= 11 * 10**12
    # All but what fits comes once, at 10 GB/s at the best.
    assert result.total_ps > 2 * 9 * 10**12 / 10e9 * 1e12
    assert (np.diff(result.end_ps) > 0).all()


def test_more_time_than_the_engine_can_count() -> None:
    builder = WorkloadBuilder("slow")
    tensors = [builder.tensor("t", 10**15, TensorKind.WEIGHT, is_global=True) for _ in range(30)]
    for tensor in tensors:
        builder.kernel("k", 1e9, inputs=[tensor])
    step = builder.build()
    system = machine(
        "gpu.memory=1.1 PB",
        "host.memory=100 PB",
        "engine.block=10 TiB",
        "link.bandwidth=1 GB/s",
        "engine.iterations=10",
    )
    with pytest.raises(InputError, match="takes more than 53 days of simulated time"):
        engine.run(step, get_planner("uvm").plan(step, system), system)


def test_the_first_iteration_warms_up() -> None:
    case = Case()
    new = case.tensor(is_global=False)
    a = case.tensor()
    case.kernel(new, a)
    case.entry(Action.FREE, 1, new)
    once, thrice = case.run(machine()), case.run(machine("engine.iterations=3"))
    assert once.total_ps == thrice.total_ps
    assert thrice.ready_ps[0] == 0
    assert thrice.iterations == 3


def test_a_transfer_over_the_iterations_boundary_is_logged_from_there_on() -> None:
    case = Case()
    a, b = case.tensor(), case.tensor()
    case.kernel(a)
    case.kernel(b)
    case.entry(Action.PRE_EVICT, 2, b, Target.SSD)
    result = case.run(machine("engine.iterations=2"))
    # b leaves from the end of the first iteration on, at 1 GB/s; the second starts with its last use of a, 1 us.
    assert result.transfers.start_ps[0] == 0
    assert result.transfers.size_bytes[0] == MIB
    assert result.start_ps[1] == ps(MIB / 1e9 + 10e-6 + MIB / 2e9)


def test_small_tensors_take_whole_pages() -> None:
    blocks, tensor, first = engine.cut_into_blocks(np.array([1, 4096, 4097, MIB + 1]), MIB)
    assert blocks.tolist() == [4096, 4096, 8192, MIB, 4096]
    assert tensor.tolist() == [0, 1, 2, 3, 3]
    assert first.tolist() == [0, 1, 2, 3, 5]


def test_what_does_not_fit_is_said() -> None:
    case = Case()
    case.kernel(*(case.tensor() for _ in range(5)))
    with pytest.raises(
        InputError,
        match=r"kernel 0 \('k'\) of 'case' needs 0.00 GiB at once, but gpu.memory is 4 MiB",
    ):
        case.run(machine())
    case = Case()
    tensors = [case.tensor() for _ in range(6)]
    case.kernel(tensors[0])
    with pytest.raises(InfeasibleError, match=r"so are the SSD's 4 KiB \(ssd.capacity\)"):
        case.run(machine("host.memory=1 MiB", "ssd.capacity=4 KiB"))
    case = Case()
    case.kernel(case.tensor())
    with pytest.raises(InputError, match=r"engine.block is 5000 bytes; use a multiple of 4096"):
        case.run(machine("engine.block=5000 B"))


# -- what must hold in every run ------------------------------------------------------------------------------------------

PAGE = 4096


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    count = draw(st.integers(1, 9))
    sizes = [
        draw(st.sampled_from([1, 100, PAGE, PAGE + 1, 3 * PAGE, 6 * PAGE, 9 * PAGE]))
        for _ in range(count)
    ]
    builder = WorkloadBuilder("random")
    tensors = [
        builder.tensor(f"t{n}", size, TensorKind.ACTIVATION, is_global=draw(st.booleans()))
        for n, size in enumerate(sizes)
    ]
    some = st.lists(st.sampled_from(tensors), unique=True, max_size=3)
    kernels = draw(st.integers(1, 12))
    for k in range(kernels):
        # Each tensor is used at least once.
        owed = tensors[k::kernels]
        builder.kernel(
            f"k{k}",
            draw(st.sampled_from([0.0, 1.0, 37.0, 1000.0, 40_000.0])),
            inputs=sorted({*owed[:3], *draw(some)}),
            outputs=sorted({*owed[3:], *draw(some)}),
        )
    return builder.build()


@st.composite
def systems(draw: st.DrawFn, workload: Workload) -> System:
    paged = -(-workload.tensors.size_bytes // PAGE) * PAGE
    need = max(int(paged[workload.operands[k]].sum()) for k in range(len(workload.kernels)))
    return load_system(
        overrides=[
            f"gpu.memory={max(need, PAGE) + draw(st.integers(0, 6)) * PAGE} B",
            f"host.memory={draw(st.integers(0, 12)) * PAGE} B",
            f"link.bandwidth={draw(st.sampled_from([1, 10]))} GB/s",
            f"ssd.read_bandwidth={draw(st.sampled_from([0.3, 3, 30]))} GB/s",
            f"ssd.write_bandwidth={draw(st.sampled_from([0.2, 2, 20]))} GB/s",
            f"ssd.read_latency={draw(st.sampled_from([0, 20]))} us",
            f"ssd.write_latency={draw(st.sampled_from([0, 16]))} us",
            f"link.latency={draw(st.sampled_from([0, 1]))} us",
            f"fault.batch_latency={draw(st.sampled_from([0, 3]))} us",
            f"fault.batch_faults={draw(st.sampled_from([1, 2, 256]))}",
            "fault.faults_per_block=1",
            f"fault.overlap_eviction={draw(st.sampled_from(['true', 'false']))}",
            f"engine.block={draw(st.sampled_from([1, 2, 4])) * PAGE} B",
            f"engine.iterations={draw(st.integers(1, 3))}",
        ]
    )


@st.composite
def plans(draw: st.DrawFn, workload: Workload, system: System) -> MigrationPlan:
    """A policy's plan, or one that makes little sense."""
    policy = draw(st.sampled_from([*policies(), "random", "random"]))
    if policy != "random":
        return get_planner(policy).plan(workload, system)
    builder = PlanBuilder(workload)
    for _ in range(draw(st.integers(0, 25))):
        builder.add(
            draw(st.sampled_from(list(Action))),
            draw(st.sampled_from(list(Target))),
            trigger=[draw(st.integers(0, len(workload.kernels)))],
            tensor=[draw(st.integers(0, len(workload.tensors) - 1))],
        )
    return builder.build("random", "faithful")


def check_state(state: core.State, plan: MigrationPlan) -> None:
    """Every byte is accounted for, and every queue holds what the blocks say."""
    block, reg = state.block, state.reg
    size, location, flight = block["size"], block["location"], block["flight"]
    inbound = (flight == core.QUEUED) | (flight == core.SERVED) | (flight == core.DELAYED)
    outbound = inbound & (block["channel"] >= core.HOST_OUT)
    inbound &= ~outbound
    held = (location == core.GPU) | inbound
    assert size[held].sum() == reg[REG.gpu_used]
    to_host, to_ssd = (
        outbound & (block["channel"] == core.HOST_OUT),
        outbound & (block["channel"] == core.SSD_OUT),
    )
    assert size[(location == core.HOST) | to_host].sum() == reg[REG.host_used]
    assert size[(location == core.SSD) | to_ssd].sum() == reg[REG.ssd_used]
    assert size[outbound].sum() == reg[REG.out_bytes]
    assert (location[outbound] == core.GPU).all()
    assert reg[REG.host_used] <= reg[REG.host_capacity]
    assert plan.unlimited_gpu or reg[REG.gpu_peak] <= reg[REG.gpu_capacity]
    assert reg[REG.wait_bytes] == reg[REG.batch_wait] == reg[REG.batch_left] == 0
    for queue in range(core.N_QUEUES):
        members, b, before = [], int(state.line[queue]["head"]), -1
        while b >= 0:
            assert block["preceding"][b] == before
            assert block["queue"][b] == queue
            members.append(b)
            before, b = b, int(block["following"][b])
        assert state.line[queue]["tail"] == before
        assert sorted(members) == np.flatnonzero(block["queue"] == queue).tolist()
    idle_on_gpu, b = [], int(reg[REG.lru_head])
    while b >= 0:
        idle_on_gpu.append(b)
        b = int(block["lru_next"][b])
    assert (
        sorted(idle_on_gpu)
        == np.flatnonzero((location == core.GPU) & (flight == core.IDLE)).tolist()
    )


def check_transfers(result: Result, system: System) -> None:
    """Channels carry one block at a time, no faster than they can, and all that moved is in the totals."""
    moved = result.transfers
    assert moved.lost == 0
    limits = (
        system.link.bandwidth_bytes_per_s,
        min(system.ssd.read_bandwidth_bytes_per_s, system.link.bandwidth_bytes_per_s),
        system.link.bandwidth_bytes_per_s,
        min(system.ssd.write_bandwidth_bytes_per_s, system.link.bandwidth_bytes_per_s),
    )
    for channel, limit in enumerate(limits):
        rows = np.flatnonzero(moved.channel == channel)
        for before, after in itertools.pairwise(rows):
            assert moved.end_ps[before] <= moved.start_ps[after]
        length_ps = moved.end_ps[rows] - moved.start_ps[rows]
        assert (moved.size_bytes[rows] <= limit * length_ps / 1e12 + 1.5).all()
    for pair in ((0, 1), (2, 3)):
        both = np.isin(moved.channel, pair)
        if both.any():
            span_ps = moved.end_ps[both].max() - max(0, moved.start_ps[both].min())
            inside = both & (moved.start_ps >= 0)
            assert moved.size_bytes[inside].sum() <= limits[0] * span_ps / 1e12 + 2 * both.sum()


@settings(
    deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(st.data())
def test_invariants(data: st.DataObject) -> None:
    run_and_check(data)


@pytest.mark.slow
@settings(deadline=None, max_examples=10_000, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_invariants_long(data: st.DataObject) -> None:
    run_and_check(data)


def run_and_check(data: st.DataObject) -> None:
    workload = data.draw(workloads())
    system = data.draw(systems(workload))
    plan = data.draw(plans(workload, system))
    state = start(workload, plan, system)
    kernels = len(workload.kernels)
    for iteration in range(system.engine.iterations):
        core.begin_iteration(state, iteration == system.engine.iterations - 1)
        for k in range(kernels):
            core.run_kernels(state, None, k, k + 1)
            assert state.reg[REG.error] == core.ERROR_NONE
            check_operands(state, workload.operands[k])
            check_state(state, plan)
    result = engine.run(workload, plan, system)
    durations = np.rint(workload.kernels.duration_ns * 1e3).astype(np.int64)
    assert result.compute_ps == durations.sum()
    assert result.total_ps == result.compute_ps + result.stall_ps
    assert (result.ready_ps[1:] == result.end_ps[:-1]).all()
    assert (result.start_ps >= result.ready_ps).all()
    assert result.ready_ps[0] == 0
    if plan.unlimited_gpu:
        assert result.stall_ps == 0
    else:
        assert (result.occupancy_bytes[:, 0] <= system.gpu.memory_bytes).all()
    assert (result.occupancy_bytes[:, 1] <= system.host.memory_bytes).all()
    check_transfers(result, system)
    again = engine.run(workload, plan, system)
    assert again.summary() == result.summary()
    assert (again.end_ps == result.end_ps).all()
    assert (again.transfers.start_ps == result.transfers.start_ps).all()
    # In one iteration from the start, what came in had left or started out there.
    if system.engine.iterations == 1:
        moved = result.traffic_bytes.sum(axis=1)
        total = int(state.block["size"].sum())
        assert moved[0] <= moved[2] + min(total, system.host.memory_bytes)


def check_operands(state: core.State, tensors: Sequence[int]) -> None:
    """After a kernel (nothing runs between its end and the next), its operands are still in GPU memory."""
    for tensor in tensors:
        blocks = slice(int(state.tensor_block[tensor]), int(state.tensor_block[tensor + 1]))
        freed_at_the_end = state.block["location"][blocks] == core.NONE
        assert ((state.block["location"][blocks] == core.GPU) | freed_at_the_end).all()
