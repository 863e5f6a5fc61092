"""The figures of the report as Plotly documents (plain JSON values).

Colours are names of CSS variables, ``var(--cause-0)``, which the page resolves when it draws, so that figures follow the theme.
Every trace carries in ``meta`` the ``key`` of the entry of the page's own legend that shows and hides it.
"""

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pagetide.model.report import analysis
from pagetide.model.result import Result
from pagetide.model.system import System
from pagetide.model.workload.workload import Phase

__all__ = [
    "CAUSES",
    "PLACES",
    "Entry",
    "Figure",
    "activity",
    "cause_colour",
    "channel_name",
    "occupancy",
    "time_split",
    "traffic",
]

_GIB = 2.0**30
_LEFT, _RIGHT = 64, 16
CAUSES = ("demand", "prefetch", "pre-evict", "demand-evict")
PLACES = ("GPU", "host", "SSD")
_WAITS = "time the GPU waits"


@dataclass(frozen=True)
class Entry:
    """An entry of a figure's legend: a text, a CSS colour, and the key that its traces have in ``meta``."""

    text: str
    colour: str
    key: str


@dataclass(frozen=True)
class Figure:
    """A figure: Plotly ``data`` and ``layout``, its height in CSS pixels, and its legend."""

    data: list[dict[str, Any]]
    layout: dict[str, Any]
    height: int
    legend: tuple[Entry, ...]

    def document(self) -> dict[str, Any]:
        """Return what the page's script draws."""
        return {"data": self.data, "layout": {**self.layout, "height": self.height}}


def _lines(labels: Sequence[str]) -> tuple[list[str], int]:
    """Return labels for an axis, broken into lines where they list configuration keys, and the most lines that one has."""
    broken = [_text(label).replace(" (", "<br>(", 1).replace(", ", ",<br>") for label in labels]
    return broken, max(label.count("<br>") for label in broken) + 1


def _packed(values: NDArray[Any]) -> dict[str, str]:
    """Return an array as Plotly reads it without a text for each number: 32-bit floats in base64."""
    return {
        "dtype": "f4",
        "bdata": base64.b64encode(np.asarray(values, dtype="<f4").tobytes()).decode(),
    }


def channel_name(channel: str) -> str:
    """Return a channel's name for people: ``ssd->gpu`` is ``SSD → GPU``."""
    proper = {"gpu": "GPU", "ssd": "SSD"}
    return " → ".join(proper.get(end, end) for end in channel.split("->"))


def cause_colour(cause: str, causes: Sequence[str]) -> str:
    """Return the CSS colour of a cause of transfers; `causes` numbers those that are none of the engine's."""
    if cause in CAUSES:
        return f"var(--cause-{CAUSES.index(cause)})"
    others = [name for name in causes if name not in CAUSES]
    return f"var(--cause-{len(CAUSES) + others.index(cause) % 2})"


def _text(name: str) -> str:
    """Return a name for a hover label, in which Plotly reads a subset of HTML."""
    return html.escape(name, quote=False)


def _time_axis(end_s: float, **more: Any) -> dict[str, Any]:
    return {
        "range": [0, end_s],
        "tickformat": "~s",
        "ticksuffix": "s",
        "hoverformat": ".4~s",
        "zeroline": False,
        "ticks": "outside",
        "ticklen": 6,
        "minallowed": 0,
        "maxallowed": end_s,
        **more,
    }


def time_split(
    results: Sequence[Result], labels: Sequence[str], stall_colours: dict[str, str]
) -> Figure:
    """Draw one bar a result: compute, compute while something is transferred, and stalls by cause."""
    causes = list(dict.fromkeys(c for result in results for c in result.stall_causes))
    names, lines = _lines(labels)
    total = [result.total_ps * 1e-12 for result in results]
    rows: list[tuple[str, str, str, list[float]]] = []
    overlap = [result.overlap_ps * 1e-12 for result in results]
    alone = [r.compute_ps * 1e-12 - o for r, o in zip(results, overlap, strict=True)]
    rows.append(("compute, links idle", "var(--compute)", "compute", alone))
    rows.append(("compute, links busy", "var(--overlap)", "overlap", overlap))
    for cause in causes:
        values = []
        for result in results:
            own = result.stall_causes
            parts = result.stall_parts_ps.sum(axis=0)
            values.append(float(parts[own.index(cause)]) * 1e-12 if cause in own else 0.0)
        rows.append((f"stall: {cause}", stall_colours[cause], f"stall-{cause}", values))
    rows = [row for row in rows if any(row[3])]
    data: list[dict[str, Any]] = [
        {
            "type": "bar",
            "orientation": "h",
            "y": names,
            "x": values,
            "name": text,
            "meta": {"key": key},
            "marker": {"color": colour, "line": {"width": 0}},
            "customdata": [
                100 * value / whole if whole else 0
                for value, whole in zip(values, total, strict=True)
            ],
            "hovertemplate": "<b>%{y}</b><br>"
            + _text(text)
            + "<br>%{x:.4~s}s, %{customdata:.3~g} % of the iteration<extra></extra>",
        }
        for text, colour, key, values in rows
    ]
    notes = [
        {
            "x": value,
            "y": name,
            "xanchor": "left",
            "xshift": 6,
            "showarrow": False,
            "text": f"{result.fraction_of_ideal:.1%}",
            "font": {"size": 13},
        }
        for name, value, result in zip(names, total, results, strict=True)
    ]
    ideal = results[0].compute_ps * 1e-12
    return Figure(
        data=data,
        layout={
            "barmode": "stack",
            "bargap": 0.35,
            "hovermode": "closest",
            "margin": {"l": 8, "r": 58, "t": 8, "b": 44},
            "xaxis": _time_axis(max(total) * 1.01, title={"text": "iteration time"}),
            "yaxis": {
                "autorange": "reversed",
                "automargin": True,
                "fixedrange": True,
                "ticklabelstandoff": 8,
            },
            "annotations": notes,
            "shapes": [_vertical(ideal)],
        },
        height=62 + max(38, 17 * lines + 8) * len(results),
        legend=tuple(Entry(text, colour, key) for text, colour, key, _ in rows),
    )


def _vertical(x: float) -> dict[str, Any]:
    return {
        "type": "line",
        "xref": "x",
        "yref": "paper",
        "x0": x,
        "x1": x,
        "y0": 0,
        "y1": 1,
        "line": {"color": "var(--text)", "width": 1, "dash": "dot"},
    }


@dataclass(frozen=True)
class _Rows:
    """Rows of axes one below the other, all over one time axis; heights in pixels."""

    heights: Sequence[int]
    gap: int = 30
    top: int = 26
    bottom: int = 44

    @property
    def height(self) -> int:
        return sum(self.heights) + self.gap * (len(self.heights) - 1) + self.top + self.bottom

    def domain(self, row: int) -> list[float]:
        whole = self.height - self.top - self.bottom
        above = sum(self.heights[:row]) + self.gap * row
        return [max(0.0, 1 - (above + self.heights[row]) / whole), 1 - above / whole]

    def layout(
        self, titles: Sequence[str], y_axes: Sequence[dict[str, Any]], end_s: float
    ) -> dict[str, Any]:
        layout: dict[str, Any] = {
            "hovermode": "x",
            "margin": {"l": _LEFT, "r": _RIGHT, "t": self.top, "b": self.bottom},
            "xaxis": _time_axis(
                end_s,
                title={"text": "time in the iteration"},
                showspikes=True,
                spikemode="across",
                spikesnap="cursor",
                anchor=f"y{len(self.heights)}" if len(self.heights) > 1 else "y",
            ),
            "annotations": [],
        }
        for row, (title, axis) in enumerate(zip(titles, y_axes, strict=True)):
            layout[f"yaxis{row + 1 if row else ''}"] = {
                "domain": self.domain(row),
                "anchor": "x",
                "fixedrange": True,
                "rangemode": "tozero",
                "nticks": 4,
                **axis,
            }
            layout["annotations"].append(
                {
                    "text": title,
                    "xref": "paper",
                    "yref": "paper",
                    "x": 0,
                    "xanchor": "left",
                    "y": self.domain(row)[1],
                    "yanchor": "bottom",
                    "yshift": 2,
                    "showarrow": False,
                    "font": {"size": 13},
                }
            )
        return layout


def _axis(row: int) -> str:
    return f"y{row + 1 if row else ''}"


def _limit(row: int, y: float, end_s: float, text: str) -> dict[str, Any]:
    """A dashed line across a row, as a trace, so that it takes part in the axis range and tells its value."""
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [0, end_s],
        "y": [y, y],
        "yaxis": _axis(row),
        "name": text,
        "meta": {"key": "limit"},
        "hoverinfo": "skip",
        "line": {"color": "var(--limit)", "width": 1.5, "dash": "dash"},
    }


def _band(
    row: int,
    x: dict[str, Any],
    values: NDArray[Any],
    name: str,
    colour: str,
    key: str,
    title: str,
    unit: str,
) -> dict[str, Any]:
    """One layer of a row's stack. `title` and `unit` are for the page's own hover label, which tells all rows at once."""
    return {
        "type": "scatter",
        "mode": "lines",
        **x,
        "y": _packed(values),
        "yaxis": _axis(row),
        "stackgroup": f"row{row}",
        "name": name,
        "meta": {"key": key, "row": title, "unit": unit},
        "fillcolor": colour,
        "line": {"shape": "hv", "width": 0, "color": colour},
        "hoverinfo": "none",
    }


def occupancy(
    results: Sequence[Result],
    labels: Sequence[str],
    systems: Sequence[System | None],
    points: int,
) -> Figure:
    """Draw for each result where the bytes are over the iteration, stacked, against the GPU's capacity."""
    end_ps = max(1, *(result.total_ps for result in results))
    edges = np.linspace(0.0, float(end_ps), points + 1)
    x = {"x0": 0, "dx": (edges[1] - edges[0]) * 1e-12}
    rows = _Rows([128] * len(results))
    data: list[dict[str, Any]] = []
    drawn = [analysis.occupancy_in_bins(result, edges) / _GIB for result in results]
    top = max(float(used.sum(axis=1).max()) for used in drawn)
    for row, (result, label, system, used) in enumerate(
        zip(results, labels, systems, drawn, strict=True)
    ):
        for place, name in enumerate(PLACES):
            if used[:, place].any():
                data.append(
                    _band(
                        row,
                        x,
                        used[:, place],
                        name,
                        f"var(--place-{place})",
                        f"place-{place}",
                        label,
                        "GiB",
                    )
                )
        if system is not None and result.policy != "ideal":
            capacity = system.gpu.memory_bytes / _GIB
            top = max(top, capacity)
            data.append(_limit(row, capacity, end_ps * 1e-12, "GPU memory"))
    axes = [{"title": {"text": "GiB"}, "range": [0, top * 1.06]} for _ in results]
    legend = [
        Entry(name, f"var(--place-{place})", f"place-{place}")
        for place, name in enumerate(PLACES)
        if any(used[:, place].any() for used in drawn)
    ]
    if any(trace["meta"]["key"] == "limit" for trace in data):
        legend.append(Entry("GPU memory", "var(--limit)", "limit"))
    return Figure(
        data=data,
        layout=rows.layout([f"<b>{_text(label)}</b>" for label in labels], axes, end_ps * 1e-12),
        height=rows.height,
        legend=tuple(legend),
    )


def activity(
    result: Result,
    system: System | None,
    end_s: float,
    bins: int,
    channels: Sequence[str],
    causes: Sequence[str],
    stall_colours: dict[str, str],
) -> Figure:
    """Draw what a result's GPU waits for and what `channels` carry over the iteration, in bins of equal length."""
    edges = np.linspace(0.0, float(max(result.total_ps, 1)), bins + 1)
    step_s = (edges[1] - edges[0]) * 1e-12
    x = {"x0": 0, "dx": step_s}
    data: list[dict[str, Any]] = []
    legend: dict[str, Entry] = {}
    kernel = analysis.kernel_in_bins(result, edges)
    phase_of = result.kernels.phase[kernel]
    for phase in Phase:
        inside = (phase_of == phase).astype(np.float64)
        if inside.any():
            name = phase.name.lower()
            entry = Entry(name, f"var(--phase-{int(phase)})", f"phase-{name}")
            legend[entry.key] = entry
            data.append(_band(0, x, inside, name, entry.colour, entry.key, "", ""))
    stalls = analysis.stall_use(result, edges)
    for waited_for, share in zip(result.stall_causes, stalls, strict=True):
        if share.max(initial=0) > 0:
            entry = Entry(f"stall: {waited_for}", stall_colours[waited_for], f"stall-{waited_for}")
            legend[entry.key] = entry
            data.append(
                _band(
                    1,
                    x,
                    100 * share,
                    entry.text,
                    entry.colour,
                    entry.key,
                    _WAITS,
                    "%",
                )
            )
    limits = _limits(system)
    highest = []
    for row, channel in enumerate(channels, start=2):
        total = np.zeros(bins)
        for cause in causes:
            rate = analysis.link_use(result, channel, cause, edges) / 1e9
            if rate.max(initial=0) <= 0:
                continue
            total += rate
            entry = Entry(cause, cause_colour(cause, causes), f"cause-{cause}")
            legend[entry.key] = entry
            data.append(
                _band(row, x, rate, cause, entry.colour, entry.key, channel_name(channel), "GB/s")
            )
        highest.append(max(float(total.max(initial=0)), limits.get(channel, 0.0)))
        if channel in limits:
            data.append(_limit(row, limits[channel], end_s, "limit"))
            legend["limit"] = Entry("limit", "var(--limit)", "limit")
        else:
            # An axis without a trace is not drawn.
            data.append({**_limit(row, 0.0, end_s, "nothing"), "opacity": 0})
    if not any(trace["yaxis"] == _axis(1) for trace in data):
        # An axis without a trace is not drawn.
        data.append({**_limit(1, 0.0, end_s, "no stall"), "opacity": 0})
    rows = _Rows([10] + [84] * (1 + len(channels)))
    axes: list[dict[str, Any]] = [
        {"range": [0, 1], "visible": False},
        {"title": {"text": "%"}, "range": [0, 105]},
    ]
    axes += [{"title": {"text": "GB/s"}, "range": [0, high * 1.1 or 1.0]} for high in highest]
    titles = ["phase", _WAITS, *(_text(channel_name(channel)) for channel in channels)]
    layout = rows.layout(titles, axes, end_s)
    changes = np.flatnonzero(np.diff(kernel, prepend=-1))
    layout["meta"] = {
        "kernels": [[int(b), result.kernels.names[kernel[b]]] for b in changes],
    }
    return Figure(
        data=data,
        layout=layout,
        height=rows.height,
        legend=tuple(sorted(legend.values(), key=lambda entry: entry.key == "limit")),
    )


def _limits(system: System | None) -> dict[str, float]:
    """Return what each channel carries at most, in GB/s; nothing if the configuration does not tell."""
    if system is None:
        return {}
    link = system.link.bandwidth_bytes_per_s / 1e9
    return {
        "host->gpu": link,
        "ssd->gpu": min(link, system.ssd.read_bandwidth_bytes_per_s / 1e9),
        "gpu->host": link,
        "gpu->ssd": min(link, system.ssd.write_bandwidth_bytes_per_s / 1e9),
    }


def traffic(results: Sequence[Result], labels: Sequence[str]) -> Figure | None:
    """Draw the bytes that each channel carried in the iteration, by cause; None if nothing moved."""
    channels, causes = analysis.used_channels(results), analysis.used_causes(results)
    if not channels:
        return None
    shown = [i for i, result in enumerate(results) if result.traffic_bytes.any()]
    names, lines = _lines([labels[i] for i in shown])
    data: list[dict[str, Any]] = []
    for row, channel in enumerate(channels):
        for cause in causes:
            values = [analysis.carried(results[i], channel, cause) / _GIB for i in shown]
            if not any(values):
                continue
            data.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "y": names,
                    "x": values,
                    "yaxis": _axis(row),
                    "name": cause,
                    "meta": {"key": f"cause-{cause}"},
                    "marker": {"color": cause_colour(cause, causes), "line": {"width": 0}},
                    "hovertemplate": "<b>%{y}</b><br>"
                    + _text(f"{channel_name(channel)}, {cause}")
                    + " %{x:,.4~g} GiB<extra></extra>",
                }
            )
    rows = _Rows([10 + max(24, 17 * lines + 4) * len(names)] * len(channels))
    axis = {"autorange": "reversed", "automargin": True, "ticklabelstandoff": 8, "nticks": 0}
    titles = [_text(channel_name(channel)) for channel in channels]
    layout = rows.layout(titles, [axis] * len(channels), 0.0)
    most = max(analysis.carried(results[i], channel) for i in shown for channel in channels) / _GIB
    layout["xaxis"] = {
        "title": {"text": "GiB an iteration"},
        "range": [0, most * 1.04],
        "anchor": layout["xaxis"]["anchor"],
        "ticks": "outside",
        "ticklen": 6,
        "minallowed": 0,
    }
    layout.update(barmode="stack", bargap=0.3, hovermode="closest")
    layout["margin"]["l"] = 8
    legend = tuple(Entry(cause, cause_colour(cause, causes), f"cause-{cause}") for cause in causes)
    return Figure(data=data, layout=layout, height=rows.height, legend=legend)
