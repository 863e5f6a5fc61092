"""Rendering of the report: results in, one HTML page out that needs nothing but a browser."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import plotly.offline
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from pagetide import __version__
from pagetide.model.columnar import atomic_write_bytes
from pagetide.model.errors import InputError
from pagetide.model.report import analysis, figures
from pagetide.model.report.figures import Figure
from pagetide.model.result import Result
from pagetide.model.system import System
from pagetide.model.units import format_bytes
from pagetide.model.workload.workload import Phase, TensorKind

__all__ = ["render_report", "save_report"]

_WORST = 12
_POINTS = 1500
_BINS = 600
_BUDGET_POINTS = 15_000
"""Points of time that all results of a report share, so that the page stays under 8 MB."""

_POLICY_COLOURS = {
    "ideal": 0,
    "g10": 1,
    "uvm": 2,
    "deepum": 3,
    "flashneuron": 4,
    "deepum-oracle": 5,
    "g10-gds": 6,
    "g10-host": 7,
}
_COLOURS = 8
_STALL_COLOURS = 6


def save_report(path: Path, results: Sequence[Result], *, title: str | None = None) -> None:
    """Write `render_report` to a file, atomically.

    Args:
        path: the file; its folder is made if needed.
        results, title: as in `render_report`.

    Raises:
        InputError: there is no result.
    """
    atomic_write_bytes(path, render_report(results, title=title).encode())


def render_report(results: Sequence[Result], *, title: str | None = None) -> str:
    """Return one HTML page about results; it holds all it needs, and the same results give the same page.

    Args:
        results: of one or more workloads; those of a workload are shown side by side, the fastest first.
        title: heading of the page; the workload's name or their number if not given.

    Raises:
        InputError: there is no result.
    """
    if not results:
        raise InputError("a report needs at least one result; give files that pagetide run wrote")
    workloads = list(dict.fromkeys(result.workload for result in results))
    if title is None:
        title = workloads[0] if len(workloads) == 1 else f"{len(workloads)} workloads"
    book = _Book(results)
    context = {
        "title": title,
        "version": __version__,
        "groups": [
            book.group(
                number,
                sorted(
                    (result for result in results if result.workload == name),
                    key=lambda result: (result.total_ps, result.policy != "ideal", result.policy),
                ),
            )
            for number, name in enumerate(workloads)
        ],
        "configuration": _configuration(results),
        "profiles": sorted({result.profile for result in results}),
        "systems": sorted({str(result.system.get("name", "unnamed")) for result in results}),
        "versions": sorted(
            {str(result.provenance.get("pagetide", "unknown")) for result in results}
        ),
        "count": len(results),
        "figures": Markup(_json(book.documents)),
        "plotly": Markup(plotly.offline.get_plotlyjs()),
    }
    return _environment().get_template("report.html.j2").render(context)


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("pagetide.model.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        duration=_duration,
        size=_size,
        count=_count,
        percent=_percent,
        number=_number,
        breakable=_breakable,
    )
    return environment


def _json(value: Any) -> str:
    """Return JSON that may stand inside a script element."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True).replace("<", "\\u003c")


# -- texts for people ---------------------------------------------------------------------------------------------


def _number(value: float, digits: int = 4) -> str:
    """Return a number with about `digits` significant digits and thousands separators, never an exponent."""
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - int(np.floor(np.log10(abs(value)))))
    return f"{value:,.{min(decimals, 9)}f}"


def _duration(time_ps: float) -> str:
    for unit, scale in (("s", 1e12), ("ms", 1e9), ("µs", 1e6), ("ns", 1e3)):
        if abs(time_ps) >= scale or (unit == "ns"):
            return f"{_number(time_ps / scale)} {unit}"
    raise AssertionError


def _size(size_bytes: float) -> str:
    for unit, scale in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(size_bytes) >= scale:
            return f"{_number(size_bytes / scale)} {unit}"
    return f"{size_bytes:,.0f} B"


def _breakable(name: str) -> Markup:
    """Return a name that may be broken after its separators."""
    return Markup(re.sub(r"([._:/]+)", r"\1<wbr>", str(escape(name))))


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


# -- one workload ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Shown:
    """A figure as the template needs it."""

    id: str
    figure: Figure
    label: str


class _Book:
    """Builds the workloads' parts of the page and collects their figures."""

    def __init__(self, results: Sequence[Result]) -> None:
        self.documents: dict[str, dict[str, Any]] = {}
        self.points = max(150, min(_POINTS, _BUDGET_POINTS // len(results)))
        self.bins = max(120, min(_BINS, _BUDGET_POINTS // len(results)))
        causes = dict.fromkeys(c for r in results for c in r.stall_causes)
        self.stall_colours = {
            cause: f"var(--stall-{number % _STALL_COLOURS})" for number, cause in enumerate(causes)
        }
        self.policy_colours: dict[str, str] = {}
        free = [n for n in range(_COLOURS) if n not in _POLICY_COLOURS.values()] or [4, 5, 6, 7]
        for policy in dict.fromkeys(result.policy for result in results):
            number = _POLICY_COLOURS.get(policy)
            if number is None:
                number = free[len(self.policy_colours) % len(free)]
            self.policy_colours[policy] = f"var(--policy-{number})"

    def _add(self, key: str, figure: Figure, label: str) -> _Shown:
        self.documents[key] = figure.document()
        return _Shown(key, figure, label)

    def group(self, number: int, results: Sequence[Result]) -> dict[str, Any]:
        """Return the template's values for the results of one workload."""
        labels = analysis.label_results(results)
        systems = [_system(result) for result in results]
        prefix = f"w{number}"
        end_s = max(result.total_ps for result in results) * 1e-12
        moved = figures.traffic(results, labels)
        first = results[0]
        channels, causes = analysis.used_channels(results), analysis.used_causes(results)
        real = [place for place, result in enumerate(results) if result.policy != "ideal"]
        return {
            "id": prefix,
            "name": first.workload,
            "facts": _facts(results, systems),
            "reading": _reading(results, labels),
            "rows": _rows(results, labels, self.policy_colours),
            "time": self._add(
                f"{prefix}-time",
                figures.time_split(results, labels, self.stall_colours),
                f"Iteration time of {first.workload} by policy",
            ),
            "memory": self._add(
                f"{prefix}-memory",
                figures.occupancy(results, labels, systems, self.points),
                f"Memory occupancy of {first.workload} over the iteration by policy",
            ),
            "panels": [
                self._panel(f"{prefix}-p{place}", result, label, system, end_s, channels, causes)
                for place, (result, label, system) in enumerate(
                    zip(results, labels, systems, strict=True)
                )
            ],
            "traffic": None
            if moved is None
            else self._add(f"{prefix}-traffic", moved, f"Traffic of {first.workload}"),
            "traffic_rows": _traffic_rows(results, labels, self.policy_colours),
            "open_panel": (real or [0])[0],
            "idle": [figures.channel_name(name) for name in first.channels if name not in channels],
            "causes": causes,
            "ssd_rows": _ssd_rows(results, labels, systems, self.policy_colours),
            "provenance": _provenance(results, labels),
        }

    def _panel(
        self,
        key: str,
        result: Result,
        label: str,
        system: System | None,
        end_s: float,
        channels: Sequence[str],
        moved_for: Sequence[str],
    ) -> dict[str, Any]:
        stalls = analysis.worst_stalls(result, _WORST)
        causes = result.stall_causes
        top = max((stall.stall_ps for stall in stalls), default=1)
        total = max(result.stall_ps, 1)
        blamed = result.blame_tensor
        rows = []
        covered = 0
        for stall in stalls:
            covered += stall.stall_ps
            rows.append(
                {
                    "kernel": stall.kernel,
                    "name": result.kernels.names[stall.kernel],
                    "phase": Phase(int(result.kernels.phase[stall.kernel])).name.lower(),
                    "start_ps": int(result.ready_ps[stall.kernel]),
                    "stall_ps": stall.stall_ps,
                    "share": stall.stall_ps / total,
                    "faults": int(result.fault_blocks[stall.kernel]),
                    "parts": [
                        {
                            "width": 100 * part / top,
                            "colour": self.stall_colours[cause],
                            "text": f"{cause}: {_duration(part)}",
                        }
                        for cause, part in zip(causes, stall.parts_ps, strict=True)
                        if part
                    ],
                    "tensor": _tensor(result, int(blamed[stall.kernel])),
                    "instead": "none came in: room was being made"
                    if dict(zip(causes, stall.parts_ps, strict=True)).get("eviction")
                    else "none came in: first touches",
                }
            )
        return {
            "id": key,
            "label": label,
            "policy": result.policy,
            "colour": self.policy_colours[result.policy],
            "figure": self._add(
                key,
                figures.activity(
                    result, system, end_s, self.bins, channels, moved_for, self.stall_colours
                ),
                f"Stalls and link use over the iteration, {label}",
            )
            if result.stall_ps or result.traffic_bytes.any()
            else None,
            "bin_ps": result.total_ps / self.bins,
            "stalls": rows,
            "stalled_kernels": int((result.start_ps > result.ready_ps).sum()),
            "covered": covered / total,
            "stall_ps": result.stall_ps,
            "lost": result.transfers.lost,
            "tensors": _blamed_tensors(result),
            "stall_legend": [
                {"text": cause, "colour": self.stall_colours[cause]} for cause in causes
            ],
        }


def _system(result: Result) -> System | None:
    """Return the configuration as a `System`; None if it is of another version of Pagetide and cannot be read as one."""
    try:
        return System.model_validate(dict(result.system))
    except ValueError:
        return None


def _tensor(result: Result, tensor: int) -> dict[str, Any] | None:
    if tensor < 0:
        return None
    return {
        "name": result.tensors.names[tensor],
        "kind": TensorKind(int(result.tensors.kind[tensor])).name.lower(),
        "bytes": int(result.tensors.size_bytes[tensor]),
    }


def _blamed_tensors(result: Result) -> list[dict[str, Any]]:
    """Tensors by the stall time of the kernels that waited for them last, the worst first."""
    blamed = result.blame_tensor
    stall = result.start_ps - result.ready_ps
    rows = (blamed >= 0) & (stall > 0)
    if not rows.any():
        return []
    waited = np.bincount(blamed[rows], weights=stall[rows], minlength=len(result.tensors))
    kernels = np.bincount(blamed[rows], minlength=len(result.tensors))
    worst = np.argsort(-waited, kind="stable")[:_WORST]
    top = float(waited[worst[0]])
    return [
        {
            "tensor": _tensor(result, int(tensor)),
            "stall_ps": float(waited[tensor]),
            "share": float(waited[tensor]) / max(result.stall_ps, 1),
            "width": 100 * float(waited[tensor]) / top,
            "kernels": int(kernels[tensor]),
        }
        for tensor in worst
        if waited[tensor] > 0
    ]


def _facts(results: Sequence[Result], systems: Sequence[System | None]) -> list[tuple[str, str]]:
    """The headline numbers: (what, value)."""
    first = results[0]
    alive = max(int(result.occupancy_bytes.sum(axis=1).max()) for result in results)
    facts = [("compute alone", _duration(first.compute_ps))]
    capacities = {system.gpu.memory_bytes for system in systems if system is not None}
    need = _size(alive)
    if len(capacities) == 1:
        capacity = capacities.pop()
        need += f", {alive / capacity:.2f}× the GPU's {format_bytes(capacity)}"
    facts.append(("memory alive at the peak", need))
    real = [result for result in results if result.policy != "ideal"]
    if real:
        best = min(real, key=lambda result: result.total_ps)
        facts.append(
            (
                f"fastest policy: {best.policy}",
                f"{_duration(best.total_ps)}, {_percent(best.fraction_of_ideal)} of ideal",
            )
        )
    facts.append(("kernels and tensors", f"{len(first.kernels):,} and {len(first.tensors):,}"))
    return facts


def _reading(results: Sequence[Result], labels: Sequence[str]) -> list[str]:
    """Sentences that say what the figures show."""
    real = [place for place, result in enumerate(results) if result.policy != "ideal"]
    if not real:
        return []
    best = min(real, key=lambda place: results[place].total_ps)
    slowest = max(real, key=lambda place: results[place].total_ps)
    told = [
        f"{labels[best]} takes {_duration(results[best].total_ps)} an iteration, "
        f"{_percent(results[best].fraction_of_ideal)} of what unlimited GPU memory would give"
        + (
            f", and is {results[slowest].total_ps / results[best].total_ps:.2f} times as fast as {labels[slowest]}."
            if slowest != best
            else "."
        )
    ]
    result = results[best]
    if result.stall_ps:
        causes = result.stall_causes
        parts = result.stall_parts_ps.sum(axis=0)
        largest = int(parts.argmax())
        share = "most" if 2 * int(parts[largest]) > result.stall_ps else "the largest part"
        which = f", {share} of it {causes[largest]} ({_duration(int(parts[largest]))})"
        kernels = int((result.start_ps > result.ready_ps).sum())
        told.append(
            f"It still waits {_duration(result.stall_ps)}, at {kernels:,} of {len(result.kernels):,} kernels{which}."
        )
    else:
        told.append("It never waits: every transfer is hidden behind compute.")
    return told


def _rows(
    results: Sequence[Result], labels: Sequence[str], colours: Mapping[str, str]
) -> list[dict[str, Any]]:
    real = [result for result in results if result.policy != "ideal"]
    base = max((result.total_ps for result in real), default=results[0].total_ps)
    return [
        {
            "label": label,
            "colour": colours[result.policy],
            "profile": result.profile,
            "total_ps": result.total_ps,
            "fraction": result.fraction_of_ideal,
            "speedup": base / result.total_ps if result.total_ps else 1.0,
            "stall_ps": result.stall_ps,
            "overlap": result.overlap_ps / result.compute_ps if result.compute_ps else 0,
            "faults": int(result.fault_blocks.sum()),
            "peak": result.gpu_peak_bytes,
            "moved_in": _moved(result, "in"),
            "moved_out": _moved(result, "out"),
        }
        for result, label in zip(results, labels, strict=True)
    ]


def _moved(result: Result, direction: str) -> int:
    """Return the bytes that all channels into or out of GPU memory carried."""
    return sum(
        result.traffic(channel)
        for channel in result.channels
        if channel.endswith("->gpu") == (direction == "in")
    )


def _traffic_rows(
    results: Sequence[Result], labels: Sequence[str], colours: Mapping[str, str]
) -> list[dict[str, Any]]:
    causes = analysis.used_causes(results)
    return [
        {
            "label": label,
            "colour": colours[result.policy],
            "channel": figures.channel_name(channel),
            "total": analysis.carried(result, channel),
            "causes": [analysis.carried(result, channel, cause) for cause in causes],
        }
        for channel in analysis.used_channels(results)
        for result, label in zip(results, labels, strict=True)
        if analysis.carried(result, channel)
    ]


def _ssd_rows(
    results: Sequence[Result],
    labels: Sequence[str],
    systems: Sequence[System | None],
    colours: Mapping[str, str],
) -> list[dict[str, Any]]:
    rows = []
    for result, label, system in zip(results, labels, systems, strict=True):
        read = analysis.carried(result, "ssd->gpu")
        written = analysis.carried(result, "gpu->ssd")
        if not read and not written:
            continue
        a_day = written * 86400e12 / result.total_ps if result.total_ps else 0.0
        rows.append(
            {
                "label": label,
                "colour": colours[result.policy],
                "read": read,
                "written": written,
                "written_a_day": a_day,
                "drive_writes": a_day / system.ssd.capacity_bytes if system is not None else None,
            }
        )
    return rows


# -- configuration and provenance ------------------------------------------------------------------------------------


def _configuration(results: Sequence[Result]) -> dict[str, Any]:
    """Every key of every distinct configuration: values, and what the key means and where its value comes from."""
    distinct: list[Mapping[str, Any]] = []
    for result in results:
        if not any(result.system == other for other in distinct):
            distinct.append(result.system)
    flat = [analysis.flatten(system) for system in distinct]
    meanings: dict[str, str] = {}
    for result in results:
        known = _system(result)
        if known is not None:
            meanings.update({key: text for key, _, text in known.describe()})
    used = []
    for number, system in enumerate(distinct):
        policies: dict[str, list[str]] = {}
        for result in results:
            if result.system == system and result.policy not in policies.get(result.workload, []):
                policies.setdefault(result.workload, []).append(result.policy)
        used.append(
            {
                "name": f"{number + 1}",
                "by": "; ".join(f"{name}: {', '.join(those)}" for name, those in policies.items()),
            }
        )
    # In the order of the definition; keys that it does not know come last.
    keys = [key for key in meanings if any(key in one for one in flat)]
    keys += [key for key in dict.fromkeys(k for one in flat for k in one) if key not in meanings]
    return {
        "used": used,
        "rows": [
            {
                "key": key,
                "values": [one.get(key, "none") for one in flat],
                "differs": len({one.get(key) for one in flat}) > 1,
                "meaning": meanings.get(
                    key, "a key of another version of Pagetide: no source known here"
                ),
            }
            for key in keys
        ],
    }


def _provenance(results: Sequence[Result], labels: Sequence[str]) -> list[dict[str, Any]]:
    """Where graph, sizes and times come from, and what the planner says, by key; values joined where all agree."""
    flat = [_provenance_texts(result.provenance) for result in results]
    keys = dict.fromkeys(key for one in flat for key in one)
    rows = []
    for key in keys:
        values = [one.get(key) for one in flat]
        if len(set(values)) == 1:
            rows.append({"key": key, "values": [("", values[0])]})
        else:
            rows.append(
                {
                    "key": key,
                    "values": [
                        (label, value)
                        for label, value in zip(labels, values, strict=True)
                        if value is not None
                    ],
                }
            )
    return rows


def _provenance_texts(provenance: Mapping[str, Any]) -> dict[str, str]:
    texts: dict[str, str] = {}
    lists = {
        key: ", ".join(map(str, value))
        for key, value in provenance.items()
        if isinstance(value, list) and not any(isinstance(one, Mapping) for one in value)
    }
    for key, value in analysis.flatten({**provenance, **lists}).items():
        texts[key] = value if len(value) <= 400 else f"{value[:400]} …"
    return texts
