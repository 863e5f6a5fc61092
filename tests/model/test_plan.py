"""Migration plans: issue order, checks, files."""

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagetide.model.errors import InputError
from pagetide.model.plan import Action, MigrationPlan, PlanBuilder, Target
from pagetide.model.workload import TensorKind, Workload, WorkloadBuilder


@pytest.fixture
def step() -> Workload:
    builder = WorkloadBuilder("step")
    tensors = [builder.tensor(f"t{n}", 100 * (n + 1), TensorKind.ACTIVATION) for n in range(3)]
    for n in range(4):
        builder.kernel(f"k{n}", 1.0, inputs=tensors)
    return builder.build()


@pytest.fixture
def plan(step: Workload) -> MigrationPlan:
    builder = PlanBuilder(step)
    builder.add(Action.PREFETCH, Target.GPU, trigger=[3, 1], tensor=[0, 1])
    builder.add(Action.PRE_EVICT, Target.SSD, trigger=[1], tensor=[0])
    builder.add(Action.PRE_EVICT, Target.HOST, trigger=[1], tensor=[2])
    builder.add(Action.FREE, Target.GPU, trigger=[4, 1], tensor=[2, 2])
    builder.add(Action.ALLOC, Target.GPU, trigger=[1], tensor=[1])
    return builder.build("test", "faithful", statistics={"n": 1})


def test_issue_order(plan: MigrationPlan) -> None:
    rows = list(zip(plan.trigger.tolist(), plan.action.tolist(), plan.tensor.tolist(), strict=True))
    assert rows == [
        (1, Action.FREE, 2),
        (1, Action.PRE_EVICT, 0),
        (1, Action.PRE_EVICT, 2),
        (1, Action.ALLOC, 1),
        (1, Action.PREFETCH, 1),
        (3, Action.PREFETCH, 0),
        (4, Action.FREE, 2),
    ]
    assert plan.size_bytes.tolist() == [300, 100, 300, 200, 200, 100, 300]
    assert plan.totals(Action.PRE_EVICT) == (2, 400)
    assert plan.totals(Action.PRE_EVICT, Target.SSD) == (1, 100)


def test_empty(step: Workload) -> None:
    plan = PlanBuilder(step).build("none", "faithful")
    assert len(plan) == 0
    plan.check(step)


def test_save_and_load(plan: MigrationPlan, step: Workload, tmp_path: Path) -> None:
    plan.save(tmp_path / "a.npz")
    again = MigrationPlan.load(tmp_path / "a.npz")
    again.check(step)
    again.save(tmp_path / "b.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    assert (again.policy, again.workload, again.statistics, again.unlimited_gpu) == (
        "test",
        "step",
        {"n": 1},
        False,
    )


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("trigger", 5),
        ("trigger", -1),
        ("tensor", 3),
        ("tensor", -1),
        ("offset_bytes", 1),
        ("size_bytes", 0),
        ("size_bytes", 301),
        ("size_bytes", (1 << 63) - 1),
        ("action", 4),
        ("target", 3),
    ],
)
def test_entries_outside_the_workload(plan: MigrationPlan, step: Workload, column, value) -> None:
    changed = getattr(plan, column).copy()
    changed[-1] = value
    with pytest.raises(
        InputError,
        match=r"plan entry 6 .* lies outside workload 'step' with 4 kernels and 3 tensors",
    ):
        dataclasses.replace(plan, **{column: changed}).check(step)


def test_order_and_workload_are_checked(plan: MigrationPlan, step: Workload) -> None:
    with pytest.raises(InputError, match="plan entries are not in trigger order"):
        dataclasses.replace(plan, trigger=plan.trigger[::-1].copy()).check(step)
    with pytest.raises(InputError, match="the plan is for workload 'other', not for 'step'"):
        dataclasses.replace(plan, workload="other").check(step)


def test_damaged_file(plan: MigrationPlan, tmp_path: Path) -> None:
    dataclasses.replace(plan, trigger=plan.trigger[:-1]).save(tmp_path / "a.npz")
    with pytest.raises(InputError, match=r"a.npz: damaged plan file \(columns differ in length\)"):
        MigrationPlan.load(tmp_path / "a.npz")
    dataclasses.replace(plan, tensor=plan.tensor.astype(np.float64)).save(tmp_path / "a.npz")
    with pytest.raises(InputError, match=r"a.npz: damaged plan file"):
        MigrationPlan.load(tmp_path / "a.npz")


def test_a_range_whose_end_overflows(plan: MigrationPlan, step: Workload) -> None:
    offset, size = plan.offset_bytes.copy(), plan.size_bytes.copy()
    offset[-1], size[-1] = (1 << 63) - 1, (1 << 63) - 1
    with pytest.raises(InputError, match="plan entry 6"):
        dataclasses.replace(plan, offset_bytes=offset, size_bytes=size).check(step)


def test_columns_of_other_shapes(plan: MigrationPlan, step: Workload, tmp_path: Path) -> None:
    for name, change in itertools.product(
        ("trigger", "tensor"), (lambda c: c[:-1], lambda c: c[:, None], lambda c: c[0])
    ):
        changed = dataclasses.replace(plan, **{name: np.asarray(change(getattr(plan, name)))})
        with pytest.raises(InputError, match="the plan's columns differ in shape"):
            changed.check(step)
        changed.save(tmp_path / "a.npz")
        with pytest.raises(InputError, match=r"a.npz: damaged plan file"):
            MigrationPlan.load(tmp_path / "a.npz")


def test_a_workload_without_tensors(plan: MigrationPlan) -> None:
    builder = WorkloadBuilder("step")
    builder.kernel("k", 1.0)
    empty = builder.build()
    PlanBuilder(empty).build("none", "faithful").check(empty)
    with pytest.raises(
        InputError, match="lies outside workload 'step' with 1 kernels and 0 tensors"
    ):
        plan.check(empty)


@pytest.mark.parametrize(
    ("trigger", "tensor", "message"),
    [
        (
            [0, 1],
            [0],
            r"trigger and tensor must be lists of equal length, but have shapes \(2,\) and \(1,\)",
        ),
        ([[0]], [[0]], "must be lists of equal length"),
        ([0], [3], "tensor must be 0 to 2, but 3 came"),
        ([0], [-1], "tensor must be 0 to 2, but -1 came"),
        ([5], [0], "trigger must be 0 to 4, but 5 came"),
        ([1 << 32], [0], "trigger must be 0 to 4, but 4294967296 came"),
        ([-1], [0], "trigger must be 0 to 4, but -1 came"),
    ],
)
def test_the_builder_refuses_what_no_plan_may_hold(
    step: Workload, trigger, tensor, message
) -> None:
    with pytest.raises(ValueError, match=message):
        PlanBuilder(step).add(Action.FREE, Target.GPU, trigger=trigger, tensor=tensor)


ENTRY = st.tuples(st.integers(0, 4), st.sampled_from(Action), st.integers(0, 2))


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(entries=st.lists(ENTRY, max_size=20))
def test_issue_order_against_a_stable_sort(step: Workload, entries) -> None:
    builder = PlanBuilder(step)
    for trigger, action, tensor in entries:
        target = Target.SSD if action == Action.PRE_EVICT else Target.GPU
        builder.add(action, target, trigger=[trigger], tensor=[tensor])
    plan = builder.build("test", "faithful")
    plan.check(step)
    found = zip(plan.trigger.tolist(), plan.action.tolist(), plan.tensor.tolist(), strict=True)
    assert list(found) == sorted(entries, key=lambda entry: entry[:2])
