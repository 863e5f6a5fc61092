"""Workloads: the type, where they come from (the zoo, captures, the G10 tables) and their lowering to access streams."""

from pagetide.model.workload.workload import (
    Csr,
    Kernels,
    Phase,
    TensorKind,
    Tensors,
    UnusedTensorWarning,
    Workload,
    WorkloadBuilder,
)

__all__ = [
    "Csr",
    "Kernels",
    "Phase",
    "TensorKind",
    "Tensors",
    "UnusedTensorWarning",
    "Workload",
    "WorkloadBuilder",
]
