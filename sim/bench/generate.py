"""SystemVerilog and C++ text of the bench around an MMU, derived from the component's own description."""

from importlib import resources
from typing import Any

from pagetide.hw.generate import generate_verilog, sidecar
from pagetide.sim.build import Design

__all__ = ["bare_design", "bench_design"]

_DUT = "mmu"
_OBSERVED = ("finished", "answered", "cycles")


_BATCH_CYCLES = 1000
# Without waves the clock toggles itself in delta cycles, a batch of cycles at one point of time: the simulator then looks after
# VPI and timers once a batch. Every change goes through a nonblocking assignment, so nothing races.
_BATCH_CLOCK = f"""  bit start = 0, started = 0;
  int left = 0;
  always #{2 * _BATCH_CYCLES} start = ~start;
  always @(start or clk) begin
    if (start != started) begin
      started <= start;
      left <= {2 * _BATCH_CYCLES - 1};
      clk <= ~clk;
    end else if (left != 0 && !finished) begin
      left <= left - 1;
      clk <= ~clk;
    end
  end"""
_PLAIN_CLOCK = "  always begin\n    #1;\n    if (!finished) clk = ~clk;\n  end"


def bench_design(component: Any, *, waves: bool = False) -> Design:
    """Return the bench for cocotb: module ``bench`` with a clock of its own; public are its progress signals.

    Args:
        component: a `pagetide.hw.top.Mmu`.
        waves: give every edge of the clock its own time, as waveforms need it; much slower. What the design does in which
            cycle is the same.
    """
    ports = sidecar(component)["ports"]
    return Design(
        top="bench",
        sources={
            **_sources(component, ports),
            "bench.sv": _module(
                ports,
                head="module bench;\n  bit clk = 0;\n  bit finished = 0;\n  longint answered = 0;\n  longint cycles = 0;",
                clock=_PLAIN_CLOCK if waves else _BATCH_CLOCK,
            ),
        },
        public=[("bench", name) for name in _OBSERVED],
        args=["--timing", "--converge-limit", str(4 * _BATCH_CYCLES)],
    )


def bare_design(component: Any) -> Design:
    """Return the same bench with its clock as a port, to be driven by a plain C++ loop (`bare_main.cpp`)."""
    ports = sidecar(component)["ports"]
    return Design(
        top="bare",
        sources={
            **_sources(component, ports),
            "bare.sv": _module(
                ports,
                head="module bare(input bit clk, output bit finished, output longint answered, output longint cycles);",
                clock="  initial begin finished = 0; answered = 0; cycles = 0; end",
            ),
            "bare_main.cpp": _native("bare_main.cpp"),
        },
    )


def _native(name: str) -> str:
    return (resources.files("pagetide.sim.bench") / name).read_text(encoding="utf-8")


def _sources(component: Any, ports: list[dict[str, Any]]) -> dict[str, str]:
    return {
        f"{_DUT}.v": generate_verilog(component, _DUT),
        "layout.h": _layout(component, ports),
        "bench.cpp": _native("bench.cpp"),
    }


def _offsets(ports: list[dict[str, Any]]) -> tuple[dict[str, int], dict[str, int]]:
    """Bit offset of each input in the vector that drives the design (bit 0 is reset), and of each output."""
    into, out = {}, {}
    in_bits, out_bits = 1, 0
    for port in ports:
        if port["direction"] == "in":
            into[port["name"]] = in_bits
            in_bits += port["width"]
        else:
            out[port["name"]] = out_bits
            out_bits += port["width"]
    into[""], out[""] = in_bits, out_bits
    return into, out


def _module(ports: list[dict[str, Any]], *, head: str, clock: str) -> str:
    into, out = _offsets(ports)
    connections = [".clk(clk)", ".rst(ins[0])"]
    for port in ports:
        vector, place = ("ins", into) if port["direction"] == "in" else ("outs", out)
        low = place[port["name"]]
        connections.append(f".{port['name']}({vector}[{low + port['width'] - 1}:{low}])")
    joined = ",\n    ".join(connections)
    return f"""`timescale 1ns/1ps
{head}
  import "DPI-C" function void bench_step(
    input bit [{out[""] - 1}:0] outs, output bit [{into[""] - 1}:0] ins, output bit finished, output longint answered);
  bit [{into[""] - 1}:0] ins = 1;
  bit [{into[""] - 1}:0] next_ins;
  wire [{out[""] - 1}:0] outs;
  bit next_finished;
  longint next_answered;
{clock}
  always @(posedge clk) begin
    bench_step(outs, next_ins, next_finished, next_answered);
    ins <= next_ins;
    finished <= next_finished;
    answered <= next_answered;
    cycles <= cycles + 1;
  end
  {_DUT} dut(
    {joined});
endmodule
"""


def _layout(component: Any, ports: list[dict[str, Any]]) -> str:
    """The header: numbers that `bench.cpp` needs, each derived from the component."""
    into, out = _offsets(ports)
    by_name = {port["name"]: port for port in ports}
    config = component.config

    def field(port: str, name: str) -> tuple[int, int]:
        found = next(f for f in by_name[port]["fields"] if f["name"] == name)
        return int(found["offset"]), int(found["width"])

    lines = [
        "// Generated from the component; do not edit.",
        "#pragma once",
        "#include <cstdint>",
        "namespace layout {",
    ]

    def constant(name: str, value: int) -> None:
        lines.append(f"constexpr int {name} = {value};")

    def array(name: str, values: list[int]) -> None:
        lines.append(f"constexpr int {name}[] = {{{', '.join(map(str, values))}}};")

    constant("IN_WORDS", -(-into[""] // 32))
    constant("OUT_WORDS", -(-out[""] // 32))
    constant("PORTS", config.ports)
    constant("ID_BITS", config.id_width)
    constant("CONTEXTS", config.walker_contexts)
    constant("BEAT_BYTES", config.memory_data_bits // 8)
    for stream, vectors in (("requests", (into, out)), ("responses", (out, into))):
        forward, backward = vectors
        prefix = "REQUEST" if stream == "requests" else "RESPONSE"
        for signal, place in (("valid", forward), ("payload", forward), ("ready", backward)):
            array(
                f"{prefix}_{signal.upper()}",
                [place[f"{stream}__{p}__{signal}"] for p in range(config.ports)],
            )
    for channel, (forward, backward) in (("ar", (out, into)), ("r", (into, out))):
        for signal, place in (("valid", forward), ("payload", forward), ("ready", backward)):
            constant(f"{channel.upper()}_{signal.upper()}", place[f"memory__{channel}__{signal}"])
    fields = {
        "requests__0__payload": ("id", "va", "access"),
        "responses__0__payload": (
            "id",
            "status",
            "page_size",
            "aperture",
            "hit",
            "pa",
            "flash_page",
        ),
        "memory__ar__payload": ("id", "addr", "len"),
        "memory__r__payload": ("id", "data", "resp", "last"),
        "root": ("address", "aperture"),
    }
    for port, names in fields.items():
        prefix = port.replace("__payload", "").replace("__0", "").replace("__", "_").upper()
        for name in names:
            offset, width = field(port, name)
            constant(f"{prefix}_{name.upper()}", offset)
            constant(f"{prefix}_{name.upper()}_BITS", width)
    for prefix, ports_name in (
        ("REQUEST", "requests__0__payload"),
        ("RESPONSE", "responses__0__payload"),
    ):
        constant(f"{prefix}_BITS", by_name[ports_name]["width"])
    constant("R_BITS", by_name["memory__r__payload"]["width"])
    constant("AR_BITS", by_name["memory__ar__payload"]["width"])
    constant("ROOT", into["root"])
    constant("INVALIDATE_VALID", into["invalidate__valid"])
    constant("INVALIDATE_READY", out["invalidate__ready"])
    constant("INVALIDATE_DONE", out["invalidate_done"])
    for probe in ("walk_start", "walk_done"):
        constant(probe.upper(), out[probe])
        constant(f"{probe.upper()}_CONTEXT", out[f"{probe}_context"])
    constant("CONTEXT_BITS", by_name["walk_start_context"]["width"])
    counters = {
        name: by_name[path]
        for name, path in component.probes().items()
        if "counters__" in path and path in by_name
    }
    lines.append("struct Counter { const char* name; int offset; int bits; };")
    entries = ", ".join(
        f'{{"{name}", {out[p["name"]]}, {p["width"]}}}' for name, p in counters.items()
    )
    lines.append(f"constexpr Counter COUNTERS[] = {{{entries}}};")
    lines.append("}  // namespace layout")
    return "\n".join(lines) + "\n"
