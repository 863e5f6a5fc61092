"""``pagetide config``: what the machine is."""

from typing import Annotated

import typer
import yaml

from pagetide.cli.common import Overrides, ProfileOption, SystemOption, print_table, with_profile

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Show system configurations.")


@app.command("list")
def list_presets() -> None:
    """List the systems that ship with the package."""
    from pagetide.model.system import load_system, system_presets

    rows = []
    for name in system_presets():
        machine = load_system(name).to_dict()
        rows.append(
            [
                name,
                machine["gpu"]["memory"],
                machine["host"]["memory"],
                machine["link"]["bandwidth"],
            ]
        )
    print_table(
        "Systems",
        ("name", "left"),
        ("GPU memory", "right"),
        ("host memory", "right"),
        ("link", "right"),
        rows=rows,
    )


@app.command()
def show(
    system: SystemOption = "g10-table2",
    overrides: Overrides = None,
    profile: ProfileOption = None,
    as_yaml: Annotated[
        bool, typer.Option("--yaml", help="Print YAML that --system reads back.")
    ] = False,
) -> None:
    """Show every key of a system: its value, what it means and where it comes from.

    \b
    pagetide config show
    pagetide config show --profile artifact
    pagetide config show --system my.yaml --set "gpu.memory=80 GiB"
    pagetide config show --yaml > my.yaml
    """
    from pagetide.model.system import load_system

    machine = load_system(system, with_profile(overrides, profile))
    if as_yaml:
        typer.echo(yaml.safe_dump(machine.to_dict(), sort_keys=False), nl=False)
        return
    rows = [[key, value, description] for key, value, description in machine.describe()]
    print_table(
        f"System {machine.name}, profile {machine.profile}",
        ("key", "left"),
        ("value", "left"),
        ("meaning and source", "left"),
        rows=rows,
    )
