"""``pagetide workload``: list, show, import and capture workloads."""

from pathlib import Path
from typing import Annotated

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
)

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="List, show, import and capture workloads.")
import_app = typer.Typer(
    no_args_is_help=True, help="Make a workload file from another tool's data."
)
app.add_typer(import_app, name="import")


@app.command("list")
def list_models() -> None:
    """List the models of the zoo."""
    from pagetide.model.workload import zoo

    rows = []
    for name in zoo.names():
        info = zoo.describe(name)
        rows.append(
            [
                name,
                f"{info['parameters'] / 1e6:,.1f}",
                str(info["kernels"]),
                str(info["default_optimizer"]),
                str(info["sample"]),
                str(info["code"]),
            ]
        )
    print_table(
        "Models of the zoo",
        ("model", "left"),
        ("parameters, M", "right"),
        ("kernels", "right"),
        ("optimizer", "left"),
        ("a sample", "left"),
        ("model code", "left"),
        rows=rows,
    )


@app.command()
def show(
    workload: WorkloadName,
    batch: Batch = None,
    precision: Precision = "fp32",
    optimizer: Optimizer = None,
    gpu: Gpu = "a100-40gb",
    system: SystemOption = "g10-table2",
    overrides: Overrides = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot", help="File of the plot (.png or .svg); results/WORKLOAD.png if not given."
        ),
    ] = None,
    save: Annotated[
        Path | None, typer.Option("--save", help="Write the workload to this file too (.npz).")
    ] = None,
) -> None:
    """Summarise a workload and plot its memory pressure.

    \b
    pagetide workload show bert-base --batch 256
    pagetide workload show gpt2-xl --batch 4 --precision bf16 --plot gpt2.svg
    """
    import numpy as np

    from pagetide.model.plots import plot_workload
    from pagetide.model.system import load_system
    from pagetide.model.vitality import analyse

    machine = load_system(system, overrides or ())
    step = load_workload(workload, batch, precision, optimizer, gpu)
    vitality = analyse(step)
    capacity = machine.gpu.memory_bytes
    periods = vitality.periods
    above = float(
        step.kernels.duration_ns[vitality.live_bytes > capacity].sum() / max(step.ideal_ns, 1e-9)
    )
    rows = [
        ["kernels", f"{len(step.kernels):,}"],
        ["tensors", f"{len(step.tensors):,}"],
        ["iteration with unlimited memory", f"{step.ideal_ns * 1e-9:.4f} s"],
        ["floating-point operations", f"{step.kernels.flops.sum() / 1e12:,.2f} TFLOP"],
        [
            "all allocations",
            f"{step.total_bytes / 2**30:,.2f} GiB ({step.total_bytes / capacity:.2%} of GPU memory)",
        ],
        [
            "peak alive",
            f"{vitality.peak_live_bytes / 2**30:,.2f} GiB ({vitality.peak_live_bytes / capacity:.1%})",
        ],
        ["time above capacity", f"{above:.1%}"],
        ["largest kernel", f"{int(vitality.active_bytes.max()) / 2**30:,.2f} GiB"],
        ["in use, mean share of alive", f"{vitality.active_share.mean():.2%}"],
        ["inactive periods", f"{len(periods):,}"],
    ]
    if len(periods):
        rows.append(
            ["median inactive period", f"{float(np.median(periods.length_ns)) * 1e-3:,.0f} us"]
        )
    rows += [
        [key, str(value)]
        for key, value in step.metadata.items()
        if isinstance(value, (str, int, float))
    ]
    print_table(step.name, ("", "left"), ("", "left"), rows=rows)
    path = plot or Path("results") / f"{step.name}.png"
    plot_workload(step, vitality, machine, path)
    console.print(f"plot: {path}")
    if save is not None:
        step.save(save)
        console.print(f"workload: {save}")


@import_app.command("g10")
def import_g10(
    folder: Annotated[Path, typer.Argument(help="Folder with derived/ and traces/.")],
    model: Annotated[
        str, typer.Argument(help="Model as in the file names, for instance BERT_Base.")
    ],
    batch: Annotated[int, typer.Argument(help="Batch size of a trace.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The workload file to write (.npz).")
    ],
) -> None:
    """Import one run of the G10 artifact: tables of kernels and tensors, A100 kernel times, workspaces.

    \b
    pagetide workload import g10 ../g10 BERT_Base 256 -o bert256.npz
    """
    from pagetide.model.workload.g10_tables import load_g10

    step = load_g10(folder, model, batch)
    step.save(output)
    console.print(
        f"{step.name}: {len(step.kernels)} kernels, {len(step.tensors)} tensors, {step.ideal_ns * 1e-9:.4f} s"
    )
    console.print(f"workload: {output}")


@app.command()
def capture(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="A model of the zoo, or module:function (or file.py:function) that builds a step.",
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The capture file to write (.npz).")
    ],
    precision: Annotated[str, typer.Option(help="fp32 or bf16, for a model of the zoo.")] = "fp32",
    optimizer: Optimizer = None,
    workload_file: Annotated[
        Path | None,
        typer.Option("--workload", help="Also write a workload file (.npz) at --batch on --gpu."),
    ] = None,
    batch: Batch = None,
    gpu: Gpu = "a100-40gb",
) -> None:
    """Record one training step of a model under PyTorch FakeTensors: no weights, no data, no GPU.

    The function takes a batch size and returns (model, inputs, loss[, optimizer]). The capture holds at every batch. Needs
    pip install 'pagetide[capture]'.

    \b
    pagetide workload capture resnet50 -o resnet50.npz
    pagetide workload capture my_model.py:build -o mine.npz --workload mine-64.npz --batch 64
    pagetide run mine-64.npz
    """
    from pagetide.model.errors import InputError
    from pagetide.model.workload.zoo.build import capture_target

    if workload_file is not None and batch is None:
        raise InputError("--workload needs a batch, for instance --batch 64")
    with console.status("recording"):
        recorded = capture_target(target, precision=precision, optimizer=optimizer)
    recorded.save(output)
    console.print(f"capture: {output}")
    if workload_file is not None and batch is not None:
        recorded.workload(batch=batch, gpu=gpu).save(workload_file)
        console.print(f"workload: {workload_file}")
