"""Lowering: each touch of each operand exactly once, parts of requesters disjoint, deterministic."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagetide.model.errors import InputError
from pagetide.model.workload import TensorKind, Workload, WorkloadBuilder
from pagetide.model.workload.lowering import AccessKind, AccessStream, lay_out, lower

KIB = 1024


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    sizes = draw(st.lists(st.integers(1, 64 * KIB), min_size=1, max_size=8))
    kernels = draw(st.integers(1, 6))
    builder = WorkloadBuilder("random")
    tensors = [
        builder.tensor(f"t{n}", size, TensorKind.ACTIVATION, is_global=draw(st.booleans()))
        for n, size in enumerate(sizes)
    ]
    some = st.lists(st.sampled_from(tensors), unique=True, max_size=4)
    for k in range(kernels):
        # Every tensor is used in the first kernel, so that none is unused.
        builder.kernel(f"k{k}", 1.0, inputs=tensors if k == 0 else draw(some), outputs=draw(some))
    return builder.build()


@settings(deadline=None)
@given(
    workloads(),
    st.sampled_from([4 * KIB, 16 * KIB]),
    st.sampled_from([1 * KIB, 4 * KIB]),
    st.integers(1, 9),
)
def test_every_touch_of_every_operand_exactly_once(
    workload, page_bytes, touch_bytes, requesters
) -> None:
    layout = lay_out(workload, page_bytes)
    stream = lower(workload, layout, touch_bytes=touch_bytes, requesters=requesters)
    expected = sorted(
        (k, int(layout.base_va[t]) + touch * touch_bytes, kind)
        for k in range(len(workload.kernels))
        for kind, lists in (
            (AccessKind.READ, workload.inputs),
            (AccessKind.WRITE, workload.outputs),
        )
        for t in lists[k]
        for touch in range(-(-int(workload.tensors.size_bytes[t]) // touch_bytes))
    )
    assert (
        sorted(zip(stream.kernel.tolist(), stream.va.tolist(), stream.access.tolist(), strict=True))
        == expected
    )
    assert stream.requester.max() < requesters
    assert (np.diff(stream.kernel) >= 0).all()
    again = lower(workload, layout, touch_bytes=touch_bytes, requesters=requesters)
    for name in ("va", "requester", "access", "kernel"):
        assert (getattr(stream, name) == getattr(again, name)).all()


@settings(deadline=None)
@given(workloads(), st.integers(1, 9))
def test_each_requester_goes_through_a_contiguous_part_in_order(workload, requesters) -> None:
    layout = lay_out(workload, 4 * KIB)
    stream = lower(workload, layout, requesters=requesters)
    for k in range(len(workload.kernels)):
        for t in set(workload.inputs[k].tolist()):
            low = int(layout.base_va[t])
            mine = (
                (stream.kernel == k)
                & (stream.access == AccessKind.READ)
                & (stream.va >= low)
                & (stream.va < low + int(layout.pages[t]) * layout.page_bytes)
            )
            for r in range(requesters):
                pages = stream.va[mine & (stream.requester == r)]
                assert (np.diff(pages.astype(np.int64)) == 4 * KIB).all()


@settings(deadline=None)
@given(workloads())
def test_tensors_do_not_share_pages_and_globals_come_first(workload) -> None:
    layout = lay_out(workload, 16 * KIB)
    ranges = sorted(
        (int(b), int(b) + int(p) * layout.page_bytes)
        for b, p in zip(layout.base_va, layout.pages, strict=True)
    )
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ranges))
    assert (layout.base_va % 16384 == 0).all()
    is_global = workload.tensors.is_global
    if is_global.any() and not is_global.all():
        assert layout.base_va[is_global].max() < layout.base_va[~is_global].min()


def two_kernels() -> Workload:
    builder = WorkloadBuilder("two")
    a = builder.tensor("a", 8 * KIB, TensorKind.WEIGHT, is_global=True)
    b = builder.tensor("b", 16 * KIB, TensorKind.ACTIVATION)
    builder.kernel("first", 1.0, inputs=[a], outputs=[b])
    builder.kernel("second", 1.0, inputs=[b, a], outputs=[b])
    return builder.build()


def test_operands_of_different_length_are_gone_through_side_by_side() -> None:
    workload = two_kernels()
    layout = lay_out(workload, 4 * KIB)
    stream = lower(workload, layout, requesters=1, kernels=range(1))
    base = {"a": int(layout.base_va[0]), "b": int(layout.base_va[1])}
    seen = [
        ("a" if va < base["b"] else "b", (va - base["a" if va < base["b"] else "b"]) // 4096)
        for va in stream.va.tolist()
    ]
    assert seen == [("b", 0), ("a", 0), ("b", 1), ("b", 2), ("a", 1), ("b", 3)]


def test_in_place_operand_is_read_before_it_is_written() -> None:
    workload = two_kernels()
    stream = lower(workload, lay_out(workload, 4 * KIB), requesters=1, kernels=range(1, 2))
    first_of_b = stream.va == stream.va[stream.access == AccessKind.WRITE][0]
    assert stream.access[first_of_b].tolist() == [AccessKind.READ, AccessKind.WRITE]


def test_save_and_load(tmp_path: Path) -> None:
    stream = lower(
        two_kernels(), lay_out(two_kernels(), 4 * KIB), touch_bytes=1 * KIB, requesters=3
    )
    stream.save(tmp_path / "s.npz")
    again = AccessStream.load(tmp_path / "s.npz")
    assert (again.workload, again.page_bytes, again.touch_bytes, again.requesters) == (
        "two",
        4096,
        1024,
        3,
    )
    for name in ("va", "requester", "access", "kernel"):
        assert (getattr(stream, name) == getattr(again, name)).all()
    stream.save(tmp_path / "t.npz")
    assert (tmp_path / "s.npz").read_bytes() == (tmp_path / "t.npz").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"touch_bytes": 3000}, "touch granularity is 3000 bytes; use a power of two"),
        ({"touch_bytes": 8192}, "use a power of two from 128 to the page size, 4096"),
        ({"requesters": 0}, "requesters must be 1 to 65535, not 0"),
        ({"kernels": range(3)}, "kernels 0 to 3 are not a window of the 2 kernels"),
    ],
)
def test_bad_arguments(arguments, message) -> None:
    with pytest.raises(InputError, match=message):
        lower(two_kernels(), lay_out(two_kernels(), 4 * KIB), **arguments)


def test_bad_page_size() -> None:
    with pytest.raises(
        InputError, match="page size is 5000 bytes; use a power of two from 4096 on"
    ):
        lay_out(two_kernels(), 5000)
