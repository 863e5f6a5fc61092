"""Planners: one file a policy, one registry."""

from pagetide.model.errors import InputError, did_you_mean
from pagetide.model.planners.base import Planner
from pagetide.model.planners.g10 import G10
from pagetide.model.planners.ideal import Ideal
from pagetide.model.planners.uvm import Uvm

__all__ = ["G10", "Ideal", "Planner", "Uvm", "get_planner", "policies"]

_PLANNERS: tuple[type[Planner], ...] = (Ideal, Uvm, G10)


def policies() -> list[str]:
    """Return the names of all policies."""
    return [planner.name for planner in _PLANNERS]


def get_planner(name: str) -> Planner:
    """Return the planner of a policy; raises `InputError` for an unknown name."""
    for planner in _PLANNERS:
        if planner.name == name:
            return planner()
    raise InputError(f"unknown policy {name!r}; {did_you_mean(name, policies())}")
