"""Vitality against a slow and obvious reference."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagetide.model.vitality import analyse
from pagetide.model.workload import TensorKind, UnusedTensorWarning, Workload, WorkloadBuilder


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    builder = WorkloadBuilder("random")
    tensors = [
        builder.tensor(
            f"t{n}",
            draw(st.integers(1, 1000)),
            TensorKind.ACTIVATION,
            is_global=draw(st.booleans()),
        )
        for n in range(draw(st.integers(1, 6)))
    ]
    some = st.lists(st.sampled_from(tensors), unique=True, max_size=3)
    for k in range(draw(st.integers(1, 9))):
        builder.kernel(
            f"k{k}", draw(st.sampled_from([0.0, 1.0, 10.0])), inputs=draw(some), outputs=draw(some)
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnusedTensorWarning)
        return builder.build()


@settings(deadline=None, max_examples=300)
@given(workloads())
def test_against_a_reference(step: Workload) -> None:
    found = analyse(step)
    kernels, duration = len(step.kernels), step.kernels.duration_ns
    live, active = np.zeros(kernels, dtype=np.int64), np.zeros(kernels, dtype=np.int64)
    periods = []
    for t in range(len(step.tensors)):
        uses = [k for k in range(kernels) if t in step.inputs[k] or t in step.outputs[k]]
        if not uses:
            assert found.birth[t] == found.death[t] == found.first_use[t] == found.last_use[t] == -1
            continue
        whole = bool(step.tensors.is_global[t])
        first, last = (0, kernels - 1) if whole else (uses[0], uses[-1])
        assert (found.birth[t], found.death[t]) == (first, last)
        assert (found.first_use[t], found.last_use[t]) == (uses[0], uses[-1])
        for k in range(kernels):
            live[k] += step.tensors.size_bytes[t] * (first <= k <= last)
            active[k] += step.tensors.size_bytes[t] * (k in uses)
        following = [*uses[1:], uses[0] + kernels] if whole else uses[1:]
        for use, after in zip(uses, following, strict=False):
            if after > use + 1:
                length = sum(duration[k % kernels] for k in range(use + 1, after))
                periods.append((t, use + 1, after, length))
    assert found.live_bytes.tolist() == live.tolist()
    assert found.active_bytes.tolist() == active.tolist()
    p = found.periods
    assert list(zip(p.tensor.tolist(), p.start.tolist(), p.end.tolist(), strict=True)) == [
        row[:3] for row in periods
    ]
    assert p.length_ns.tolist() == pytest.approx([row[3] for row in periods])
    assert found.start_ns.tolist() == pytest.approx([0.0, *np.cumsum(duration)])
    assert found.peak_live_bytes == live.max()


def test_a_global_tensor_wraps_into_the_next_iteration() -> None:
    builder = WorkloadBuilder("wrap")
    w = builder.tensor("w", 10, TensorKind.WEIGHT, is_global=True)
    x = builder.tensor("x", 10, TensorKind.INPUT)
    for k, length in enumerate((1.0, 2.0, 4.0, 8.0)):
        builder.kernel(f"k{k}", length, inputs=[w, x] if k == 2 else [x])
    periods = analyse(builder.build()).periods
    assert (periods.tensor.tolist(), periods.start.tolist(), periods.end.tolist()) == (
        [0],
        [3],
        [6],
    )
    assert periods.length_ns.tolist() == [8.0 + 1.0 + 2.0]
