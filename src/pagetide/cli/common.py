"""Options and output that several commands share."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from pagetide.model.errors import InputError
from pagetide.model.workload import Workload

__all__ = [
    "Batch",
    "Gpu",
    "Optimizer",
    "Overrides",
    "Precision",
    "ProfileOption",
    "SystemOption",
    "WorkloadName",
    "console",
    "load_workload",
    "print_table",
    "progress_bar",
    "with_profile",
]

console = Console(highlight=False)
_status = Console(stderr=True, highlight=False)

WorkloadName = Annotated[
    str,
    typer.Argument(
        metavar="WORKLOAD",
        help="A model of the zoo (pagetide workload list) or a workload file (.npz).",
    ),
]
Batch = Annotated[
    int | None,
    typer.Option("--batch", "-b", help="Samples in the batch; needed for a model of the zoo."),
]
Precision = Annotated[str, typer.Option(help="fp32, tf32 or bf16.")]
Optimizer = Annotated[
    str | None, typer.Option(help="sgd-momentum, adamw, ...; the model's own if not given.")
]
Gpu = Annotated[str, typer.Option(help="GPU whose roofline gives the kernel times.")]
SystemOption = Annotated[
    str,
    typer.Option("--system", "-s", help="A preset (pagetide config list) or a YAML file."),
]
ProfileOption = Annotated[
    str | None,
    typer.Option("--profile", help="faithful or artifact (docs, 'Fidelity')."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help='Change one key of the system, for instance --set "ssd.read_bandwidth=6.4 GB/s".',
    ),
]


def load_workload(
    name: str,
    batch: int | None,
    precision: str = "fp32",
    optimizer: str | None = None,
    gpu: str = "a100-40gb",
) -> Workload:
    """Return a workload by the name of a zoo model or the path of a workload file.

    Raises:
        InputError: neither exists, or a zoo model came without a batch.
    """
    if name.endswith(".npz") or "/" in name:
        if batch is not None:
            raise InputError(f"{name}: a workload file has its batch inside; leave --batch out")
        return Workload.load(Path(name))
    from pagetide.model.workload import zoo

    if batch is None:
        zoo.describe(name)  # an unknown name is the better message
        raise InputError(f"{name}: a model of the zoo needs a batch, for instance --batch 64")
    return zoo.load(name, batch=batch, precision=precision, optimizer=optimizer, gpu=gpu)


def with_profile(overrides: list[str] | None, profile: str | None) -> list[str]:
    """Return the overrides of a system, with that of the profile if one was given."""
    return [*(overrides or ()), *([f"profile={profile}"] if profile is not None else ())]


def print_table(title: str, *columns: tuple[str, str], rows: list[list[str]]) -> None:
    """Print a title and a table; each column is (heading, "left" or "right")."""
    table = Table(
        header_style="bold",
        box=None,
        pad_edge=False,
        show_header=any(heading for heading, _ in columns),
    )
    for heading, justify in columns:
        table.add_column(
            heading, justify="right" if justify == "right" else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(*row)
    console.print(title, style="bold")
    console.print(table)


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[float], None]]:
    """Show a bar on standard error while the block runs; yields a function that takes the share done, 0 to 1."""
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=_status,
        transient=True,
        disable=not _status.is_terminal,
    ) as bar:
        task: Any = bar.add_task(label, total=1.0)

        def report(share: float) -> None:
            bar.update(task, completed=share)

        yield report
