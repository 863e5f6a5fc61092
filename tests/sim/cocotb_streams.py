"""cocotb side of test_streams.py."""

import random
import sys
from pathlib import Path

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles

from pagetide.sim.streams import StreamDriver, StreamMonitor, random_gate

sys.path.insert(0, str(Path(__file__).parent))
from conftest import PAIR


async def reset(dut) -> None:
    dut.rst.value = 1
    Clock(dut.clk, 10, unit="ns").start()
    await ClockCycles(dut.clk, 2)
    dut.rst.value = 0


@cocotb.test()
async def items_pass_in_order(dut) -> None:
    chance = random.Random(cocotb.RANDOM_SEED)
    driver = StreamDriver(dut, "i", layout=PAIR, gate=random_gate(1, 0.7))
    monitor = StreamMonitor(dut, "o", layout=PAIR, gate=random_gate(2, 0.5))
    sent = [{"low": chance.randrange(32), "high": chance.randrange(2048)} for _ in range(300)]
    accepted = []
    driver.on_accept = accepted.append
    for item in sent:
        driver.send(item)
    await reset(dut)
    driver.start()
    monitor.start()
    while len(monitor.items) < len(sent):
        await ClockCycles(dut.clk, 10)
    assert list(monitor.items) == sent
    assert accepted == sent
    assert driver.idle


@cocotb.test()
async def full_rate_without_backpressure(dut) -> None:
    driver, monitor = StreamDriver(dut, "i", layout=PAIR), StreamMonitor(dut, "o", layout=PAIR)
    for n in range(100):
        driver.send({"low": n % 32})
    await reset(dut)
    driver.start()
    monitor.start()
    await ClockCycles(dut.clk, 103)
    assert len(monitor.items) >= 100
