"""Planners: one file a policy, one registry."""

from collections.abc import Callable

from pagetide.model.errors import InputError, did_you_mean
from pagetide.model.planners.base import Planner
from pagetide.model.planners.deepum import Deepum, DeepumOptions, Registers
from pagetide.model.planners.g10 import G10, Rank
from pagetide.model.planners.ideal import Ideal
from pagetide.model.planners.uvm import Uvm

__all__ = [
    "G10",
    "Deepum",
    "DeepumOptions",
    "Ideal",
    "Planner",
    "Registers",
    "Uvm",
    "get_planner",
    "policies",
]

_PLANNERS: dict[str, Callable[[], Planner]] = {
    "ideal": Ideal,
    "uvm": Uvm,
    "deepum": Deepum,
    "g10": G10,
    "g10-benefit": lambda: G10(Rank.BENEFIT),
}


def policies() -> list[str]:
    """Return the names of all policies."""
    return list(_PLANNERS)


def get_planner(name: str) -> Planner:
    """Return the planner of a policy; raises `InputError` for an unknown name."""
    if name not in _PLANNERS:
        raise InputError(f"unknown policy {name!r}; {did_you_mean(name, _PLANNERS)}")
    return _PLANNERS[name]()
