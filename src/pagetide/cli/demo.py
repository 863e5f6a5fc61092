"""``pagetide demo``: the main job, end to end."""

from pathlib import Path
from typing import Annotated

import typer

from pagetide.cli.common import console, progress_bar
from pagetide.cli.rtl import load_mmu_config, print_translation, save_translation
from pagetide.cli.run import print_results, run_policies

__all__ = ["demo"]


def demo(
    batch: Annotated[
        int,
        typer.Option("--batch", "-b", help="Batch of BERT-base; 384 needs 59 GiB of the GPU's 40."),
    ] = 384,
    mmu: Annotated[
        str, typer.Option("--mmu", "-m", help="MMU parameters: tiny, small, paper, or a YAML file.")
    ] = "small",
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the results.")] = Path(
        "results/demo"
    ),
) -> None:
    """Plan a real training iteration, time it, and walk its page accesses through the RTL MMU.

    BERT-base, one training step captured from the public model code, on an A100 with 40 GB (G10 paper, Table 2):
    (a) the iteration under unlimited memory, demand paging and G10's plan; (b) the page touches of the whole iteration
    translated by the RTL under Verilator, tensors where G10's plan keeps them, every answer checked.

    \b
    pagetide demo
    pagetide demo --batch 512 -o results/big
    """
    from pagetide.model.planners import get_planner
    from pagetide.model.plots import plot_workload
    from pagetide.model.system import load_system
    from pagetide.model.vitality import analyse
    from pagetide.model.workload import zoo
    from pagetide.sim.translate import MemoryModel, build_bench, simulate_workload

    machine = load_system()
    config = load_mmu_config(mmu)
    step = zoo.load("bert-base", batch=batch)
    plot_workload(step, analyse(step), machine, output / "workload.png")
    with console.status("compiling the engine (once)"):
        plans = [get_planner(name).plan(step, machine) for name in ("ideal", "uvm", "g10")]
    results = run_policies(step, plans, machine, output)
    console.print()
    print_results(results)
    console.print()
    with console.status("building the RTL's model (once, up to a minute)"):
        build_bench(config)
    with progress_bar("page touches through the RTL") as report:
        translation = simulate_workload(
            step,
            config,
            plan=plans[-1],
            gpu_bytes=machine.gpu.memory_bytes,
            memory=MemoryModel(latency_cycles=180, jitter_cycles=80),
            progress=report,
        )
    save_translation(translation, output / "rtl.json")
    print_translation(translation)
    console.print()
    console.print(
        f"results in {output}: workload.png, policies.png, a JSON and a timeline for each policy, rtl.json"
    )
    console.print("timelines open in ui.perfetto.dev")
    if not translation.clean:
        raise typer.Exit(1)
