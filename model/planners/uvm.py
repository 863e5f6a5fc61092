"""The policy `uvm`: demand paging as the stock driver does it."""

from pagetide.model.plan import MigrationPlan, PlanBuilder
from pagetide.model.planners.base import add_frees
from pagetide.model.system import System
from pagetide.model.vitality import analyse
from pagetide.model.workload.workload import Workload

__all__ = ["Uvm"]


class Uvm:
    """Base UVM: every byte moves on a page fault, blocks of 2 MiB, least recently migrated block evicted first.

    Faults are served in batches by the driver on the host (`System.fault`). A victim goes to host memory, and to the SSD
    when host memory is full. The first touch of a tensor is a fault too, but moves no bytes. Source: NVIDIA UVM driver
    (`uvm_gpu_replayable_faults.c`), G10 paper section 7.1 for the use of the SSD.
    """

    name = "uvm"

    def plan(self, workload: Workload, system: System) -> MigrationPlan:
        """Return a plan that only frees dead tensors: the engine's fault path does the rest."""
        builder = PlanBuilder(workload)
        add_frees(builder, workload, analyse(workload))
        return builder.build(self.name, system.profile)
