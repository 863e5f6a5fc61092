"""``pagetide rtl``: Verilog of the MMU, and its simulation on a workload's page touches."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pagetide.cli.common import console
from pagetide.model.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from pagetide.hw.config import MmuConfig

__all__ = ["app", "load_mmu_config"]

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
