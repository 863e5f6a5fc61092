"""Timing waves of the MMU, recorded from the RTL in Amaranth's simulator.

``python docs/waves/mmu_waves.py`` writes them anew; `check` compares a file with what the RTL does, and is run with the
documentation's examples, so that a wave on a page is always what the hardware does.
"""

import json
from pathlib import Path

from amaranth.sim import Simulator

from pagetide.hw.config import MmuConfig
from pagetide.hw.pagetable.nvidia_v2 import PageSize
from pagetide.hw.pagetable.table import Location, PageTable
from pagetide.hw.top import Mmu

FOLDER = Path(__file__).parent
MEMORY_LATENCY = 2
PAGE = 2 << 20
VA_A, VA_B = 16 * PAGE, 17 * PAGE

# What happens: (cycle, request id, virtual address) and the cycles in which an invalidation is offered.
SCENARIOS = {
    "hit": {
        "title": "A hit, L1 latency 1: the answer comes in the cycle after the request",
        "requests": [
            (0, 0, VA_A),
            (24, 1, VA_A + 0x123),
            (25, 2, VA_A + 0x456),
            (26, 3, VA_A + 0x789),
        ],
        "show": (23, 30),
        "signals": [
            "requests.valid",
            "requests.ready",
            "requests.id",
            "responses.valid",
            "responses.id",
            "responses.hit",
        ],
    },
    "hit-latency-2": {
        "title": "A hit, L1 latency 2: match and select take a cycle each, still one request a cycle",
        "requests": [
            (0, 0, VA_A),
            (28, 1, VA_A + 0x123),
            (29, 2, VA_A + 0x456),
            (30, 3, VA_A + 0x789),
        ],
        "show": (27, 35),
        "latency": 2,
        "signals": [
            "requests.valid",
            "requests.ready",
            "requests.id",
            "responses.valid",
            "responses.id",
            "responses.hit",
        ],
    },
    "miss": {
        "title": f"A miss on a 2 MB page: four table reads, memory latency {MEMORY_LATENCY}",
        "requests": [(1, 0, VA_A)],
        "show": (0, 24),
        "signals": [
            "requests.valid",
            "requests.id",
            "walk_start",
            "memory.ar.valid",
            "memory.r.valid",
            "walk_done",
            "responses.valid",
            "responses.id",
            "responses.hit",
        ],
    },
    "invalidation": {
        "title": "An invalidation during a walk: the request is answered, nothing is installed, the next one walks again",
        "requests": [(1, 0, VA_A), (27, 1, VA_A)],
        "invalidate": [8],
        "show": (0, 34),
        "signals": [
            "requests.valid",
            "requests.id",
            "invalidate.valid",
            "invalidate.ready",
            "walk_start",
            "walk_done",
            "responses.valid",
            "responses.id",
            "invalidate_done",
        ],
    },
}


def record(name: str) -> dict[str, object]:
    """Run a scenario in the RTL and return its wave as WaveJSON."""
    scenario = SCENARIOS[name]
    config = MmuConfig(
        ports=1,
        id_width=3,
        asid_bits=1,
        l1_entries=4,
        l1_latency=scenario.get("latency", 1),
        miss_slots=2,
        miss_merges=2,
        walker_contexts=2,
    )
    dut = Mmu(config)
    table = PageTable()
    table.map(VA_A, PageSize.SIZE_2M, Location.GPU, 0x1000)
    table.map(VA_B, PageSize.SIZE_2M, Location.GPU, 0x1200)
    image = table.image()
    first, last = scenario["show"]
    rows: list[dict[str, tuple[int, str]]] = []

    async def bench(ctx):
        ctx.set(dut.root.address, image.root)
        ctx.set(dut.root.aperture, image.root_aperture)
        ctx.set(dut.responses[0].ready, 1)
        ctx.set(dut.memory.ar.ready, 1)
        pending = list(scenario["requests"])
        invalidations = list(scenario.get("invalidate", ()))
        reads: list[tuple[int, int, int]] = []
        for cycle in range(last):
            offer = bool(pending) and cycle >= pending[0][0]
            ctx.set(dut.requests[0].valid, offer)
            if offer:
                ctx.set(dut.requests[0].payload.id, pending[0][1])
                ctx.set(dut.requests[0].payload.va, pending[0][2])
            ctx.set(dut.invalidate.valid, bool(invalidations) and cycle >= invalidations[0])
            answer = reads.pop(0) if reads and reads[0][0] <= cycle else None
            ctx.set(dut.memory.r.valid, answer is not None)
            if answer is not None:
                _, ident, address = answer
                ctx.set(dut.memory.r.payload.id, ident)
                ctx.set(
                    dut.memory.r.payload.data, image.read(address) | image.read(address + 8) << 64
                )
                ctx.set(dut.memory.r.payload.last, 1)
            request, response = dut.requests[0], dut.responses[0]
            rows.append(
                {
                    "requests.valid": (ctx.get(request.valid), ""),
                    "requests.ready": (ctx.get(request.ready), ""),
                    "requests.id": (ctx.get(request.valid), str(ctx.get(request.payload.id))),
                    "responses.valid": (ctx.get(response.valid), ""),
                    "responses.id": (ctx.get(response.valid), str(ctx.get(response.payload.id))),
                    "responses.hit": (ctx.get(response.valid) & ctx.get(response.payload.hit), ""),
                    "invalidate.valid": (ctx.get(dut.invalidate.valid), ""),
                    "invalidate.ready": (ctx.get(dut.invalidate.ready), ""),
                    "invalidate_done": (ctx.get(dut.invalidate_done), ""),
                    "walk_start": (ctx.get(dut.walk_start), ""),
                    "walk_done": (ctx.get(dut.walk_done), ""),
                    "memory.ar.valid": (ctx.get(dut.memory.ar.valid), ""),
                    "memory.r.valid": (ctx.get(dut.memory.r.valid), ""),
                }
            )
            if offer and ctx.get(request.ready):
                pending.pop(0)
            if ctx.get(dut.invalidate.valid) and ctx.get(dut.invalidate.ready):
                invalidations.pop(0)
            if ctx.get(dut.memory.ar.valid):
                ar = dut.memory.ar.payload
                reads.append((cycle + MEMORY_LATENCY, ctx.get(ar.id), ctx.get(ar.addr)))
            await ctx.tick()

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()

    signals = [{"name": "clk", "wave": "p" + "." * (last - first - 1)}]
    for signal in scenario["signals"]:
        signals.append(_lane(signal, [row[signal] for row in rows[first:last]]))
    return {"signal": signals, "head": {"text": scenario["title"]}}


def _lane(name: str, cells: list[tuple[int, str]]) -> dict[str, object]:
    """Return one signal; a lane with texts is a bus that shows them while it is valid."""
    bus = any(text for _, text in cells)
    wave, data, before = "", [], None
    for cell in cells:
        value, text = cell
        if cell == before or (bus and not value and before is not None and not before[0]):
            wave += "."
        elif not bus:
            wave += str(int(value))
        elif value:
            wave += "="
            data.append(text)
        else:
            wave += "x"
        before = cell
    return {"name": name, "wave": wave, **({"data": data} if bus else {})}


def text(name: str) -> str:
    """Return the file text of a recorded wave, one signal a line."""
    wave = record(name)
    lines = ",\n".join(f"    {json.dumps(signal)}" for signal in wave["signal"])
    return f'{{\n  "head": {json.dumps(wave["head"])},\n  "signal": [\n{lines}\n  ]\n}}\n'


def check(name: str) -> str:
    """Return "as the RTL does" if the file of a wave is what the RTL does now, else the difference."""
    found = (FOLDER / f"{name}.json").read_text(encoding="utf-8")
    now = text(name)
    return (
        "as the RTL does" if found == now else f"{name}.json is not what the RTL does now:\n{now}"
    )


if __name__ == "__main__":
    for scenario_name in SCENARIOS:
        (FOLDER / f"{scenario_name}.json").write_text(text(scenario_name), encoding="utf-8")
