"""The commands and how they hang together."""

from typing import Annotated

import typer

from pagetide import __version__
from pagetide.cli import config, demo, report, rtl, run, workload

__all__ = ["app"]

app = typer.Typer(
    name="pagetide",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="""What happens when a GPU's memory, the host's memory and an SSD become one address space, and tensors migrate by
    plan instead of by page fault?

    \b
    pagetide demo                                            the main job, end to end, on real input
    pagetide run bert-base --batch 512 --policy ideal,uvm,g10    time policies against each other
    pagetide report results/bert -o report.html              results as a page to look at
    pagetide workload show gpt2-xl --batch 4                 what a training step looks like
    pagetide rtl sim bert-base --batch 256                   its page touches through the RTL MMU
    """,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pagetide {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and stop."
        ),
    ] = False,
) -> None:
    pass


app.command("demo")(demo.demo)
app.add_typer(workload.app, name="workload")
app.command("plan")(run.plan)
app.command("run")(run.run)
app.command("report")(report.report)
app.add_typer(rtl.app, name="rtl")
app.add_typer(config.app, name="config")
