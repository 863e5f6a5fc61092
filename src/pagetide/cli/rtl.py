"""``pagetide rtl``: Verilog of the MMU, and its simulation on a workload's page touches."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pagetide.cli.common import (
    Batch,
    Gpu,
    Optimizer,
    Overrides,
    Precision,
    SystemOption,
    WorkloadName,
    console,
    load_workload,
    print_table,
    progress_bar,
)
from pagetide.model.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from pagetide.hw.config import MmuConfig
    from pagetide.sim.build import Trace
    from pagetide.sim.translate import TranslationResult

__all__ = ["app", "load_mmu_config", "print_translation", "save_translation"]

app = typer.Typer(no_args_is_help=True, help="Generate the MMU's Verilog and simulate it.")

MmuOption = Annotated[
    str,
    typer.Option(
        "--mmu", "-m", help="MMU parameters: tiny, small, paper, or a YAML file of parameters."
    ),
]


def load_mmu_config(source: str) -> "MmuConfig":
    """Return MMU parameters from a preset's name or a YAML file (keys are the fields of `MmuConfig`, plus ``preset``).

    Raises:
        InputError: no such preset or file, an unknown parameter, or a value that is not allowed.
    """
    from pagetide.hw.config import PRESETS, MmuConfig
    from pagetide.model.yamlfile import parse_mapping, read_text

    if source in PRESETS:
        return PRESETS[source]
    path = Path(source)
    if not path.suffix and not path.exists():
        raise InputError(
            f"MMU {source!r}: neither a preset nor a file; {did_you_mean(source, PRESETS)}"
        )
    values, places = parse_mapping(read_text(path), str(path))
    preset = values.pop("preset", None)
    try:
        config: MmuConfig = MmuConfig.from_dict(values, preset=preset)
        return config
    except (TypeError, ValueError) as error:
        named = [place for key, place in places.items() if key[-1] in str(error)]
        raise InputError(f"{named[0] if named else path}: {error}") from None


@app.command()
def generate(
    mmu: MmuOption = "small",
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for mmu.v and mmu.json.")
    ] = Path("results/rtl"),
) -> None:
    """Write the MMU's Verilog and a JSON file with its ports, parameters and probes.

    \b
    pagetide rtl generate --mmu paper -o build/rtl
    """
    from pagetide.hw.generate import generate_verilog, sidecar
    from pagetide.hw.top import Mmu
    from pagetide.model.columnar import atomic_write_bytes

    config = load_mmu_config(mmu)
    mmu_unit = Mmu(config)
    description = sidecar(mmu_unit)
    with console.status("generating Verilog"):
        verilog = generate_verilog(mmu_unit, "mmu")
    atomic_write_bytes(output / "mmu.v", verilog.encode())
    atomic_write_bytes(output / "mmu.json", (json.dumps(description, indent=2) + "\n").encode())
    console.print(
        f"Verilog: {output / 'mmu.v'} ({len(verilog) / 1e3:,.0f} kB, {len(description['ports'])} ports)"
    )
    console.print(f"description: {output / 'mmu.json'}")


@app.command()
def sim(
    workload: WorkloadName,
    batch: Batch = None,
    precision: Precision = "fp32",
    optimizer: Optimizer = None,
    gpu: Gpu = "a100-40gb",
    system: SystemOption = "g10-table2",
    overrides: Overrides = None,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            "-p",
            help="Tensors lie where this policy's plan keeps them; all on the GPU if not given.",
        ),
    ] = None,
    mmu: MmuOption = "small",
    page: Annotated[str, typer.Option(help="Page size: 4 KiB, 64 KiB or 2 MiB.")] = "2 MiB",
    touch: Annotated[
        str | None, typer.Option(help="Bytes that a touch stands for; the page size if not given.")
    ] = None,
    kernels: Annotated[
        str | None,
        typer.Option(help="Window of kernels, FIRST:LAST (LAST not included); all if not given."),
    ] = None,
    latency: Annotated[int, typer.Option(help="Memory latency in cycles.")] = 200,
    jitter: Annotated[
        int, typer.Option(help="Up to this many cycles more, at random; answers come out of order.")
    ] = 0,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 1,
    waves: Annotated[
        Path | None,
        typer.Option(
            "--waves", help="Write a waveform to this file: .vcd, or .fst (needs liblz4-dev). Slow."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="JSON file for the result.")
    ] = None,
) -> None:
    """Translate a workload's page touches with the RTL MMU under Verilator; every answer is checked.

    \b
    pagetide rtl sim bert-base --batch 256
    pagetide rtl sim gpt2 --batch 4 --kernels 100:104 --page "64 KiB" --touch "4 KiB"
    pagetide rtl sim bert-base --batch 8 --kernels 0:20 --waves mmu.vcd

    Exit code 1 if an answer was wrong or missing.
    """
    from pagetide.model.planners import get_planner
    from pagetide.model.system import load_system
    from pagetide.sim.translate import MemoryModel, build_bench, simulate_workload

    machine = load_system(system, overrides or ())
    config = load_mmu_config(mmu)
    memory = MemoryModel(latency_cycles=latency, jitter_cycles=jitter)
    page_bytes, touch_bytes = _size("--page", page), _size("--touch", touch) if touch else None
    trace = _wave_format(waves)
    planner = get_planner(policy) if policy else None
    step = load_workload(workload, batch, precision, optimizer, gpu)
    window = _window(kernels, len(step.kernels))
    plan = planner.plan(step, machine) if planner else None
    with console.status("building the model (once for each configuration, up to two minutes)"):
        build_bench(config, trace)
    with progress_bar(f"{step.name} through the RTL") as report:
        result = simulate_workload(
            step,
            config,
            plan=plan,
            page_bytes=page_bytes,
            touch_bytes=touch_bytes,
            kernels=window,
            gpu_bytes=machine.gpu.memory_bytes,
            memory=memory,
            seed=seed,
            waves=waves,
            trace=trace,
            progress=report,
        )
    print_translation(result)
    if output is not None:
        save_translation(result, output)
        console.print(f"result: {output}")
    if waves is not None:
        console.print(f"waves: {waves}")
    if not result.clean:
        raise typer.Exit(1)


def _size(option: str, text: str) -> int:
    from pagetide.model.units import parse_quantity

    try:
        return round(parse_quantity(text, "byte"))
    except ValueError as error:
        raise InputError(f"{option}: {error}") from None


def _wave_format(waves: Path | None) -> "Trace":
    from pagetide.sim.build import Trace

    if waves is None:
        return Trace.NONE
    if waves.suffix not in (".vcd", ".fst"):
        raise InputError(f"--waves: {waves} must end in .vcd or .fst")
    return Trace(waves.suffix[1:])


def _window(text: str | None, kernels: int) -> range | None:
    if text is None:
        return None
    first, colon, last = text.partition(":")
    try:
        window = range(int(first or 0), int(last or kernels))
    except ValueError:
        colon = ""
    if not colon:
        raise InputError(f"--kernels: {text!r} is not FIRST:LAST, for instance 100:120")
    if not 0 <= window.start < window.stop <= kernels:
        raise InputError(f"--kernels: {text!r} is not a window of the kernels 0 to {kernels - 1}")
    return window


def print_translation(result: "TranslationResult") -> None:
    """Print what a run through the RTL showed."""
    share = ", ".join(f"{name} {count:,}" for name, count in result.statuses.items())
    apertures = ", ".join(f"{name} {count:,}" for name, count in result.apertures.items())
    rows = [
        ["translations", f"{result.translations:,}  ({share})"],
        ["pages of the OK ones", apertures],
        ["L1 hit rate", f"{result.l1_hit_rate:.2%}"],
        ["walks", f"{result.walks:,}"],
        ["memory latency", _latency(result.memory)],
        [
            "walk latency",
            f"mean {result.walk_mean_cycles:,.1f}, p99 {result.walk_p99_cycles:,} cycles",
        ],
        [
            "scoreboard",
            f"{result.mismatches} mismatches, {result.lost} lost, {result.duplicates} duplicate",
        ],
        [
            "simulated",
            f"{result.cycles:,} cycles in {result.seconds:.1f} s, {result.cycles_per_second:,.0f} cycles/s",
        ],
    ]
    print_table(f"{result.workload} through the RTL MMU", ("", "left"), ("", "left"), rows=rows)
    if result.first_mismatch:
        console.print(f"first offender: {result.first_mismatch}", style="red")


def _latency(memory: dict[str, int]) -> str:
    low, spread = memory["latency_cycles"], memory["jitter_cycles"]
    return (
        f"{low} cycles" if not spread else f"{low} to {low + spread} cycles, answers out of order"
    )


def save_translation(result: "TranslationResult", path: Path) -> None:
    """Write a result to a JSON file, atomically."""
    from pagetide.model.columnar import atomic_write_bytes

    atomic_write_bytes(
        path, (json.dumps(result.to_dict(), indent=2, sort_keys=True) + "\n").encode()
    )
