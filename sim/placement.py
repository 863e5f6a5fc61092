"""Placement: where the pages of a workload are, and the page table that says so.

The table is a snapshot: it does not change while a stream runs. Frames of GPU memory are those of a real pool: a tensor takes
free frames at its birth and gives them back at its death, so that frames are used again as in a running iteration.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pagetide.hw.pagetable.nvidia_v2 import PageSize
from pagetide.hw.pagetable.table import Location, PageTable
from pagetide.model.errors import InputError
from pagetide.model.plan import Action, MigrationPlan, Target
from pagetide.model.vitality import analyse
from pagetide.model.workload import Workload
from pagetide.model.workload.lowering import VaLayout

__all__ = ["Placement", "locations_of_plan", "page_size_of", "place"]


@dataclass(frozen=True, eq=False)
class Placement:
    """Location and frame of every page.

    Attributes:
        layout: addresses of the tensors.
        location: uint8[T] of `Location` for each tensor.
        table: the page table.
    """

    layout: VaLayout
    location: NDArray[np.uint8]
    table: PageTable


def page_size_of(page_bytes: int) -> PageSize:
    """Return the leaf size for a granularity; raises `InputError` if the format has none."""
    for size in PageSize:
        if size.bytes == page_bytes:
            return size
    known = ", ".join(str(size.bytes) for size in PageSize)
    raise InputError(f"the page-table format has no page of {page_bytes} bytes; there are {known}")


def locations_of_plan(workload: Workload, plan: MigrationPlan) -> NDArray[np.uint8]:
    """Return a location for each tensor, uint8[T]: where the plan keeps it while it lies idle.

    A tensor that the plan moves to the SSD is on flash, one that it moves to host memory is in host memory, all others
    are in GPU memory. The snapshot has all three kinds of entry that the MMU meets.
    """
    location = np.full(len(workload.tensors), Location.GPU, dtype=np.uint8)
    out = plan.action == Action.PRE_EVICT
    location[plan.tensor[out & (plan.target == Target.HOST)]] = Location.HOST
    location[plan.tensor[out & (plan.target == Target.SSD)]] = Location.FLASH
    return location


def place(
    workload: Workload,
    layout: VaLayout,
    *,
    location: NDArray[np.uint8] | Sequence[int] | None = None,
    mapped: NDArray[np.integer[Any]] | None = None,
    gpu_bytes: int = 40 << 30,
    pa_bits: int = 47,
    memory_address_bits: int = 47,
) -> Placement:
    """Give every page its frame and build the page table.

    Args:
        workload: whose tensors are placed.
        layout: their addresses and the page size.
        location: `Location` of each tensor, [T]; GPU for all if not given. What does not fit GPU memory when it is born is
            in host memory instead.
        mapped: ids of the tensors that are entered in the table; all if not given. For a window of kernels its operands do, and
            the table of a large workload with small pages takes gigabytes. Frames do not depend on it.
        gpu_bytes: size of the pool of GPU frames.
        pa_bits, memory_address_bits: address widths of the MMU.

    Raises:
        InputError: the page size is none of the format's.
    """
    page_size = page_size_of(layout.page_bytes)
    where = np.full(len(workload.tensors), Location.GPU, dtype=np.uint8)
    if location is not None:
        where = np.array(location, dtype=np.uint8)
    vitality = analyse(workload)
    first_page = np.cumsum(layout.pages) - layout.pages
    frame = np.zeros(int(layout.pages.sum()), dtype=np.int64)
    step = layout.page_bytes >> 12

    # Births and deaths in order of time; at one kernel the born come first, for a dying tensor is still in use there.
    alive = np.flatnonzero(vitality.birth >= 0)
    events = np.concatenate([vitality.birth[alive] * 2, vitality.death[alive] * 2 + 1])
    order = np.argsort(events, kind="stable")
    free = np.arange(gpu_bytes // layout.page_bytes)[::-1].copy()
    left = len(free)
    host_next = 0
    for n in order.tolist():
        tensor = int(alive[n % len(alive)])
        pages = slice(int(first_page[tensor]), int(first_page[tensor] + layout.pages[tensor]))
        count = int(layout.pages[tensor])
        if n >= len(alive):
            if where[tensor] == Location.GPU:
                free[left : left + count] = frame[pages]
                left += count
            continue
        if where[tensor] == Location.GPU and count > left:
            where[tensor] = Location.HOST
        if where[tensor] == Location.GPU:
            left -= count
            frame[pages] = free[left : left + count]
        elif where[tensor] != Location.NONE:
            frame[pages] = host_next + np.arange(count)
            host_next += count
    table = PageTable(pa_bits=pa_bits, memory_address_bits=memory_address_bits)
    chosen = np.arange(len(workload.tensors)) if mapped is None else np.unique(mapped)
    pages_of = layout.pages[chosen]
    tensor_of_page = np.repeat(chosen, pages_of)
    page = np.arange(len(tensor_of_page)) - np.repeat(np.cumsum(pages_of) - pages_of, pages_of)
    table.map_many(
        layout.base_va[tensor_of_page] + (page * layout.page_bytes).astype(np.uint64),
        page_size,
        where[tensor_of_page],
        frame[first_page[tensor_of_page] + page] * step,
    )
    return Placement(layout=layout, location=where, table=table)
