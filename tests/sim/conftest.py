"""Small designs and streams that the tests of the simulation base share."""

from pathlib import Path

import numpy as np
import pytest
from amaranth import Module
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from pagetide.hw.config import PRESETS, MmuConfig
from pagetide.hw.pagetable.nvidia_v2 import PageSize
from pagetide.hw.pagetable.table import Location, PageTable
from pagetide.model.workload.lowering import AccessStream

PAIR = data.StructLayout({"low": 5, "high": 11})


class Swap(wiring.Component):
    """One register stage that swaps nothing; with `faulty` it withdraws an item that is not taken."""

    i: In(stream.Signature(PAIR))
    o: Out(stream.Signature(PAIR))

    def __init__(self, *, faulty: bool = False) -> None:
        self._faulty = faulty
        super().__init__()

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.d.comb += self.i.ready.eq(~self.o.valid | self.o.ready)
        with m.If(self.i.ready):
            m.d.sync += [self.o.valid.eq(self.i.valid), self.o.payload.eq(self.i.payload)]
        if self._faulty:
            with m.If(self.o.valid & ~self.o.ready):
                m.d.sync += self.o.valid.eq(0)
        return m


@pytest.fixture(scope="session")
def pair_layout() -> data.StructLayout:
    return PAIR


@pytest.fixture(scope="session")
def swap() -> type[Swap]:
    return Swap


@pytest.fixture(scope="session")
def here() -> Path:
    return Path(__file__).parent


@pytest.fixture(scope="session")
def small() -> MmuConfig:
    """The configuration whose bench model all tests share: one build of half a minute."""
    return PRESETS["small"]


@pytest.fixture(scope="session")
def mixed_table() -> PageTable:
    """A table with all page sizes and locations, 2 MiB regions side by side from 1 GiB on."""
    table = PageTable()
    kinds = [
        Location.GPU,
        Location.HOST,
        Location.FLASH,
        Location.NONE,
        Location.MIGRATING,
        Location.HOST_KEPT,
    ]
    base = 1 << 30
    for n, size in enumerate((PageSize.SIZE_2M, PageSize.SIZE_64K, PageSize.SIZE_4K)):
        pages = 48
        va = base + (n << 28) + np.arange(pages, dtype=np.uint64) * np.uint64(size.bytes)
        where = np.array([kinds[i % len(kinds)] for i in range(pages)], dtype=np.uint8)
        table.map_many(
            va,
            size,
            where,
            (np.arange(pages) + 1 + 100 * n) * (size.bytes >> 12),
            read_only=np.arange(pages) % 4 == 3,
        )
    return table


@pytest.fixture(scope="session")
def mixed_stream(small: MmuConfig) -> AccessStream:
    """6000 accesses over `mixed_table`, holes included, in a random order."""
    chance = np.random.default_rng(7)
    count = 6000
    region = chance.integers(0, 3, count).astype(np.uint64)
    page_bytes = np.array([2 << 20, 64 << 10, 4 << 10], dtype=np.uint64)[region]
    va = (
        np.uint64(1 << 30)
        + (region << np.uint64(28))
        + chance.integers(0, 52, count).astype(np.uint64) * page_bytes
    )
    va += chance.integers(0, 4096, count).astype(np.uint64)
    return AccessStream(
        workload="mixed",
        page_bytes=4096,
        touch_bytes=4096,
        requesters=small.ports,
        va=va,
        requester=chance.integers(0, small.ports, count).astype(np.uint16),
        access=chance.integers(0, 3, count).astype(np.uint8),
        kernel=np.sort(chance.integers(0, 5, count)).astype(np.int32),
    )
