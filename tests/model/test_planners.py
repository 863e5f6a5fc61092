"""Planners: well-formed plans, and the results that the papers lead one to expect."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagetide.model import engine
from pagetide.model.errors import InputError
from pagetide.model.plan import Action, MigrationPlan, Target
from pagetide.model.planners import get_planner, policies
from pagetide.model.system import System, load_system
from pagetide.model.vitality import analyse
from pagetide.model.workload import TensorKind, Workload, WorkloadBuilder, zoo
from pagetide.model.workload.g10_tables import load_g10

G10 = Path(__file__).parents[2].parent / "shared" / "data" / "g10"
needs_g10 = pytest.mark.skipif(
    not G10.is_dir(), reason="needs the G10 tables beside the checkout (../shared/data/g10)"
)
GIB = 1 << 30
MIB = 1 << 20
G10_POLICIES = ("g10", "g10-benefit")


def test_registry() -> None:
    assert policies() == ["ideal", "uvm", "deepum", "g10", "g10-benefit"]
    for name in policies():
        assert get_planner(name).name == name
    with pytest.raises(InputError, match=r"unknown policy 'g01'; did you mean 'g10'\?"):
        get_planner("g01")


def forward_backward(layers: int, size_bytes: int, kernel_us: float) -> Workload:
    """A chain of layers: each writes an activation that the backward pass reads in reverse order."""
    builder = WorkloadBuilder("chain")
    weights = [
        builder.tensor(f"w{n}", MIB, TensorKind.WEIGHT, is_global=True) for n in range(layers)
    ]
    kept = [builder.tensor(f"a{n}", size_bytes, TensorKind.ACTIVATION) for n in range(layers)]
    for n in range(layers):
        builder.kernel(
            f"f{n}", kernel_us * 1000, inputs=[weights[n], *kept[n - 1 : n]], outputs=[kept[n]]
        )
    for n in reversed(range(layers)):
        builder.kernel(
            f"b{n}", kernel_us * 1000, inputs=[weights[n], kept[n]], outputs=[weights[n]]
        )
    return builder.build()


@pytest.mark.parametrize("policy", G10_POLICIES)
def test_hidden_when_there_is_time(policy) -> None:
    # 24 activations of 64 MiB on a GPU of 1 GiB; a kernel lasts as long as three of them take to move over the link.
    step = forward_backward(24, 64 * MIB, 12_800)
    system = load_system(overrides=["gpu.memory=1 GiB"])
    plan = get_planner(policy).plan(step, system)
    assert plan.statistics["peak_pressure_bytes"] > GIB
    assert plan.statistics["planned_peak_bytes"] <= GIB
    result = engine.run(step, plan, system)
    assert result.fraction_of_ideal > 0.999
    assert result.fault_blocks.sum() == 0
    uvm = engine.run(step, get_planner("uvm").plan(step, system), system)
    assert uvm.fraction_of_ideal < 0.95


@pytest.mark.parametrize("policy", G10_POLICIES)
def test_nothing_moves_when_everything_fits(policy) -> None:
    step = forward_backward(8, 64 * MIB, 100)
    plan = get_planner(policy).plan(step, load_system())
    assert plan.totals(Action.PRE_EVICT) == plan.totals(Action.PREFETCH) == (0, 0)
    born = int((~step.tensors.is_global).sum())
    assert plan.totals(Action.ALLOC)[0] == plan.totals(Action.FREE)[0] == born


def test_ssd_first_host_when_the_write_channel_is_busy() -> None:
    system = load_system(overrides=["gpu.memory=1 GiB"])
    slow = get_planner("g10").plan(forward_backward(24, 64 * MIB, 50_000), system)
    assert slow.totals(Action.PRE_EVICT, Target.SSD)[0] > 0
    assert slow.totals(Action.PRE_EVICT, Target.HOST)[0] == 0
    fast = get_planner("g10").plan(forward_backward(24, 64 * MIB, 8_000), system)
    assert fast.totals(Action.PRE_EVICT, Target.HOST)[0] > 0
    without_host = load_system(overrides=["gpu.memory=1 GiB", "host.memory=0 GiB"])
    assert get_planner("g10").plan(forward_backward(24, 64 * MIB, 8_000), without_host).totals(
        Action.PRE_EVICT, Target.HOST
    ) == (0, 0)


def check_well_formed(plan: MigrationPlan, workload: Workload, system: System) -> None:
    """Evictions begin right after a use and end before the next; allocs and frees bracket the life of a tensor."""
    plan.check(workload)
    vitality = analyse(workload)
    kernels = len(workload.kernels)
    for action, trigger in ((Action.ALLOC, vitality.birth), (Action.FREE, vitality.death + 1)):
        chosen = plan.action == action
        assert (plan.trigger[chosen] == trigger[plan.tensor[chosen]]).all()
        assert not workload.tensors.is_global[plan.tensor[chosen]].any()
    out, back = plan.action == Action.PRE_EVICT, plan.action == Action.PREFETCH
    assert sorted(plan.tensor[out].tolist()) == sorted(plan.tensor[back].tolist())
    for tensor in np.unique(plan.tensor[out]).tolist():
        uses = [k for k in range(kernels) if tensor in workload.operands[k]]
        leaves = sorted(plan.trigger[out & (plan.tensor == tensor)].tolist())
        returns = sorted(plan.trigger[back & (plan.tensor == tensor)].tolist())
        for leave in leaves:
            assert (leave - 1) % kernels in uses
            # The next event round the circle is the fetch, and no use lies between.
            gap = min((come - leave) % kernels for come in returns)
            assert gap > 0
            assert not any((use - leave) % kernels < gap for use in uses)


@st.composite
def steps(draw: st.DrawFn) -> Workload:
    count = draw(st.integers(2, 10))
    builder = WorkloadBuilder("random")
    tensors = [
        builder.tensor(
            f"t{n}",
            draw(st.integers(1, 40)) * MIB,
            TensorKind.ACTIVATION,
            is_global=draw(st.booleans()),
        )
        for n in range(count)
    ]
    kernels = draw(st.integers(2, 25))
    some = st.lists(st.sampled_from(tensors), unique=True, max_size=2)
    for k in range(kernels):
        builder.kernel(
            f"k{k}",
            draw(st.sampled_from([10.0, 1000.0, 20_000.0])) * 1000,
            inputs=sorted({*tensors[k::kernels][:2], *draw(some)}),
            outputs=sorted({*tensors[k::kernels][2:], *draw(some)}),
        )
    return builder.build()


@settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(steps(), st.floats(0.3, 1.1), st.sampled_from(G10_POLICIES), st.sampled_from([0, 30, 1000]))
def test_plans_are_well_formed_and_keep_their_promise(step, share, policy, host_mib) -> None:
    vitality = analyse(step)
    memory = max(int(vitality.peak_live_bytes * share), int(vitality.active_bytes.max()))
    system = load_system(overrides=[f"gpu.memory={memory} B", f"host.memory={host_mib} MiB"])
    plan = get_planner(policy).plan(step, system)
    check_well_formed(plan, step, system)
    again = get_planner(policy).plan(step, system)
    for name in ("trigger", "tensor", "action", "target"):
        assert (getattr(plan, name) == getattr(again, name)).all()
    assert plan.statistics["planned_peak_bytes"] <= plan.statistics["peak_pressure_bytes"]
    if plan.statistics["peak_pressure_bytes"] <= memory:
        assert plan.totals(Action.PRE_EVICT) == (0, 0)
    check_pressure(plan, step)
    result = engine.run(step, plan, system)
    assert result.fraction_of_ideal <= 1.0


def check_pressure(plan: MigrationPlan, step: Workload) -> None:
    """The peak that a plan states is no lower than the bytes that its own entries leave on the GPU.

    A tensor is counted as away from its eviction's trigger on; the plan counts it until its bytes have left.
    """
    kernels, vitality = len(step.kernels), analyse(step)
    paged = -(-step.tensors.size_bytes // 4096) * 4096
    alive = np.zeros((len(step.tensors), kernels), dtype=np.bool_)
    for tensor in range(len(step.tensors)):
        alive[tensor, vitality.birth[tensor] : vitality.death[tensor] + 1] = True
    for n in np.flatnonzero(plan.action == Action.PRE_EVICT):
        tensor, t = int(plan.tensor[n]), int(plan.trigger[n])
        back = {
            int(b) % kernels
            for b in plan.trigger[(plan.action == Action.PREFETCH) & (plan.tensor == tensor)]
        }
        while t % kernels not in back:
            alive[tensor, t % kernels] = False
            t += 1
    assert (paged[:, None] * alive).sum(axis=0).max() <= plan.statistics["planned_peak_bytes"]


@needs_g10
@pytest.mark.parametrize("policy", G10_POLICIES)
def test_bert_256_is_within_two_points_of_the_published_result(policy) -> None:
    step, system = load_g10(G10, "BERT_Base", 256), load_system()
    result = engine.run(step, get_planner(policy).plan(step, system), system)
    assert result.fraction_of_ideal == pytest.approx(0.9965, abs=0.02)


@needs_g10
@pytest.mark.parametrize(
    ("model", "batch", "published"),
    [
        ("VIT", 1280, 0.671),
        ("Inceptionv3", 1536, 0.977),
        ("ResNet152", 1280, 0.984),
        ("SENet154", 1024, 0.934),
    ],
)
def test_headline_workloads_with_the_rank_of_algorithm_1(model, batch, published) -> None:
    step, system = load_g10(G10, model, batch), load_system()
    uvm = engine.run(step, get_planner("uvm").plan(step, system), system)
    result = engine.run(step, get_planner("g10-benefit").plan(step, system), system)
    # Not lower than published by more than two points; docs, "Fidelity", has the differences and their causes.
    assert result.fraction_of_ideal > published - 0.02
    assert result.fraction_of_ideal > 1.2 * uvm.fraction_of_ideal
    by_cost = engine.run(step, get_planner("g10").plan(step, system), system)
    assert by_cost.total_ps < 1.01 * uvm.total_ps


@pytest.mark.parametrize(("model", "batch"), [("bert-base", 384), ("gpt2", 12), ("resnet50", 640)])
def test_order_of_the_policies_on_the_zoo(model, batch) -> None:
    step = zoo.load(model, batch=batch)
    vitality = analyse(step)
    system = load_system(overrides=[f"gpu.memory={int(vitality.peak_live_bytes / 1.4)} B"])
    results = {
        name: engine.run(step, get_planner(name).plan(step, system), system) for name in policies()
    }
    assert results["ideal"].fraction_of_ideal == 1.0
    for name in G10_POLICIES:
        assert results["uvm"].total_ps > results[name].total_ps >= results["ideal"].total_ps
        assert results[name].fault_blocks.sum() < 0.2 * results["uvm"].fault_blocks.sum()
