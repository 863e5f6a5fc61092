"""Directive ``generated``: tables and texts made from the code, so that the pages cannot disagree with it.

``{generated} NAME`` inserts the Markdown that the function of that name (dashes for underscores) returns.
"""

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

SOURCES: dict[str, Callable[[], str]] = {}


def source(function: Callable[[], str]) -> Callable[[], str]:
    """Register a function that returns Markdown."""
    SOURCES[function.__name__.replace("_", "-")] = function
    return function


def table(heads: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""

    def line(cells: list[str]) -> str:
        return (
            "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
        )

    return "\n".join([line(heads), line(["---"] * len(heads)), *map(line, rows)]) + "\n"


# -- the model ------------------------------------------------------------------------------------------------------


@source
def system_keys() -> str:
    """Every key of a system configuration."""
    from pagetide.model.system import System

    rows = [[f"`{key}`", value, text] for key, value, text in System().describe()]
    return table(["key", "default", "meaning and source"], rows)


@source
def system_presets() -> str:
    """The systems that ship with the package, with what differs from the defaults."""
    from pagetide.model.system import System, load_system, system_presets

    default = {key: value for key, value, _ in System().describe()}
    rows = []
    for name in system_presets():
        changed = [
            f"`{key}: {value}`"
            for key, value, _ in load_system(name).describe()
            if value != default[key] and key != "name"
        ]
        rows.append([f"`{name}`", ", ".join(changed) or "none"])
    return table(["preset", "keys that differ from the defaults"], rows)


@source
def gpu_presets() -> str:
    """The roofline's GPUs."""
    from pagetide.model.workload.roofline import GPUS

    arithmetic = list(dict.fromkeys(a for gpu in GPUS.values() for a in gpu.peak_flops_per_s))
    rows = [
        [
            f"`{gpu.name}`",
            f"{gpu.memory_bytes.value / 2**30:g} GiB",
            f"{gpu.bandwidth_bytes_per_s.value / 1e9:g}",
            *(
                f"{gpu.peak_flops_per_s[a].value / 1e12:g}" if a in gpu.peak_flops_per_s else "none"
                for a in arithmetic
            ),
            f"{gpu.launch_floor_ns.value:g}",
            gpu.bandwidth_bytes_per_s.source,
        ]
        for gpu in GPUS.values()
    ]
    heads = [
        "preset",
        "memory",
        "GB/s",
        *(f"{a} TFLOP/s" for a in arithmetic),
        "launch floor, ns",
        "source",
    ]
    floors = {gpu.launch_floor_ns.source for gpu in GPUS.values()}
    return table(heads, rows) + "\nLaunch floor: " + "; ".join(sorted(floors)) + ".\n"


@source
def efficiencies() -> str:
    """Efficiency of each class of operator."""
    from pagetide.model.workload.roofline import DEFAULT_EFFICIENCIES

    rows = []
    for op_class, e in DEFAULT_EFFICIENCIES.items():
        sized = e.full_size_flops > 0
        compute = (
            f"{e.compute_small:g} to {e.compute:g} at {e.full_size_flops / 1e9:g} GFLOP"
            if sized
            else f"{e.compute:g}"
        )
        rows.append([op_class.name.lower(), f"{e.memory:g}", compute, e.source])
    return table(["class", "of memory bandwidth", "of peak FLOP/s", "source"], rows)


@source
def zoo_models() -> str:
    """The zoo."""
    from pagetide.model.workload import zoo

    rows = []
    for name in zoo.names():
        info = zoo.describe(name)
        rows.append(
            [
                f"`{name}`",
                info["title"],
                f"{info['parameters']:,}",
                f"{info['kernels']:,}",
                str(info["default_optimizer"]),
                str(info["sample"]) + (f", {info['seq']} by default" if "seq" in info else ""),
                str(info["code"]),
            ]
        )
    heads = [
        "name",
        "model",
        "parameters",
        "kernels, forward and backward",
        "optimizer",
        "a sample",
        "model code",
    ]
    return table(heads, rows)


@source
def policies() -> str:
    """The policies with the first sentence of their docstrings."""
    from pagetide.model.planners import get_planner, policies

    rows = []
    for name in policies():
        text = (inspect.getdoc(type(get_planner(name))) or "").split("\n\n")[0].replace("\n", " ")
        if name == "g10-benefit":
            text = "As `g10`, with candidates ranked by benefit alone (the paper's Algorithm 1)."
        rows.append([f"`{name}`", text])
    return table(["policy", "rule"], rows)


@source
def g10_rule() -> str:
    """The rule of the policy g10, as its class states it."""
    from pagetide.model.planners import G10

    return (inspect.getdoc(G10) or "") + "\n"


# -- the hardware ---------------------------------------------------------------------------------------------------


@source
def entry_formats() -> str:
    """The entry formats, from the definition that the RTL and the golden model use."""
    from pagetide.hw.pagetable import nvidia_v2

    return nvidia_v2.markdown()


@source
def levels() -> str:
    """The levels of a walk."""
    from pagetide.hw.pagetable.nvidia_v2 import LEVELS

    rows = [
        [
            f"`{level.name}`",
            f"{low + width - 1}:{low}",
            str(1 << width),
            str(1 << size),
            str(level.reads),
        ]
        for level, (low, width, size) in LEVELS.items()
    ]
    return table(
        [
            "table",
            "VA bits of the index",
            "entries",
            "bytes an entry",
            "reads when the walk ends here",
        ],
        rows,
    )


@source
def statuses() -> str:
    """Status codes of a translation, with what the source says of each."""
    from pagetide.hw.pagetable.nvidia_v2 import Status

    meaning = _attribute_docs(Status)
    rows = [
        [f"0x{code.value:02x}", f"`{code.name}`", meaning.get(code.name, "")] for code in Status
    ]
    if not any(row[2] for row in rows):
        return table(["code", "status"], [row[:2] for row in rows])
    return table(["code", "status", "meaning"], rows)


@source
def mmu_parameters() -> str:
    """Parameters of the MMU and their values in the presets."""
    from pagetide.hw.config import PRESETS, MmuConfig

    meaning = _attribute_docs(MmuConfig)
    rows = [
        [
            f"`{field.name}`",
            meaning.get(field.name, ""),
            str(field.default),
            *(str(getattr(preset, field.name)) for preset in PRESETS.values()),
        ]
        for field in dataclasses.fields(MmuConfig)
    ]
    return table(["parameter", "meaning", "default", *(f"`{name}`" for name in PRESETS)], rows)


@source
def counters() -> str:
    """Counters of the MMU."""
    from pagetide.hw.tlb.l1 import L1_COUNTERS
    from pagetide.hw.walker.walker import WALKER_COUNTERS

    rows = [[f"`mmu.l1.PORT.{name}`", text] for name, text in L1_COUNTERS.items()]
    rows += [[f"`mmu.walker.{name}`", text] for name, text in WALKER_COUNTERS.items()]
    return table(["counter", "counts"], rows)


@source
def mmu_ports() -> str:
    """Ports of the MMU in the preset ``small``, as they stand in the Verilog; one requester port for all."""
    from pagetide.hw.config import PRESETS
    from pagetide.hw.generate import sidecar
    from pagetide.hw.top import Mmu

    rows = []
    for port in sidecar(Mmu(PRESETS["small"]))["ports"]:
        name = port["name"]
        if any(f"__{p}__" in name for p in range(1, 64)):
            continue
        fields = ", ".join(
            f"{f['name']} [{f['offset'] + f['width'] - 1}:{f['offset']}]"
            for f in port.get("fields", ())
        )
        rows.append(
            [
                f"`{name.replace('__0__', '__PORT__')}`",
                port["direction"],
                str(port["width"]),
                fields,
            ]
        )
    return table(["port", "direction", "bits", "fields"], rows)


def _attribute_docs(cls: type) -> dict[str, str]:
    """Return the texts that follow the fields or members of a class in its source."""
    from sphinx.pycode import ModuleAnalyzer

    analyzer = ModuleAnalyzer.for_module(cls.__module__)
    docs = analyzer.find_attr_docs()
    return {
        name: " ".join(" ".join(text).split())
        for (owner, name), text in docs.items()
        if owner == cls.__name__
    }


# -- the command line -----------------------------------------------------------------------------------------------


@source
def commands() -> str:
    """The help of every command."""
    import typer
    from typer.testing import CliRunner

    from pagetide.cli.app import app

    def walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield path
        children: Mapping[str, Any] = getattr(command, "commands", {})
        for name, child in children.items():
            yield from walk(child, (*path, name))

    runner = CliRunner(env={"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"})
    parts = []
    for path in walk(typer.main.get_command(app), ()):
        result = runner.invoke(app, [*path, "--help"], prog_name="pagetide")
        if result.exit_code:
            raise RuntimeError(
                f"pagetide {' '.join(path)} --help ended with {result.exit_code}: {result.output}"
            )
        text = "\n".join(line.rstrip() for line in result.output.strip().splitlines())
        parts.append(f"## {' '.join(('pagetide', *path))}\n\n```text\n{text}\n```\n")
    return "\n".join(parts)


class Generated(SphinxDirective):
    """Insert what the named function returns, parsed as part of the page."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the parsed text."""
        name = self.arguments[0]
        if name not in SOURCES:
            raise self.error(f"no generated text {name!r}; there are {', '.join(sorted(SOURCES))}")
        # The code may have changed though the page has not.
        self.env.note_reread()
        return self.parse_text_to_nodes(SOURCES[name](), allow_section_headings=True)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("generated", Generated)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
