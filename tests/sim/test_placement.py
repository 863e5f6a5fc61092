"""Placement: frames of live tensors are disjoint, the pool is kept, frames are used again, windows map a part."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagetide.hw.pagetable.nvidia_v2 import PteAperture, Status
from pagetide.hw.pagetable.table import Location
from pagetide.model.errors import InputError
from pagetide.model.vitality import analyse
from pagetide.model.workload import TensorKind, Workload, WorkloadBuilder
from pagetide.model.workload.lowering import lay_out
from pagetide.sim.placement import place

PAGE = 4096


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Each tensor is used in some kernels, at random."""
    kernels = draw(st.integers(1, 6))
    builder = WorkloadBuilder("random")
    uses: list[set[int]] = [set() for _ in range(kernels)]
    for n, pages in enumerate(draw(st.lists(st.integers(1, 5), min_size=1, max_size=8))):
        tensor = builder.tensor(
            f"t{n}", pages * PAGE - 1, TensorKind.ACTIVATION, is_global=draw(st.booleans())
        )
        for k in draw(st.sets(st.integers(0, kernels - 1), min_size=1)):
            uses[k].add(tensor)
    for k, used in enumerate(uses):
        builder.kernel(f"k{k}", 1.0, outputs=sorted(used))
    return builder.build()


def pages_of(layout, tensor: int) -> np.ndarray:
    return layout.base_va[tensor] + np.arange(layout.pages[tensor], dtype=np.uint64) * np.uint64(
        PAGE
    )


@settings(deadline=None)
@given(workloads(), st.integers(0, 24))
def test_live_tensors_never_share_a_frame(workload: Workload, frames: int) -> None:
    layout = lay_out(workload, PAGE)
    placed = place(workload, layout, gpu_bytes=frames * PAGE)
    vitality = analyse(workload)
    for k in range(len(workload.kernels)):
        live = np.flatnonzero((vitality.birth <= k) & (k <= vitality.death))
        owners: set[tuple[int, int]] = set()
        count = 0
        for tensor in live.tolist():
            answers = placed.table.translate_many(pages_of(layout, tensor))
            assert (answers.status == Status.OK).all()
            on_gpu = placed.location[tensor] == Location.GPU
            want = PteAperture.VIDEO if on_gpu else PteAperture.SYSTEM_COHERENT
            assert (answers.aperture == want).all()
            if on_gpu:
                assert int(answers.pa.max()) < frames * PAGE
            owners |= set(zip(answers.aperture.tolist(), answers.pa.tolist(), strict=True))
            count += len(answers.pa)
        assert len(owners) == count


def in_turn(tensors: int) -> Workload:
    """Tensors of 3 pages, each alive in one kernel of its own."""
    builder = WorkloadBuilder("in-turn")
    for n in range(tensors):
        tensor = builder.tensor(f"t{n}", 3 * PAGE, TensorKind.ACTIVATION)
        builder.kernel(f"k{n}", 1.0, outputs=[tensor])
    return builder.build()


def test_frames_are_used_again_and_nothing_spills_that_fits() -> None:
    workload = in_turn(5)
    layout = lay_out(workload, PAGE)
    placed = place(workload, layout, gpu_bytes=3 * PAGE)
    assert (placed.location == Location.GPU).all()
    addresses = {
        tuple(sorted(placed.table.translate_many(pages_of(layout, n)).pa.tolist()))
        for n in range(5)
    }
    assert len(addresses) == 1
    spilled = place(workload, layout, gpu_bytes=3 * PAGE - 1)
    assert (spilled.location == Location.HOST).all()


def test_locations_that_are_asked_for() -> None:
    workload = in_turn(4)
    layout = lay_out(workload, PAGE)
    where = [Location.GPU, Location.HOST, Location.FLASH, Location.NONE]
    table = place(workload, layout, location=where).table
    status = [int(table.translate_many(pages_of(layout, n)).status[0]) for n in range(4)]
    assert status == [Status.OK, Status.OK, Status.FLASH, Status.NOT_RESIDENT]


def test_a_window_maps_its_operands_as_the_whole_does() -> None:
    workload = in_turn(5)
    layout = lay_out(workload, PAGE)
    whole = place(workload, layout, gpu_bytes=7 * PAGE).table
    part = place(workload, layout, gpu_bytes=7 * PAGE, mapped=np.array([3, 1, 3])).table
    for n in range(5):
        va = pages_of(layout, n)
        answers = part.translate_many(va)
        if n in (1, 3):
            assert (answers.pa == whole.translate_many(va).pa).all()
            assert (answers.status == Status.OK).all()
        else:
            assert (answers.status != Status.OK).all()
    empty = place(workload, layout, mapped=np.array([], dtype=np.int32)).table
    assert (empty.translate_many(pages_of(layout, 0)).status != Status.OK).all()


def test_page_size_that_the_format_lacks() -> None:
    workload = in_turn(1)
    with pytest.raises(InputError, match="no page of 8192 bytes; there are 4096, 65536, 2097152"):
        place(workload, lay_out(workload, 8192))
