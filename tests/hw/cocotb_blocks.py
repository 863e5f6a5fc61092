"""cocotb tests of L1 TLB, walker and the whole MMU against the golden page table; `test_cocotb_blocks.py` runs them.

The page table changes while the design works. A `History` keeps every state of the table with the cycles between which a translation may rest
on it: from the change that made it to the acknowledgement of the invalidation that ended it.
"""

import json
import os
import random

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, FallingEdge, ReadOnly

from pagetide.hw.config import MmuConfig
from pagetide.hw.pagetable.nvidia_v2 import Access, PageSize, Status
from pagetide.hw.pagetable.randomised import random_table
from pagetide.hw.pagetable.table import Location
from pagetide.hw.tlb.l1 import L1Tlb
from pagetide.hw.top import Mmu
from pagetide.hw.translation import RootLayout
from pagetide.hw.walker.walker import Walker
from pagetide.sim.axi_memory import AxiReadMemory
from pagetide.sim.streams import StreamDriver, StreamMonitor, pack, random_gate

PARAMETERS = json.loads(os.environ.get("PAGETIDE_PARAMETERS", "{}"))
REQUESTS = int(os.environ.get("PAGETIDE_REQUESTS", "500"))
DENIED = (Status.PRIV, Status.RO, Status.ATOMIC)


class Cycle:
    """Number of the current cycle; a cycle begins at a falling edge and ends after the next rising one."""

    def __init__(self, dut):
        self.dut, self.now = dut, 0

    def start(self):
        cocotb.start_soon(self._run())

    async def _run(self):
        edge = FallingEdge(self.dut.clk)
        while True:
            await edge
            self.now += 1


class History:
    """States of a page table and when each may show."""

    def __init__(self, cycle, sample):
        self.cycle, self.sample = cycle, sample
        self.states = [[0, None, sample.table.image()]]  # made, ended, image

    @property
    def image(self):
        return self.states[-1][2]

    def change(self):
        """Remap some regions; what was there may show until `settle`."""
        self.sample.remap(random.randrange(1, 5))
        self.states.append([self.cycle.now, None, self.sample.table.image()])

    def settle(self):
        """All states but the last are gone from this cycle on."""
        for state in self.states[:-1]:
            if state[1] is None:
                state[1] = self.cycle.now

    def possible(self, va, access, begun):
        """Golden answers that a response in this cycle may carry, if its request was accepted in cycle `begun`."""
        now = self.cycle.now
        answers = []
        for _, ended, image in self.states:
            if ended is None or (ended >= now and ended >= begun):
                answers.append(image.translate(va, access))
        return answers


def check_response(item, golden, errors):
    """True if the response is the golden answer (or a bus error, where some were injected)."""
    status = item["status"]
    if status == Status.BUS_ERROR and errors:
        return (item["pa"], item["page_size"], item["aperture"]) == (0, 0, 0)
    located = golden.status in (Status.FLASH, Status.HOST_KEPT, Status.MIGRATING)
    return (
        status == golden.status
        and item["page_size"] == golden.page_size
        and item["aperture"] == golden.aperture
        and item["pa"] == (golden.flash_page if located else golden.pa)
    )


class Requester:
    """Sends random translations on one port and judges the responses."""

    def __init__(self, dut, cycle, history, path, layouts, id_bits, asid_bits, seed, errors):
        self.cycle, self.history, self.errors = cycle, history, errors
        self.random = random.Random(seed)
        self.free = list(range(1 << id_bits))
        self.asid_bits = asid_bits
        self.waiting = {}  # id -> (va, access, accepted cycle)
        self.sent = self.answered = self.hits = 0
        self.statuses = {}
        self.fetch, self.hot = [], [0] * 6
        self.driver = StreamDriver(
            dut, *path[0], layout=layouts[0], gate=random_gate(seed, self.random.uniform(0.3, 1))
        )
        self.monitor = StreamMonitor(
            dut,
            *path[1],
            layout=layouts[1],
            gate=random_gate(seed + 1, self.random.uniform(0.2, 1)),
        )
        self.driver.on_accept = self.accepted
        self.monitor.on_item = self.response

    def start(self):
        self.driver.start()
        self.monitor.start()
        self.more()

    def more(self):
        """Keep up to half of the ids on their way."""
        while self.sent < REQUESTS and len(self.free) > 1 and self.driver.idle:
            ident = self.free.pop(self.random.randrange(len(self.free)))
            access = Access(self.random.randrange(4))
            self.sent += 1
            self.driver.send(
                {
                    "id": ident,
                    "va": self.address(),
                    "access": access,
                    "asid": self.random.getrandbits(self.asid_bits) if self.asid_bits else 0,
                }
            )

    def address(self):
        """One of a few hot pages, or a new one in its place."""
        place = self.random.randrange(len(self.hot))
        if self.random.random() < 0.3:
            if not self.fetch:
                self.fetch = self.history.sample.addresses(64).tolist()
            self.hot[place] = self.fetch.pop()
        return self.hot[place] ^ self.random.getrandbits(12)

    def accepted(self, item):
        assert item["id"] not in self.waiting
        self.waiting[item["id"]] = (item["va"], item["access"], self.cycle.now)
        self.more()

    def response(self, item):
        assert item["id"] in self.waiting, f"response without a request: {item}"
        va, access, begun = self.waiting.pop(item["id"])
        self.free.append(item["id"])
        golden = self.history.possible(va, access, begun)
        assert any(check_response(item, g, self.errors()) for g in golden), (
            f"cycle {self.cycle.now}: {va:#x} {access.name} accepted in {begun}: got {item}, "
            f"golden {golden}"
        )
        self.statuses[Status(item["status"]).name] = (
            self.statuses.get(Status(item["status"]).name, 0) + 1
        )
        self.answered += 1
        self.hits += item["hit"]
        self.more()


async def begin(dut):
    dut.rst.value = 1
    Clock(dut.clk, 2, unit="ns").start()
    await ClockCycles(dut.clk, 3)
    await FallingEdge(dut.clk)
    dut.rst.value = 0


async def finish(dut, parties, limit):
    """Wait until all have their answers; a hang is an error."""
    for _ in range(limit):
        if all(p.answered == REQUESTS for p in parties):
            break
        await ClockCycles(dut.clk, 20)
    else:
        raise AssertionError(f"answers: {[p.answered for p in parties]} of {REQUESTS} each")
    await ClockCycles(dut.clk, 200)
    assert all(p.answered == REQUESTS for p in parties)


def note(**values):
    """Leave what the run covered for the calling test."""
    path = os.environ.get("PAGETIDE_NOTE")
    if path:
        with open(path, "w") as file:  # noqa: PTH123
            json.dump(values, file)


@cocotb.test()
async def mmu_random(dut):
    """Whole MMU: remaps and invalidations in flight, bus errors, reordered memory, backpressure everywhere."""
    config = MmuConfig.from_dict(PARAMETERS)
    component = Mmu(config)
    component._MustUse__used = True
    seed = cocotb.RANDOM_SEED
    random.seed(seed)
    cycle = Cycle(dut)
    sample = random_table(
        seed, pa_bits=config.pa_bits, memory_address_bits=config.memory_address_bits, regions=16
    )
    history = History(cycle, sample)
    injected = 0

    def error(address):
        nonlocal injected
        bad = random.random() < 0.004
        injected += bad
        return bad

    memory = AxiReadMemory(
        dut,
        "memory",
        ar_layout=component.memory.ar.payload.shape(),
        r_layout=component.memory.r.payload.shape(),
        read=lambda address: history.image.read(address),
        latency=lambda: random.randrange(1, 40),
        reorder=True,
        error=error,
        gate=random_gate(seed + 2, 0.6),
        seed=seed,
    )
    dut.root.value = pack(
        RootLayout(memory_address_bits=config.memory_address_bits),
        {"address": sample.table.root, "aperture": sample.table.root_aperture},
    )
    parties = [
        Requester(
            dut,
            cycle,
            history,
            (("requests", p), ("responses", p)),
            (component.requests[p].payload.shape(), component.responses[p].payload.shape()),
            config.id_width,
            config.asid_bits,
            seed + 10 * p,
            lambda: injected,
        )
        for p in range(config.ports)
    ]
    dut.invalidate__valid.value = 0
    dut.invalidate__payload.value = 0
    await begin(dut)
    cycle.start()
    memory.start()
    for party in parties:
        party.start()
    invalidations = 0

    async def change():
        nonlocal invalidations
        while True:
            await ClockCycles(dut.clk, random.choice((1, 5, 30, 300, 1500)))
            await FallingEdge(dut.clk)
            history.change()
            for _ in range(random.choice((0, 0, 3))):
                await FallingEdge(dut.clk)
            dut.invalidate__valid.value = 1
            await ReadOnly()
            while not int(dut.invalidate__ready.value):
                await FallingEdge(dut.clk)
                await ReadOnly()
            await FallingEdge(dut.clk)
            dut.invalidate__valid.value = 0
            await ReadOnly()
            while not int(dut.invalidate_done.value):
                await FallingEdge(dut.clk)
                await ReadOnly()
            history.settle()
            invalidations += 1

    cocotb.start_soon(change())
    await finish(dut, parties, 20 * REQUESTS)
    await ReadOnly()
    counters = {name: int(getattr(dut, path).value) for name, path in component.probes().items()}
    for p, party in enumerate(parties):
        assert counters[f"mmu.l1.{p}.lookups"] == REQUESTS
        assert counters[f"mmu.l1.{p}.hits"] == party.hits
        answered = sum(counters[f"mmu.l1.{p}.{kind}"] for kind in ("hits", "misses", "merges"))
        assert answered == REQUESTS
    assert counters["mmu.walker.reads"] == memory.reads
    misses = sum(counters[f"mmu.l1.{p}.misses"] for p in range(config.ports))
    assert counters["mmu.walker.walks"] + counters["mmu.walker.early_faults"] == misses
    assert counters["mmu.walker.bus_errors"] >= injected
    note(
        invalidations=invalidations,
        injected=injected,
        cycles=cycle.now,
        hits=sum(p.hits for p in parties),
        merges=sum(counters[f"mmu.l1.{p}.merges"] for p in range(config.ports)),
        dropped_fills=sum(counters[f"mmu.l1.{p}.dropped_fills"] for p in range(config.ports)),
        statuses={k: sum(p.statuses.get(k, 0) for p in parties) for k in Status.__members__},
    )


@cocotb.test()
async def mmu_directed(dut):
    """Whole MMU: fault, mend, replay; a remap with invalidation; ports do not disturb each other."""
    config = MmuConfig.from_dict(PARAMETERS)
    component = Mmu(config)
    component._MustUse__used = True
    sample = random_table(1, regions=4)
    table = sample.table
    base = 0x0_4000_0000
    image = None

    def publish():
        nonlocal image
        image = table.image()

    memory = AxiReadMemory(
        dut,
        "memory",
        ar_layout=component.memory.ar.payload.shape(),
        r_layout=component.memory.r.payload.shape(),
        read=lambda address: image.read(address),
        latency=10,
    )
    dut.root.value = pack(
        RootLayout(memory_address_bits=config.memory_address_bits),
        {"address": table.root, "aperture": table.root_aperture},
    )
    drivers, monitors = [], []
    for p in range(config.ports):
        drivers.append(
            StreamDriver(dut, "requests", p, layout=component.requests[p].payload.shape())
        )
        monitors.append(
            StreamMonitor(dut, "responses", p, layout=component.responses[p].payload.shape())
        )
    dut.invalidate__valid.value = 0
    await begin(dut)
    memory.start()
    for party in drivers + monitors:
        party.start()

    async def translate(p, va, access=Access.READ):
        drivers[p].send({"id": 1, "va": va, "access": access})
        for _ in range(500):
            await FallingEdge(dut.clk)
            if monitors[p].items:
                return monitors[p].items.popleft()
        raise AssertionError("no response")

    async def invalidate():
        await FallingEdge(dut.clk)
        dut.invalidate__valid.value = 1
        await ReadOnly()
        assert int(dut.invalidate__ready.value)
        await FallingEdge(dut.clk)
        dut.invalidate__valid.value = 0
        for _ in range(100):
            await ReadOnly()
            if int(dut.invalidate_done.value):
                return
            await FallingEdge(dut.clk)
        raise AssertionError("invalidation not acknowledged")

    # A page on flash: its page number comes back at no extra read, and nothing is cached.
    table.map(base, PageSize.SIZE_2M, Location.FLASH, 0x12_3456_7800)
    publish()
    answer = await translate(0, base + 0x1234)
    assert (answer["status"], answer["flash_page"]) == (Status.FLASH, 0x12_3456_7800)
    assert memory.reads == 4
    # It arrives in GPU memory: the replay finds it with no invalidation.
    table.map(base, PageSize.SIZE_2M, Location.GPU, 0x8000)
    publish()
    answer = await translate(0, base + 0x1234)
    assert (answer["status"], answer["pa"], answer["hit"]) == (Status.OK, 0x800_1234, 0)
    answer = await translate(0, base + 0x1F_FFFF, Access.ATOMIC)
    assert (answer["status"], answer["pa"], answer["hit"]) == (Status.OK, 0x81F_FFFF, 1)
    assert memory.reads == 8
    # Other ports have TLBs of their own.
    for p in range(1, config.ports):
        answer = await translate(p, base)
        assert (answer["pa"], answer["hit"]) == (0x800_0000, 0)
    # It moves: the old translation may show until the invalidation is acknowledged, never after.
    table.map(base, PageSize.SIZE_2M, Location.HOST, 0x4_0000)
    publish()
    assert (await translate(0, base))["pa"] == 0x800_0000
    await invalidate()
    for p in range(config.ports):
        answer = await translate(p, base + 5)
        assert (answer["pa"], answer["aperture"], answer["hit"]) == (0x4000_0005, 2, 0)
    # On its way: every access says so.
    table.map(base, PageSize.SIZE_2M, Location.MIGRATING, 7)
    publish()
    await invalidate()
    for access in Access:
        answer = await translate(0, base, access)
        assert (answer["status"], answer["flash_page"]) == (Status.MIGRATING, 7)


def walk_answer(image, va, layout, tag):
    """WalkResponse that a right walker gives: permissions come back as bits."""
    golden = image.translate(va)
    if golden.status == Status.PRIV:
        return pack(
            layout,
            {"tag": tag, "status": Status.OK, "page_size": golden.page_size, "privilege": 1},
        )
    fields = {"tag": tag, "status": golden.status, "page_size": golden.page_size}
    if golden.status == Status.OK:
        read_only = image.translate(va, Access.WRITE).status == Status.RO
        atomic = image.translate(va, Access.ATOMIC).status
        fields |= {
            "aperture": golden.aperture,
            "frame": golden.pa >> 12 & ~((golden.page_size.bytes >> 12) - 1),
            "read_only": int(read_only),
            # Not seen, and of no effect, on a page that is read-only.
            "atomic_disable": int(atomic == Status.ATOMIC),
        }
    else:
        fields["frame"] = golden.flash_page
    return pack(layout, fields)


@cocotb.test()
async def l1_random(dut):
    """L1 TLB alone: walks answered in any order, after any time, from the table as it was at any moment of the walk."""
    component = L1Tlb(**PARAMETERS)
    component._MustUse__used = True
    seed = cocotb.RANDOM_SEED
    random.seed(seed)
    cycle = Cycle(dut)
    history = History(cycle, random_table(seed, regions=12, malformed=0.1))
    party = Requester(
        dut,
        cycle,
        history,
        (("requests",), ("responses",)),
        (component.requests.payload.shape(), component.responses.payload.shape()),
        PARAMETERS["id_bits"],
        PARAMETERS["asid_bits"],
        seed,
        lambda: 0,
    )
    misses = StreamMonitor(
        dut, "misses", layout=component.misses.payload.shape(), gate=random_gate(seed + 5, 0.5)
    )
    walks = []
    layout = component.fills.payload.shape()

    def miss(item):
        assert item["tag"] not in [w["tag"] for w in walks], "two walks of one slot"
        assert len(walks) < PARAMETERS["miss_slots"]
        # Half of the walks read the table now, half when they end.
        item["answer"] = random.choice(
            (walk_answer(history.image, item["vpn"] << 12, layout, item["tag"]), None)
        )
        walks.append(item)

    misses.on_item = miss
    dut.fills__valid.value = 0
    dut.invalidate.value = 0
    await begin(dut)
    cycle.start()
    misses.start()
    party.start()
    invalidations = 0

    async def fill():
        while True:
            await FallingEdge(dut.clk)
            ended = walks and random.random() < 0.2
            if ended:
                walk = walks.pop(random.randrange(len(walks)))
                dut.fills__payload.value = walk["answer"] or walk_answer(
                    history.image, walk["vpn"] << 12, layout, walk["tag"]
                )
            dut.fills__valid.value = int(bool(ended))

    async def change():
        nonlocal invalidations
        while True:
            await ClockCycles(dut.clk, random.choice((1, 5, 30, 300, 1500)))
            await FallingEdge(dut.clk)
            history.change()
            for _ in range(random.choice((0, 0, 3))):
                await FallingEdge(dut.clk)
            dut.invalidate.value = 1
            await FallingEdge(dut.clk)
            dut.invalidate.value = 0
            await ReadOnly()
            while not int(dut.quiet.value):
                await FallingEdge(dut.clk)
                await ReadOnly()
            history.settle()
            invalidations += 1

    cocotb.start_soon(fill())
    cocotb.start_soon(change())
    await finish(dut, [party], 20 * REQUESTS)
    note(invalidations=invalidations, cycles=cycle.now, hits=party.hits, statuses=party.statuses)


class WalkParty:
    """Counts and judges the answers of a walker."""

    def __init__(self, dut, component, image, sample, seed, injected):
        self.image, self.injected = image, injected
        self.answered = self.sent = 0
        self.statuses, self.levels = {}, {}
        self.sample, self.seed = sample, seed
        self.tag_bits = PARAMETERS["tag_bits"]
        self.waiting = {}
        self.free = list(range(1 << self.tag_bits))
        self.fetch = []
        self.driver = StreamDriver(
            dut,
            "requests",
            layout=component.requests.payload.shape(),
            gate=random_gate(seed, 0.8),
        )
        self.monitor = StreamMonitor(
            dut,
            "responses",
            layout=component.responses.payload.shape(),
            gate=random_gate(seed + 1, 0.6),
        )
        self.driver.on_accept = lambda item: self.more()
        self.monitor.on_item = self.response

    def more(self):
        while self.sent < REQUESTS and self.free and self.driver.idle:
            if not self.fetch:
                self.fetch = self.sample.addresses(64).tolist()
            tag = self.free.pop()
            self.waiting[tag] = self.fetch.pop()
            self.driver.send({"tag": tag, "vpn": self.waiting[tag] >> 12})
            self.sent += 1

    def response(self, item):
        assert item["tag"] in self.waiting, f"answer without a request: {item}"
        va = self.waiting.pop(item["tag"])
        self.free.append(item["tag"])
        golden = self.image.translate(va)
        status = Status(item["status"])
        if status == Status.BUS_ERROR and self.injected():
            assert (item["frame"], item["word"]) == (0, 0)
        else:
            denied = golden.status in DENIED
            assert status == (Status.OK if denied else golden.status), (hex(va), item, golden)
            assert item["levels"] == golden.levels, (hex(va), item, golden)
            assert item["page_size"] == golden.page_size
            if denied:
                assert item["privilege"]
            elif status == Status.OK:
                size = PageSize(item["page_size"])
                assert item["frame"] << 12 == golden.pa & ~(size.bytes - 1)
                assert item["aperture"] == golden.aperture
                for access, bit, code in (
                    (Access.WRITE, "read_only", Status.RO),
                    (Access.ATOMIC, "atomic_disable", Status.ATOMIC),
                ):
                    judged = self.image.translate(va, access).status
                    if judged == code or not item["read_only"]:
                        assert item[bit] == int(judged == code)
            else:
                assert item["frame"] == golden.flash_page
        self.statuses[status.name] = self.statuses.get(status.name, 0) + 1
        self.levels[item["levels"]] = self.levels.get(item["levels"], 0) + 1
        self.answered += 1
        self.more()


@cocotb.test()
async def walker_random(dut):
    """Walker alone: reordered memory with errors, backpressure on answers and reads."""
    component = Walker(**PARAMETERS)
    component._MustUse__used = True
    seed = cocotb.RANDOM_SEED
    random.seed(seed)
    cycle = Cycle(dut)
    sample = random_table(
        seed,
        regions=80,
        malformed=0.5,
        pa_bits=PARAMETERS["pa_bits"],
        memory_address_bits=PARAMETERS["memory_address_bits"],
    )
    image = sample.table.image()
    injected = 0

    def error(address):
        nonlocal injected
        bad = random.random() < 0.01
        injected += bad
        return bad

    memory = AxiReadMemory(
        dut,
        "memory",
        ar_layout=component.memory.ar.payload.shape(),
        r_layout=component.memory.r.payload.shape(),
        read=image.read,
        latency=lambda: random.choice((1, 2, 5, 60)),
        reorder=True,
        error=error,
        gate=random_gate(seed + 2, 0.7),
        seed=seed,
    )
    dut.root.value = pack(
        RootLayout(memory_address_bits=PARAMETERS["memory_address_bits"]),
        {"address": sample.table.root, "aperture": sample.table.root_aperture},
    )
    party = WalkParty(dut, component, image, sample, seed, lambda: injected)
    await begin(dut)
    cycle.start()
    memory.start()
    party.monitor.start()
    party.driver.start()
    party.more()
    await finish(dut, [party], 20 * REQUESTS)
    await ReadOnly()
    assert int(dut.active.value) == 0
    assert int(dut.counters__walks.value) == REQUESTS
    assert int(dut.counters__reads.value) == memory.reads
    assert int(dut.counters__bus_errors.value) >= injected
    note(cycles=cycle.now, injected=injected, statuses=party.statuses, levels=party.levels)
