"""``pagetide plan`` and ``pagetide run``."""

from collections.abc import Sequence
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
from pagetide.model.errors import InputError

if TYPE_CHECKING:
    from pagetide.model.plan import MigrationPlan
    from pagetide.model.result import Result
    from pagetide.model.system import System
    from pagetide.model.workload import Workload

__all__ = ["plan", "print_results", "run", "run_policies", "save_results"]

Speedup = Annotated[
    float, typer.Option("--kernel-speedup", help="Divide all kernel times by this.")
]


def plan(
    workload: WorkloadName,
    output: Annotated[Path, typer.Option("--output", "-o", help="The plan file to write (.npz).")],
    policy: Annotated[str, typer.Option("--policy", "-p", help="The policy that plans.")] = "g10",
    batch: Batch = None,
    precision: Precision = "fp32",
    optimizer: Optimizer = None,
    gpu: Gpu = "a100-40gb",
    system: SystemOption = "g10-table2",
    overrides: Overrides = None,
    kernel_speedup: Speedup = 1.0,
) -> None:
    """Plan the migrations of a workload and write them to a file.

    \b
    pagetide plan bert-base --batch 512 -o plan.npz
    pagetide run bert-base --batch 512 --plan plan.npz
    """
    from pagetide.model.plan import Action, Target
    from pagetide.model.planners import get_planner
    from pagetide.model.system import load_system

    planner = get_planner(policy)
    machine = load_system(system, overrides or ())
    step = _step(workload, batch, precision, optimizer, gpu, kernel_speedup)
    made = planner.plan(step, machine)
    made.save(output)
    rows = []
    for label, action, target in (
        ("allocate", Action.ALLOC, None),
        ("prefetch", Action.PREFETCH, None),
        ("pre-evict to host", Action.PRE_EVICT, Target.HOST),
        ("pre-evict to SSD", Action.PRE_EVICT, Target.SSD),
        ("free", Action.FREE, None),
    ):
        count, moved_bytes = made.totals(action, target)
        rows.append([label, f"{count:,}", f"{moved_bytes / 2**30:,.2f}"])
    print_table(
        f"{step.name}: plan by {policy} ({made.profile})",
        ("entries", "left"),
        ("count", "right"),
        ("GiB", "right"),
        rows=rows,
    )
    console.print(f"plan: {output}")


def run(
    workload: WorkloadName,
    policy: Annotated[
        str, typer.Option("--policy", "-p", help="Policies to compare, joined by commas.")
    ] = "ideal,uvm,g10",
    plan_file: Annotated[
        Path | None,
        typer.Option("--plan", help="Run this plan (pagetide plan) instead of policies."),
    ] = None,
    batch: Batch = None,
    precision: Precision = "fp32",
    optimizer: Optimizer = None,
    gpu: Gpu = "a100-40gb",
    system: SystemOption = "g10-table2",
    overrides: Overrides = None,
    kernel_speedup: Speedup = 1.0,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Folder for results (JSON, Parquet), plot and timelines; none if not given.",
        ),
    ] = None,
) -> None:
    """Time an iteration under one or more policies.

    \b
    pagetide run bert-base --batch 512
    pagetide run resnet152 --batch 1280 --policy g10,uvm --set "host.memory=0 GiB" -o results/resnet
    """
    from pagetide.model.plan import MigrationPlan
    from pagetide.model.planners import get_planner
    from pagetide.model.system import load_system

    machine = load_system(system, overrides or ())
    names = [name.strip() for name in policy.split(",") if name.strip()]
    planners = [get_planner(name) for name in names]
    if not planners and plan_file is None:
        raise InputError("--policy names no policy; write for instance --policy uvm,g10")
    step = _step(workload, batch, precision, optimizer, gpu, kernel_speedup)
    plans: list[MigrationPlan]
    if plan_file is not None:
        plans = [MigrationPlan.load(plan_file)]
        plans[0].check(step)
    else:
        plans = [planner.plan(step, machine) for planner in planners]
    results = run_policies(step, plans, machine, output)
    print_results(results)
    if output is not None:
        console.print(f"results: {output}")
        console.print(f"as a page: pagetide report {output} -o report.html")


def _step(
    workload: str,
    batch: int | None,
    precision: str,
    optimizer: str | None,
    gpu: str,
    kernel_speedup: float,
) -> "Workload":
    step = load_workload(workload, batch, precision, optimizer, gpu)
    return step if kernel_speedup == 1.0 else step.scaled(kernel_speedup)


def run_policies(
    step: "Workload", plans: "Sequence[MigrationPlan]", machine: "System", output: Path | None
) -> "list[Result]":
    """Run plans one after the other with progress; with an output folder, each result is kept as soon as it is there."""
    from pagetide.model import engine

    results = []
    for made in plans:
        with progress_bar(f"{step.name} {made.policy}") as report:
            results.append(engine.run(step, made, machine, progress=report))
        if output is not None:
            save_results(results[-1:], output)
    if output is not None:
        from pagetide.model.plots import plot_run

        plot_run(results, machine, output / "policies.png")
    return results


def save_results(results: "Sequence[Result]", output: Path) -> None:
    """Write each result (`Result.save`) and its timeline into a folder."""
    from pagetide.model.timeline import save_timeline

    for result in results:
        file = result.save(output)
        save_timeline(file.with_suffix(".timeline.json"), result)


def _seconds(time_ps: int) -> str:
    """Seconds with four decimals, or three digits where that would show none."""
    seconds = time_ps * 1e-12
    return f"{seconds:.4f}" if seconds >= 0.01 or not time_ps else f"{seconds:.3g}"


def print_results(results: "Sequence[Result]") -> None:
    """Print the table that compares results of one workload."""
    rows = []
    for result in results:
        gib = [result.traffic(channel) / 2**30 for channel in result.channels]
        rows.append(
            [
                result.policy,
                _seconds(result.total_ps),
                f"{result.fraction_of_ideal:.4f}",
                _seconds(result.stall_ps),
                *(f"{value:,.2f}" for value in gib),
                f"{int(result.fault_blocks.sum()):,}",
            ]
        )
    first = results[0]
    print_table(
        f"{first.workload} on {first.system['name']}, profile {first.profile}; traffic in GiB",
        ("policy", "left"),
        ("time, s", "right"),
        ("of ideal", "right"),
        ("stall, s", "right"),
        ("host in", "right"),
        ("SSD in", "right"),
        ("host out", "right"),
        ("SSD out", "right"),
        ("faults", "right"),
        rows=rows,
    )
