"""Captures of a model's training step: recorded once with PyTorch, used without it at any batch.

.. code-block:: python

    from pathlib import Path

    import torch
    from pagetide.model.workload.capture import capture_step


    def build(batch):
        model = torch.nn.Sequential(torch.nn.Linear(784, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 10))
        labels = torch.zeros(batch, dtype=torch.int64)
        optimizer = torch.optim.Adam(model.parameters(), foreach=False)
        return model, torch.randn(batch, 784), lambda out: torch.nn.functional.cross_entropy(out, labels), optimizer


    capture = capture_step(build, name="my-model")
    capture.save(Path("my-model.npz"))
    workload = capture.workload(batch=4096, gpu="a100-40gb")

An optimizer made without ``foreach=False`` is recorded as PyTorch runs it on a CPU, which is the same loop over
parameters unless it is asked for the multi-tensor form.
"""

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
