"""Small pysim benches shared by the tests of `hw/`."""

import random

import pytest
from amaranth.sim import Simulator

from pagetide.hw.bus.axi4 import Response


# Amaranth's `repeat` and `until` are avoided here: a bench left hanging in them upsets the garbage
# collector, which then hides why it hung.
async def wait(ctx, cycles):
    """Let `cycles` clock edges pass."""
    for _ in range(cycles):
        await ctx.tick()


async def until(ctx, signal):
    """Let clock edges pass up to and including the first at which `signal` is 1."""
    seen = False
    while not seen:
        _, _, seen = await ctx.tick().sample(signal)


async def stream_put(ctx, stream, value):
    """Offer one item (a dict of fields or a plain value) until it is taken."""
    if isinstance(value, dict):
        for name, field in value.items():
            ctx.set(getattr(stream.payload, name), field)
    else:
        ctx.set(stream.payload, value)
    ctx.set(stream.valid, 1)
    await until(ctx, stream.ready)
    ctx.set(stream.valid, 0)


async def stream_get(ctx, stream):
    """Take one item."""
    ctx.set(stream.ready, 1)
    valid = False
    while not valid:
        _, _, valid, payload = await ctx.tick().sample(stream.valid, stream.payload)
    ctx.set(stream.ready, 0)
    return payload


def stream_rules(stream):
    """Background bench: what is offered stays, unchanged, until it is taken."""

    async def check(ctx):
        held = None
        while True:
            valid, ready, payload = (
                await ctx.tick().sample(stream.valid, stream.ready, stream.payload)
            )[2:]
            bits = payload if isinstance(payload, int) else payload.as_bits()
            if held is not None:
                assert valid, "an offered item was withdrawn"
                assert bits == held, "an offered item changed"
            held = bits if valid and not ready else None

    return check


class Memory:
    """AXI4 read memory over a `TableImage`: latency in cycles (or a function giving it), errors, random order and stalls.

    `latency` counts from the cycle in which AR is taken to the first in which R is offered. Reads outside the image give DECERR.
    """

    def __init__(self, port, image, *, latency=1, seed=0, stall=0.0, errors=()):
        self.port, self.image, self.stall = port, image, stall
        self.latency = latency if callable(latency) else lambda: latency
        self.errors = dict.fromkeys(errors, Response.SLVERR)
        self.random = random.Random(seed)
        self.reads = []  # (cycle, address, id, user)
        self.waiting = []  # (due cycle, id, address)
        self.cycle = 0

    async def run(self, ctx):
        port = self.port
        lanes = len(port.r.payload.data) // 64
        offered = None
        while True:
            if offered is None:
                due = [w for w in self.waiting if w[0] <= self.cycle]
                if due and self.random.random() >= self.stall:
                    offered = self.random.choice(due) if self.stall else min(due)
                    self.waiting.remove(offered)
                    _, ident, address = offered
                    line = address & ~(8 * lanes - 1)
                    words = [self.image.read(line + 8 * k) for k in range(lanes)]
                    response = self.errors.get(address & ~15, Response.OKAY)
                    if self.image.read(address) is None:
                        response = Response.DECERR
                    value = 0
                    for word in reversed(words):
                        value = value << 64 | (word or 0)
                    if response != Response.OKAY:
                        value = self.random.getrandbits(64 * lanes)
                    ctx.set(port.r.payload.id, ident)
                    ctx.set(port.r.payload.data, value)
                    ctx.set(port.r.payload.resp, response)
                    ctx.set(port.r.payload.last, 1)
            ctx.set(port.r.valid, offered is not None)
            ctx.set(port.ar.ready, self.random.random() >= self.stall)
            _, _, ar_valid, ar_ready, ar, r_ready = await ctx.tick().sample(
                port.ar.valid, port.ar.ready, port.ar.payload, port.r.ready
            )
            if ar_valid and ar_ready:
                assert (ar.len, ar.size, int(ar.burst)) == (0, 4, 1)
                assert ar.addr % 16 == 0
                self.reads.append((self.cycle, ar.addr, ar.id, ar.user))
                self.waiting.append((self.cycle + self.latency(), ar.id, ar.addr))
            if offered is not None and r_ready:
                offered = None
            self.cycle += 1


class Tools:
    """What the tests use of this file."""

    put = staticmethod(stream_put)
    get = staticmethod(stream_get)
    wait = staticmethod(wait)
    until = staticmethod(until)
    rules = staticmethod(stream_rules)
    Memory = Memory

    @staticmethod
    def simulate(dut, *benches, background=(), cycles=20_000):
        """Run `benches` to their ends, with `background` ones beside them; a hang ends with an error after `cycles`."""

        async def watchdog(ctx):
            await wait(ctx, cycles)
            raise AssertionError(f"not finished after {cycles} cycles")

        simulator = Simulator(dut)
        simulator.add_clock(1e-6)
        for bench in benches:
            simulator.add_testbench(bench)
        for bench in (*background, watchdog):
            simulator.add_testbench(bench, background=True)
        simulator.run()


@pytest.fixture
def pysim():
    """Tools for tests in Amaranth's simulator."""
    return Tools
