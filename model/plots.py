"""Plots of workloads and results, as PNG or SVG files."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from pagetide.model.columnar import atomic_write_bytes
from pagetide.model.result import Result
from pagetide.model.system import System
from pagetide.model.vitality import Vitality
from pagetide.model.workload.workload import Workload

__all__ = ["plot_run", "plot_workload"]

_GIB = 2.0**30
_BLUE, _ORANGE, _GREEN, _GREY, _RED = "#2a6f97", "#e07a1f", "#3a7d44", "#8d99ae", "#b23a48"
_PLACES = (("GPU", _BLUE), ("host", _ORANGE), ("SSD", _GREEN))


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Figure, path: Path) -> None:
    buffer = io.BytesIO()
    # No date or version inside, so that equal plots are equal files.
    keys = {".png": {"Software": None}, ".svg": {"Date": None}}
    figure.savefig(buffer, format=path.suffix.lstrip(".") or "png", metadata=keys.get(path.suffix))
    atomic_write_bytes(path, buffer.getvalue())


def _steps(
    start_s: NDArray[np.float64], end_s: float, values: NDArray[np.float64]
) -> tuple[NDArray[np.float64], ...]:
    return np.append(start_s, end_s), np.append(values, values[-1:])


def plot_workload(workload: Workload, vitality: Vitality, system: System, path: Path) -> None:
    """Draw memory pressure over the iteration with the capacity line, and how long tensors lie idle.

    Args:
        workload: what is drawn.
        vitality: its vitality.
        system: gives the capacity.
        path: the file, ending in ``.png`` or ``.svg``.
    """
    figure = _figure(10, 3.6)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    start_s = vitality.start_ns[:-1] * 1e-9
    end_s = float(vitality.start_ns[-1]) * 1e-9
    x, live = _steps(start_s, end_s, vitality.live_bytes / _GIB)
    left.fill_between(x, live, step="post", color=_BLUE, alpha=0.3, linewidth=0)
    left.step(x, live, where="post", color=_BLUE, linewidth=1.0, label="alive")
    x, active = _steps(start_s, end_s, vitality.active_bytes / _GIB)
    left.step(x, active, where="post", color=_ORANGE, linewidth=0.8, label="in use by the kernel")
    capacity = system.gpu.memory_bytes / _GIB
    left.axhline(
        capacity, color=_RED, linestyle="--", linewidth=1.0, label=f"GPU memory, {capacity:g} GiB"
    )
    left.set(
        xlabel="time in the iteration, s",
        ylabel="memory, GiB",
        title=f"{workload.name}: memory pressure",
    )
    left.set_xlim(0, end_s)
    left.set_ylim(bottom=0)
    left.legend(loc="upper right", fontsize="small")

    periods = vitality.periods
    lengths_us = periods.length_ns[periods.length_ns > 0] * 1e-3
    if lengths_us.size:
        order = np.argsort(lengths_us)
        weights = workload.tensors.size_bytes[periods.tensor[periods.length_ns > 0]][order]
        right.plot(
            lengths_us[order],
            np.arange(1, order.size + 1) / order.size,
            color=_BLUE,
            label="of periods",
        )
        right.plot(
            lengths_us[order],
            np.cumsum(weights) / weights.sum(),
            color=_ORANGE,
            label="of their bytes",
        )
        right.set_xscale("log")
        right.legend(loc="upper left", fontsize="small")
    right.set(
        xlabel="length of the inactive period, us",
        ylabel="share up to this length",
        title="Inactive periods",
    )
    right.set_ylim(0, 1)
    _save(figure, path)


def plot_run(results: Sequence[Result], system: System, path: Path) -> None:
    """Draw results of one workload side by side: time with its parts, and memory use over the iteration.

    Args:
        results: one a policy, all of one workload.
        system: gives the capacity.
        path: the file, ending in ``.png`` or ``.svg``.
    """
    drawn = [result for result in results if result.policy != "ideal"] or list(results)
    figure = _figure(10, 2.2 + 1.5 * len(drawn))
    grid = figure.add_gridspec(len(drawn), 2, width_ratios=(2, 3))
    bars = figure.add_subplot(grid[:, 0])
    names = [result.policy for result in results]
    compute = [result.compute_ps * 1e-12 for result in results]
    stall = [result.stall_ps * 1e-12 for result in results]
    bars.bar(names, compute, color=_BLUE, label="compute")
    bars.bar(names, stall, bottom=compute, color=_RED, label="stall")
    for place, result in enumerate(results):
        bars.annotate(
            f"{result.fraction_of_ideal:.1%}",
            (place, result.total_ps * 1e-12),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
        )
    bars.set(ylabel="iteration, s", title=f"{results[0].workload}\nfraction of ideal")
    bars.margins(y=0.15)
    bars.legend(loc="upper left", fontsize="small")
    capacity = system.gpu.memory_bytes / _GIB
    for row, result in enumerate(drawn):
        axes = figure.add_subplot(grid[row, 1])
        x = result.start_ps * 1e-12
        used = result.occupancy_bytes / _GIB
        axes.stackplot(
            np.append(x, result.total_ps * 1e-12),
            *(np.append(used[:, place], used[-1, place]) for place in range(3)),
            colors=[color for _, color in _PLACES],
            labels=[name for name, _ in _PLACES],
            step="post",
            alpha=0.75,
            linewidth=0,
        )
        axes.axhline(capacity, color=_RED, linestyle="--", linewidth=1.0)
        axes.set(ylabel="GiB", title=f"{result.policy}: where the bytes are")
        axes.set_xlim(0, result.total_ps * 1e-12)
        if row == 0:
            axes.legend(loc="upper right", fontsize="small", ncols=3)
        if row == len(drawn) - 1:
            axes.set_xlabel("time in the iteration, s")
    _save(figure, path)
