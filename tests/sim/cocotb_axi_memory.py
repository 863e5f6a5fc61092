"""cocotb side of test_axi_memory.py."""

import sys
from pathlib import Path

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge

from pagetide.sim.axi_memory import DECERR, OKAY, SLVERR, AxiReadMemory
from pagetide.sim.streams import StreamDriver, StreamMonitor, random_gate

sys.path.insert(0, str(Path(__file__).parent))
from conftest import ANSWER, ASK, Reader

END = 1 << 20


def word(address):
    return address * 0x9E3779B97F4A7C15 % (1 << 64) if address < END else None


async def begin(dut, *, gate=None, **options):
    component = Reader()
    memory = AxiReadMemory(
        dut,
        "memory",
        ar_layout=component.memory.ar.payload.shape(),
        r_layout=component.memory.r.payload.shape(),
        read=word,
        **options,
    )
    driver = StreamDriver(dut, "i", layout=ASK)
    monitor = StreamMonitor(dut, "o", layout=ANSWER, **({"gate": gate} if gate else {}))
    dut.rst.value = 1
    Clock(dut.clk, 10, unit="ns").start()
    await ClockCycles(dut.clk, 2)
    dut.rst.value = 0
    for part in (memory, driver, monitor):
        part.start()
    return memory, driver, monitor


async def read(dut, driver, monitor, asked):
    for ident, address in asked:
        driver.send({"id": ident, "addr": address})
    for _ in range(50 * len(asked) + 1000):
        if len(monitor.items) == len(asked):
            return list(monitor.items)
        await RisingEdge(dut.clk)
    raise AssertionError(f"{len(monitor.items)} of {len(asked)} answers")


def data(address):
    base = address & ~15
    return word(base) | word(base + 8) << 64


@cocotb.test()
@cocotb.parametrize(latency=[1, 7])
async def constant_latency_in_order(dut, latency: int) -> None:
    memory, driver, monitor = await begin(dut, latency=latency)
    asked = [(n % 4, 16 * n) for n in range(20)]
    taken, given = [], []

    async def count() -> None:
        cycle = 0
        while True:
            await RisingEdge(dut.clk)
            cycle += 1
            if int(dut.memory__ar__valid.value) and int(dut.memory__ar__ready.value):
                taken.append(cycle)
            if int(dut.memory__r__valid.value) and int(dut.memory__r__ready.value):
                given.append(cycle)

    cocotb.start_soon(count())
    answers = await read(dut, driver, monitor, asked)
    assert [a["id"] for a in answers] == [ident for ident, _ in asked]
    assert [a["data"] for a in answers] == [data(address) for _, address in asked]
    assert {a["resp"] for a in answers} == {OKAY}
    assert {b - a for a, b in zip(taken, given, strict=False)} == {latency}
    assert memory.reads == len(asked)


@cocotb.test()
async def reordered_but_in_order_for_each_id(dut) -> None:
    chance = random_gate(3, 0.5)
    _, driver, monitor = await begin(
        dut, latency=lambda: 20 if chance() else 2, reorder=True, gate=random_gate(4, 0.6), seed=9
    )
    asked = [(n * 7 % 4, 16 * n) for n in range(200)]
    answers = await read(dut, driver, monitor, asked)
    got = [(a["id"], a["data"]) for a in answers]
    want = [(ident, data(address)) for ident, address in asked]
    assert got != want
    assert sorted(got) == sorted(want)
    for ident in range(4):
        assert [g for g in got if g[0] == ident] == [w for w in want if w[0] == ident]


@cocotb.test()
async def errors(dut) -> None:
    _, driver, monitor = await begin(dut, error=lambda address: address == 0x40)
    answers = await read(dut, driver, monitor, [(0, 0x40), (1, END), (2, END - 16)])
    assert {a["id"]: a["resp"] for a in answers} == {0: SLVERR, 1: DECERR, 2: OKAY}
