"""Small designs and streams that the tests of the simulation base share."""

from enum import IntEnum
from pathlib import Path

import numpy as np
import pytest
from amaranth import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from pagetide.hw.bus.axi4 import Axi4Signature, Feature
from pagetide.hw.config import PRESETS, MmuConfig
from pagetide.hw.pagetable.nvidia_v2 import PageSize, Status
from pagetide.hw.pagetable.table import Location, PageTable
from pagetide.hw.top import Mmu
from pagetide.model.workload.lowering import AccessStream

PAIR = data.StructLayout({"low": 5, "high": 11})
ASK = data.StructLayout({"id": 2, "addr": 32})
ANSWER = data.StructLayout({"id": 2, "data": 128, "resp": 2, "count": 8})


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


class Reader(wiring.Component):
    """Turns a stream of (id, address) into reads of an AXI4 port and hands the answers on."""

    i: In(stream.Signature(ASK))
    o: Out(stream.Signature(ANSWER))
    memory: Out(Axi4Signature(address_bits=32, data_bits=128, id_bits=2, features={Feature.READ}))

    def elaborate(self, platform: object) -> Module:
        m = Module()
        ar, r = self.memory.ar, self.memory.r
        m.d.comb += [
            ar.valid.eq(self.i.valid),
            ar.payload.id.eq(self.i.payload.id),
            ar.payload.addr.eq(self.i.payload.addr),
            ar.payload.size.eq(4),
            self.i.ready.eq(ar.ready),
            self.o.valid.eq(r.valid),
            self.o.payload.id.eq(r.payload.id),
            self.o.payload.data.eq(r.payload.data),
            self.o.payload.resp.eq(r.payload.resp),
            r.ready.eq(self.o.ready),
        ]
        # A clock, for the drivers; the answers counted, so that it is not optimised away.
        answers = Signal(8)
        m.d.sync += answers.eq(answers + (r.valid & r.ready))
        m.d.comb += self.o.payload.count.eq(answers)
        return m


class Fault(IntEnum):
    """What a `Liar` does; bits 23:21 of the address choose it."""

    NONE = 0
    WRONG_ADDRESS = 1
    WRONG_STATUS = 2
    ANSWERS_TWICE = 3
    CHANGES_ITS_ANSWER = 4
    WRONG_ID = 5
    NEVER_ANSWERS = 6


class Liar(Mmu):
    """A stand-in for an MMU without walks: answers every access with its own address, or wrongly, as the address says."""

    def elaborate(self, platform: object) -> Module:
        m = Module()
        for p in range(self.config.ports):
            request, response = self.requests[p], self.responses[p]
            busy, again, held = Signal(), Signal(), Signal()
            kept = Signal(request.payload.shape())
            fault = kept.va[21:24]
            m.d.comb += [
                request.ready.eq(~busy),
                response.valid.eq(busy & (fault != Fault.NEVER_ANSWERS)),
                response.payload.id.eq(kept.id + (fault == Fault.WRONG_ID)),
                response.payload.status.eq(Mux(fault == Fault.WRONG_STATUS, Status.PTE, Status.OK)),
                response.payload.page_size.eq(PageSize.SIZE_2M),
                response.payload.pa.eq(
                    kept.va
                    ^ ((fault == Fault.WRONG_ADDRESS) << 30)
                    ^ (((fault == Fault.CHANGES_ITS_ANSWER) & held) << 31)
                ),
            ]
            m.d.sync += held.eq(response.valid & ~response.ready)
            with m.If(request.valid & request.ready):
                m.d.sync += [
                    busy.eq(1),
                    kept.eq(request.payload),
                    again.eq(request.payload.va[21:24] == Fault.ANSWERS_TWICE),
                ]
            with m.If(response.valid & response.ready):
                m.d.sync += [busy.eq(again), again.eq(0)]
        return m


@pytest.fixture(scope="session")
def liar() -> type[Liar]:
    return Liar


@pytest.fixture(scope="session")
def fault() -> type[Fault]:
    return Fault


@pytest.fixture(scope="session")
def reader() -> type[Reader]:
    return Reader


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
