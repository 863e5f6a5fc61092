"""Captures of a model's training step: recorded once with PyTorch, used without it at any batch."""

from pagetide.model.workload.capture.fit import capture_function, capture_step
from pagetide.model.workload.capture.format import Capture, evaluate
from pagetide.model.workload.capture.optimizers import (
    OptimizerKernel,
    OptimizerRule,
    optimizer_names,
    optimizer_rule,
)
from pagetide.model.workload.capture.recorder import (
    Recording,
    TrainingStep,
    import_torch,
    import_zoo_library,
    record_step,
)

__all__ = [
    "Capture",
    "OptimizerKernel",
    "OptimizerRule",
    "Recording",
    "TrainingStep",
    "capture_function",
    "capture_step",
    "evaluate",
    "import_torch",
    "import_zoo_library",
    "optimizer_names",
    "optimizer_rule",
    "record_step",
]
