"""The one interface behind which every policy stands."""

from typing import Protocol

from pagetide.model.plan import Action, MigrationPlan, PlanBuilder, Target
from pagetide.model.system import System
from pagetide.model.vitality import Vitality
from pagetide.model.workload.workload import Workload

__all__ = ["Planner", "add_frees"]


class Planner(Protocol):
    """A policy: turns a workload and a system into a migration plan.

    A policy's `name` is what users type; its docstring states the rule and its source.
    """

    name: str

    def plan(self, workload: Workload, system: System) -> MigrationPlan:
        """Return the plan; the same input gives the same plan."""
        ...


def add_frees(builder: PlanBuilder, workload: Workload, vitality: Vitality) -> None:
    """Free every tensor that is not global right after its last use, as a framework's allocator does.

    Dead bytes are dropped, never written anywhere (profile `faithful`).
    """
    mortal = (~workload.tensors.is_global & (vitality.birth >= 0)).nonzero()[0]
    builder.add(Action.FREE, Target.GPU, trigger=vitality.death[mortal] + 1, tensor=mortal)
