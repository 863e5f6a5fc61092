"""The policy `ideal`: a GPU whose memory holds everything."""

from pagetide.model.plan import MigrationPlan, PlanBuilder
from pagetide.model.planners.base import add_frees
from pagetide.model.system import System
from pagetide.model.vitality import analyse
from pagetide.model.workload.workload import Workload

__all__ = ["Ideal"]


class Ideal:
    """Unlimited GPU memory: no migration, no fault; the time is the sum of the kernel times (G10 paper, section 7.1)."""

    name = "ideal"

    def plan(self, workload: Workload, system: System) -> MigrationPlan:
        """Return a plan that only frees dead tensors, for a GPU without a limit."""
        builder = PlanBuilder(workload)
        add_frees(builder, workload, analyse(workload))
        return builder.build(self.name, system.profile, unlimited_gpu=True)
