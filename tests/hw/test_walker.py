# amaranth: UnusedElaboratable=no
import dataclasses
import itertools
import random

import pytest

from pagetide.hw.pagetable.nvidia_v2 import (
    PDE,
    PTE,
    Level,
    PageSize,
    PdeAperture,
    Status,
)
from pagetide.hw.pagetable.randomised import random_table
from pagetide.hw.pagetable.table import Location, PageTable
from pagetide.hw.walker.walker import Walker

BASE = 0x1_2345_6780_0000


def make(**kwargs):
    parameters = {
        "contexts": 4,
        "tag_bits": 8,
        "pa_bits": 47,
        "memory_address_bits": 47,
        "counter_bits": 32,
    }
    return Walker(**{**parameters, **kwargs})


class Bench:
    """Walk a list of addresses; `answers` has one response per request, by tag (the index)."""

    def __init__(self, pysim, dut, image, vas, *, seed=0, gap=0.0, stall=0.0, **memory):
        self.dut, self.image, self.vas = dut, image, list(vas)
        self.memory = pysim.Memory(dut.memory, image, seed=seed, stall=stall, **memory)
        self.answers = {}
        self.order = []
        self.events = []  # (cycle, "start" or "done", context)
        self.pysim = pysim
        self.random = random.Random(seed)
        self.gap, self.stall = gap, stall

    async def send(self, ctx):
        for tag, va in enumerate(self.vas):
            while self.random.random() < self.gap:
                await ctx.tick()
            await self.pysim.put(ctx, self.dut.requests, {"tag": tag, "vpn": va >> 12})

    async def receive(self, ctx):
        dut = self.dut
        while len(self.answers) < len(self.vas):
            ctx.set(dut.responses.ready, self.random.random() >= self.stall)
            _, _, valid, ready, answer = await ctx.tick().sample(
                dut.responses.valid, dut.responses.ready, dut.responses.payload
            )
            if valid and ready:
                assert answer.tag not in self.answers, "two answers for one request"
                assert answer.tag < len(self.vas)
                self.answers[answer.tag] = answer
                self.order.append(answer.tag)
        # Nothing more comes, and every context is free again.
        ctx.set(dut.responses.ready, 1)
        for _ in range(20):
            _, _, valid = await ctx.tick().sample(dut.responses.valid)
            assert not valid
        assert ctx.get(dut.active) == 0
        self.counters = {
            name: ctx.get(getattr(dut.counters, name)) for name in dut.counters.signature.members
        }

    async def watch(self, ctx):
        cycle = 0
        dut = self.dut
        while True:
            _, _, start, begun, done, ended = await ctx.tick().sample(
                dut.walk_start, dut.walk_start_context, dut.walk_done, dut.walk_done_context
            )
            if done:
                self.events.append((cycle, "done", ended))
            if start:
                self.events.append((cycle, "start", begun))
            cycle += 1

    async def root(self, ctx):
        ctx.set(self.dut.root.address, self.image.root | 0x7FF)  # low bits are ignored
        ctx.set(self.dut.root.aperture, self.image.root_aperture)
        ctx.set(self.dut.root.va_limit, self.image.va_limit)

    def run(self):
        self.pysim.simulate(
            self.dut,
            self.root,
            self.send,
            self.receive,
            background=[
                self.memory.run,
                self.watch,
                self.pysim.rules(self.dut.responses),
                self.pysim.rules(self.dut.memory.ar),
            ],
        )
        return self

    def check(self):
        """Compare every answer with the golden walk."""
        for tag, va in enumerate(self.vas):
            self.check_one(tag, self.image.translate(va))

    def check_one(self, tag, golden):
        answer, va = self.answers[tag], self.vas[tag]
        status = Status(answer.status)
        if golden.status == Status.PRIV:
            # The walker does not judge permissions.
            assert (status, answer.privilege) == (Status.OK, 1), hex(va)
        else:
            assert status == golden.status, hex(va)
        assert answer.levels == golden.levels, hex(va)
        if status == Status.OK and golden.status == Status.OK:
            size = PageSize(answer.page_size)
            assert size == golden.page_size
            assert answer.aperture == golden.aperture
            assert answer.frame << 12 == golden.pa & ~(size.bytes - 1), hex(va)
        elif status >= Status.NOT_RESIDENT:
            assert answer.page_size == golden.page_size
            assert answer.frame == golden.flash_page
            assert answer.word >> 56 == golden.generation
        elif status != Status.OK:
            assert (answer.frame, answer.page_size, int(answer.aperture)) == (0, 0, 0)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "parameters",
    [
        {"contexts": 1},
        {"contexts": 4, "pipelined": True},
        {"contexts": 6, "memory_data_bits": 256, "memory_address_bits": 40, "pa_bits": 40},
        {"contexts": 3, "memory_data_bits": 512, "pipelined": True, "pa_bits": 58},
    ],
    ids=lambda p: "-".join(f"{k}={v}" for k, v in p.items()),
)
def test_random_walks_with_reordering_and_stalls(pysim, parameters, seed):
    dut = make(**parameters)
    sample = random_table(
        seed,
        pa_bits=parameters.get("pa_bits", 47),
        memory_address_bits=parameters.get("memory_address_bits", 47),
        malformed=0.4,
        aperture=PdeAperture(1 + seed),
    )
    rng = random.Random(seed)
    bench = Bench(
        pysim,
        dut,
        sample.table.image(),
        sample.addresses(70).tolist(),
        seed=seed,
        gap=0.2,
        stall=0.3,
        latency=lambda: rng.randrange(1, 20),
    ).run()
    bench.check()
    assert bench.counters["walks"] == 70
    assert bench.counters["reads"] == len(bench.memory.reads)
    # Malformed pointers aside, all tables lie in one aperture.
    system = sum(user for _, _, _, user in bench.memory.reads) / len(bench.memory.reads)
    assert system > 0.9 if seed else system < 0.1


@pytest.mark.parametrize("level", [level for level in Level if level != Level.PT4K_AFTER_64K])
@pytest.mark.parametrize("pipelined", [False, True])
def test_bus_error_at_each_level(pysim, level, pipelined):
    """L2 of the bug list: a failed table read ends the walk with a status, and only that walk."""
    table = PageTable()
    table.map(BASE, PageSize.SIZE_4K, Location.GPU, 1)
    other = BASE ^ (1 << 48)
    table.map(other, PageSize.SIZE_4K, Location.GPU, 2)
    if level == Level.PT64K:
        table.map(BASE + 0x1_0000, PageSize.SIZE_64K, Location.GPU, 16)
    error = int(table.entry_address(BASE, level)) & ~15
    bench = Bench(
        pysim,
        make(pipelined=pipelined),
        table.image(),
        [other, BASE, other, BASE, BASE],
        latency=3,
        errors=[error],
    ).run()
    for tag in (1, 3, 4):
        answer = bench.answers[tag]
        assert Status(answer.status) == Status.BUS_ERROR
        assert answer.levels == level.reads
        assert (answer.word, answer.frame) == (0, 0)
    # Root entries of both addresses share a 16-byte line half by half only if both VA[48] agree.
    for tag in (0, 2):
        expected = Status.BUS_ERROR if error == table.root else Status.OK
        assert Status(bench.answers[tag].status) in (expected, Status.OK)
    assert bench.counters["bus_errors"] >= 3


def test_early_faults_leave_contexts_alone(pysim):
    """L12 of the bug list: a walk that faults before its first read frees what it holds; others go on."""
    table = PageTable()
    table.map(BASE, PageSize.SIZE_2M, Location.GPU, 512)
    image = dataclasses.replace(table.image(), va_limit=(BASE >> 12) + 512)
    vas = [BASE, BASE + (1 << 21)] * 3 + [BASE + (1 << 30)] * 6 + [BASE] * 3
    bench = Bench(pysim, make(contexts=2), image, vas, latency=5).run()
    bench.check()
    assert bench.counters["early_faults"] == 9
    assert bench.counters["walks"] == 6


def test_no_root_table(pysim):
    table = PageTable()
    image = dataclasses.replace(table.image(), root_aperture=PdeAperture.INVALID)
    bench = Bench(pysim, make(), image, [BASE] * 10, stall=0.5).run()
    assert {Status(a.status) for a in bench.answers.values()} == {Status.UNBOUND_INST_BLOCK}
    assert bench.memory.reads == []


def test_va_limit_is_exclusive(pysim):
    table = PageTable()
    for page in range(4):
        table.map(BASE + (page << 12), PageSize.SIZE_4K, Location.GPU, page)
    image = dataclasses.replace(table.image(), va_limit=(BASE >> 12) + 2)
    bench = Bench(pysim, make(), image, [BASE + (p << 12) for p in range(4)]).run()
    assert [Status(bench.answers[p].status) for p in range(4)] == [
        Status.OK,
        Status.OK,
        Status.VA_LIMIT,
        Status.VA_LIMIT,
    ]


def test_a_slow_walk_does_not_hold_up_others(pysim):
    """Completion out of order: the first walk's memory answers last."""
    table = PageTable()
    fast = BASE + (1 << 40)
    table.map(BASE, PageSize.SIZE_4K, Location.GPU, 1)
    table.map(fast, PageSize.SIZE_4K, Location.GPU, 2)
    slow_table = int(table.entry_address(BASE, Level.PT4K)) & ~4095
    dut = make(contexts=2)
    bench = Bench(pysim, dut, table.image(), [BASE, fast, fast, fast])

    reads = bench.memory.reads
    bench.memory.latency = lambda: 300 if reads[-1][1] & ~4095 == slow_table else 2
    bench.run().check()
    assert bench.order == [1, 2, 3, 0]


def test_root_is_taken_when_the_walk_begins(pysim):
    """O4 and F7 of the bug list: a root changed during a walk belongs to later walks only."""
    first, second = PageTable(base=0x10_0000), PageTable(base=0x80_0000)
    first.map(BASE, PageSize.SIZE_2M, Location.GPU, 1 << 9)
    second.map(BASE, PageSize.SIZE_2M, Location.GPU, 2 << 9)
    a, b = first.image(), second.image()

    class Both:
        root, root_aperture, va_limit = a.root, a.root_aperture, 0

        def read(self, address):
            return a.read(address) if address < 0x80_0000 else b.read(address)

    dut = make(contexts=2)
    bench = Bench(pysim, dut, Both(), [BASE, BASE], latency=10)

    async def send(ctx):
        await pysim.put(ctx, dut.requests, {"tag": 0, "vpn": BASE >> 12})
        await pysim.until(ctx, dut.walk_start)
        ctx.set(dut.root.address, b.root)
        await pysim.put(ctx, dut.requests, {"tag": 1, "vpn": BASE >> 12})

    bench.send = send
    bench.run()
    assert bench.answers[0].frame == 1 << 9
    assert bench.answers[1].frame == 2 << 9


def test_location_word_comes_back_raw_without_another_read(pysim):
    table = PageTable()
    table.map(
        BASE, PageSize.SIZE_64K, Location.FLASH, 0xAB_CDEF_0123, generation=0x99, read_only=True
    )
    bench = Bench(pysim, make(), table.image(), [BASE]).run()
    word = table.image().read(int(table.entry_address(BASE, Level.PT64K)))
    assert bench.answers[0].word == word
    assert bench.answers[0].frame == 0xAB_CDEF_0123
    assert len(bench.memory.reads) == 5


def test_high_address_bits_reach_the_bus(pysim):
    """O10 of the bug list: address bits set everywhere, from root to frame."""
    top = (1 << 47) - (1 << 20)
    va = (1 << 49) - 0x1000
    table = PageTable(base=top, aperture=PdeAperture.SYSTEM_COHERENT)
    table.map(va, PageSize.SIZE_4K, Location.HOST, (1 << 35) - 1)
    bench = Bench(pysim, make(), table.image(), [va]).run()
    bench.check()
    assert all(address >= top for _, address, _, _ in bench.memory.reads)
    assert bench.answers[0].frame == (1 << 35) - 1


def test_table_pointer_beyond_the_port_is_refused_before_it_is_read(pysim):
    table = PageTable()
    table.poke(BASE, Level.PDE1, PDE.encode(aperture=2, address_sys=1 << 45))
    bench = Bench(pysim, make(), table.image(), [BASE]).run()
    assert Status(bench.answers[0].status) == Status.REGION
    assert len(bench.memory.reads) == 3


def test_permission_bits_come_back(pysim):
    table = PageTable()
    for n, bit in enumerate(("privilege", "read_only", "atomic_disable", "vol")):
        table.poke(BASE + (n << 12), Level.PT4K, PTE.encode(valid=1, address_vid=n, **{bit: 1}))
    bench = Bench(pysim, make(), table.image(), [BASE + (n << 12) for n in range(4)]).run()
    for n, bit in enumerate(("privilege", "read_only", "atomic_disable", "volatile")):
        answer = bench.answers[n]
        got = [answer.privilege, answer.read_only, answer.atomic_disable, answer.volatile]
        assert got == [int(k == n) for k in range(4)], bit


@pytest.mark.parametrize("pipelined", [False, True])
@pytest.mark.parametrize(("contexts", "latency"), [(1, 10), (3, 20), (8, 30)])
def test_cycles_per_walk_as_documented(pysim, contexts, latency, pipelined):
    """A context is held for L x (latency + 1) + 1 cycles from start to next start (+ L if pipelined)."""
    table = PageTable()
    walks = 4 * contexts
    for n in range(walks):
        table.map(BASE + (n << 21), PageSize.SIZE_2M, Location.GPU, n << 9)
    bench = Bench(
        pysim,
        make(contexts=contexts, pipelined=pipelined),
        table.image(),
        [BASE + (n << 21) for n in range(walks)],
        latency=latency,
    ).run()
    bench.check()
    starts = {}
    for cycle, kind, context in bench.events:
        if kind == "start":
            starts.setdefault(context, []).append(cycle)
    levels = 4
    expected = levels * (latency + 1 + pipelined) + 1
    for cycles in starts.values():
        assert len(cycles) == 4
        assert [b - a for a, b in itertools.pairwise(cycles)] == [expected] * 3


def test_refusals():
    for parameters, error, message in [
        ({"contexts": 0}, ValueError, "Walker contexts must be an integer from 1 to 64, not 0"),
        ({"contexts": 2.0}, TypeError, "Walker contexts must be an integer from 1 to 64, not 2.0"),
        ({"tag_bits": 17}, ValueError, "Walk tag width must be an integer from 0 to 16, not 17"),
        (
            {"pa_bits": 31},
            ValueError,
            "Physical address width must be an integer from 32 to 58, not 31",
        ),
        (
            {"memory_address_bits": 59},
            ValueError,
            "Memory address width must be an integer from 32 to 58, not 59",
        ),
        (
            {"memory_data_bits": 64},
            ValueError,
            "Memory data width must be 128, 256, 512 or 1024 bits, not 64",
        ),
        ({"counter_bits": 7}, ValueError, "Counter width must be an integer from 8 to 64, not 7"),
    ]:
        with pytest.raises(error) as caught:
            make(**parameters)
        assert str(caught.value) == message
