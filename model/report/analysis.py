"""What the report shows, as numbers: binned link use and stalls, thinned occupancy, the worst stalls, labels of results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pagetide.model.result import Result

__all__ = [
    "WorstStall",
    "binned_rate",
    "carried",
    "differing_keys",
    "flatten",
    "kernel_in_bins",
    "label_results",
    "link_use",
    "occupancy_in_bins",
    "stall_use",
    "used_causes",
    "used_channels",
    "worst_stalls",
]


def binned_rate(
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    amount: NDArray[np.int64],
    edges: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return how much of `amount` falls into each bin, every amount spread evenly over its span.

    Args:
        start, end: int64[N], the spans; they may overlap and come in any order. A span without length falls in whole at its start.
        amount: int64[N].
        edges: float64[B + 1], ascending.

    Returns:
        float64[B]; its sum is the sum of `amount` if the edges embrace all spans.
    """
    if not len(start):
        return np.zeros(len(edges) - 1)
    instant = end <= start
    whole, _ = np.histogram(start[instant], bins=edges, weights=amount[instant])
    start, end, amount = start[~instant], end[~instant], amount[~instant]
    if not len(start):
        return whole.astype(np.float64)
    slope = amount / (end - start)
    times = np.concatenate([start, end]).astype(np.float64)
    change = np.concatenate([slope, -slope])
    order = np.argsort(times, kind="stable")
    times, change = times[order], change[order]
    # The running sum of changes leaves rounding errors where the true slope is 0: they are cut off below.
    running = np.cumsum(change)[:-1]
    running[running < slope.max() * 1e-9] = 0.0
    total = np.concatenate([[0.0], np.cumsum(running * np.diff(times))])
    return np.asarray(whole + np.diff(np.interp(edges, times, total)), dtype=np.float64)


def link_use(
    result: Result, channel: str, cause: str, edges_ps: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the mean rate at which a channel carried for a cause in each bin, in bytes per second: float64[B]."""
    moved = result.transfers
    if channel not in result.channels or cause not in result.causes:
        return np.zeros(len(edges_ps) - 1)
    rows = (moved.channel == result.channels.index(channel)) & (
        moved.cause == result.causes.index(cause)
    )
    carried = binned_rate(
        moved.start_ps[rows], moved.end_ps[rows], moved.size_bytes[rows], edges_ps
    )
    return carried / (np.diff(edges_ps) * 1e-12)


def used_channels(results: Sequence[Result]) -> list[str]:
    """Return the channels that carried something in any of the results, in their order."""
    names = dict.fromkeys(name for result in results for name in result.channels)
    return [name for name in names if any(carried(result, name) for result in results)]


def used_causes(results: Sequence[Result]) -> list[str]:
    """Return the causes for which anything moved in any of the results, in their order."""
    names = dict.fromkeys(name for result in results for name in result.causes)
    channels = used_channels(results)
    return [
        name
        for name in names
        if any(carried(result, channel, name) for result in results for channel in channels)
    ]


def carried(result: Result, channel: str, cause: str | None = None) -> int:
    """Return the bytes that a channel carried, for one cause or all; 0 for a channel or cause that the result does not know."""
    if channel not in result.channels or (cause is not None and cause not in result.causes):
        return 0
    row = result.traffic_bytes[result.channels.index(channel)]
    return int(row.sum() if cause is None else row[result.causes.index(cause)])


def stall_use(result: Result, edges_ps: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the share of each bin in which the next kernel waited, by stall cause: float64[P, B].

    A stall's causes are spread evenly over the stall.
    """
    waits = result.start_ps > result.ready_ps
    start, end = result.ready_ps[waits], result.start_ps[waits]
    return np.stack(
        [
            binned_rate(start, end, parts, edges_ps) / np.diff(edges_ps)
            for parts in result.stall_parts_ps[waits].T
        ]
    )


def occupancy_in_bins(result: Result, edges_ps: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the bytes in GPU, host and SSD in each bin of time: int64[B, 3].

    A bin shows what was there when the kernel with the most bytes on the GPU started (of equals, the one with the most in all; in a
    bin in which none starts, the last one before), so that peaks are never lost. Bins that begin after the iteration are 0.
    """
    used = result.occupancy_bytes
    bins = len(edges_ps) - 1
    place = np.clip(np.searchsorted(edges_ps, result.start_ps, side="right") - 1, 0, bins - 1)
    order = np.lexsort((-used.sum(axis=1), -used[:, 0], place))
    filled, first = np.unique(place[order], return_index=True)
    row = np.zeros(bins, dtype=np.int64)
    row[filled] = order[first]
    # A bin in which no kernel starts goes on with the last kernel before it.
    empty = np.ones(bins, dtype=bool)
    empty[filled] = False
    before = np.searchsorted(result.start_ps, edges_ps[:-1], side="right") - 1
    row[empty] = np.maximum(before[empty], 0)
    binned = used[row].copy()
    binned[edges_ps[:-1] >= max(result.total_ps, 1)] = 0
    return binned


def kernel_in_bins(result: Result, edges_ps: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the kernel that runs, or is waited for, in the middle of each bin: int64[B]."""
    middle = (edges_ps[:-1] + edges_ps[1:]) / 2
    # Kernels that take no time begin together: the last of them is the one that takes some.
    return np.maximum(np.searchsorted(result.ready_ps, middle, side="right") - 1, 0)


@dataclass(frozen=True)
class WorstStall:
    """One of the longest waits.

    Attributes:
        kernel: id of the kernel that waited.
        stall_ps: for how long.
        parts_ps: by stall cause.
    """

    kernel: int
    stall_ps: int
    parts_ps: tuple[int, ...]


def worst_stalls(result: Result, count: int) -> list[WorstStall]:
    """Return the `count` longest stalls, the longest first (of equals, the earlier one)."""
    stall = result.start_ps - result.ready_ps
    parts = result.stall_parts_ps
    order = np.argsort(-stall, kind="stable")[:count]
    return [
        WorstStall(int(k), int(stall[k]), tuple(parts[k].tolist())) for k in order if stall[k] > 0
    ]


def flatten(section: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return a nested configuration as texts by dotted key."""
    flat: dict[str, str] = {}
    for key, value in section.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = str(value).lower() if isinstance(value, bool) else str(value)
    return flat


def differing_keys(systems: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the dotted keys in which configurations differ, in the order of their first appearance."""
    flat = [flatten(system) for system in systems]
    keys = dict.fromkeys(key for one in flat for key in one)
    return [key for key in keys if len({one.get(key) for one in flat}) > 1]


def label_results(results: Sequence[Result]) -> list[str]:
    """Return a short label for each result of one workload: the policy, and whatever else is needed to tell them apart.

    That is the profile if profiles differ, then every configuration key in which results of the same policy differ, then a number.
    """
    several = len({result.profile for result in results}) > 1
    policies = [result.policy for result in results]
    extra: list[list[str]] = [[result.profile] if several else [] for result in results]
    groups: dict[tuple[str, ...], list[int]] = {}
    for place, policy in enumerate(policies):
        groups.setdefault((policy, *extra[place]), []).append(place)
    for places in groups.values():
        systems = [flatten(results[place].system) for place in places]
        keys = differing_keys(systems)
        telling = [key for key in keys if key not in ("name", "profile")] or keys
        for place, system in zip(places, systems, strict=True):
            extra[place] += [f"{key} {system.get(key, 'none')}" for key in telling]
    labels = [
        f"{policy} ({', '.join(more)})" if more else policy
        for policy, more in zip(policies, extra, strict=True)
    ]
    seen: dict[str, int] = {}
    for place, label in enumerate(labels):
        seen[label] = seen.get(label, 0) + 1
        if seen[label] > 1:
            labels[place] = f"{label} #{seen[label]}"
    return labels
