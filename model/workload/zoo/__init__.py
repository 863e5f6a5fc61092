"""The model zoo: captures of public model code that ship with the package, at any batch, on a named GPU.

A capture is one forward and backward pass as PyTorch runs it, one kernel an operator; the optimizer step is appended.
Sizes are polynomials of batch and sequence length, fitted to recordings and checked to the byte at more points. Batch
1 has a recording of its own where PyTorch then leaves out copies.

``fp32`` and ``bf16`` are whole steps in that type: weights, gradients, optimizer states and activations. ``tf32`` is
the fp32 step with its matrix products and convolutions on tensor cores.
"""

from functools import cache
from pathlib import Path
from typing import Any

from pagetide.model.errors import InputError, did_you_mean
from pagetide.model.workload.capture.format import Capture
from pagetide.model.workload.capture.optimizers import optimizer_names, optimizer_rule
from pagetide.model.workload.roofline import gpu as gpu_preset
from pagetide.model.workload.workload import Workload

__all__ = [
    "DATA_FOLDER",
    "PRECISIONS",
    "capture",
    "capture_path",
    "describe",
    "load",
    "names",
    "optimizer_names",
]

DATA_FOLDER = Path(__file__).with_name("data")
"""Folder of the shipped captures."""

PRECISIONS = {"fp32": ("fp32", "fp32"), "tf32": ("fp32", "tf32"), "bf16": ("bf16", "fp32")}
"""Precision: the capture it uses, and the arithmetic of 32-bit matrix products and convolutions in it."""


def capture_path(name: str, precision: str, *, one_sample: bool = False) -> Path:
    """Return the file of a model's capture.

    Args:
        name: the model's name.
        precision: ``"fp32"`` or ``"bf16"``.
        one_sample: the file of the step at batch 1, where that is another step.
    """
    return DATA_FOLDER / f"{name}-{precision}{'-b1' if one_sample else ''}.npz"


@cache
def _names() -> tuple[str, ...]:
    return tuple(sorted(p.stem.removesuffix("-fp32") for p in DATA_FOLDER.glob("*-fp32.npz")))


def names() -> list[str]:
    """Return the names of the models, sorted."""
    return list(_names())


@cache
def _load_capture(path: Path) -> Capture:
    return Capture.load(path)


def capture(name: str, precision: str = "fp32", *, one_sample: bool = False) -> Capture:
    """Return a model's shipped capture.

    Args:
        name: one of `names`.
        precision: ``"fp32"``, ``"tf32"`` or ``"bf16"``.
        one_sample: take the step at batch 1, where that is another step: PyTorch leaves out copies then.

    Raises:
        InputError: a name is unknown.
    """
    if name not in _names():
        raise InputError(f"unknown model {name!r}; {did_you_mean(name, _names())}")
    if precision not in PRECISIONS:
        raise InputError(f"unknown precision {precision!r}; {did_you_mean(precision, PRECISIONS)}")
    file = PRECISIONS[precision][0]
    path = capture_path(name, file, one_sample=one_sample)
    return _load_capture(path if path.is_file() else capture_path(name, file))


def describe(name: str) -> dict[str, Any]:
    """Return what a model is, as JSON values.

    Keys: ``name``, ``title``, ``sample`` (what one sample is), ``parameters`` (their number), ``default_optimizer``,
    ``optimizers``, ``precisions``, ``kernels`` (of forward and backward pass), ``code`` (library and version),
    ``torch`` (version), ``date`` of the capture, and for a model of sequences ``seq`` (default length) and ``max_seq``.

    Raises:
        InputError: the name is unknown.
    """
    found = capture(name)
    info = found.metadata
    return {
        "name": name,
        "title": info["title"],
        "sample": info["sample"],
        "parameters": found.param_count,
        "default_optimizer": info["default_optimizer"],
        "optimizers": optimizer_names(),
        "precisions": list(PRECISIONS),
        "kernels": len(found.kernel_ops),
        **{key: info[key] for key in ("code", "torch", "date", "seq", "max_seq") if key in info},
    }


def load(
    name: str,
    *,
    batch: int,
    precision: str = "fp32",
    optimizer: str | None = None,
    gpu: str = "a100-40gb",
    seq: int | None = None,
) -> Workload:
    """Make the workload of one steady-state training step of a model.

    Args:
        name: one of `names`.
        batch: samples in the batch, 1 or more.
        precision: ``"fp32"``, ``"tf32"`` or ``"bf16"``.
        optimizer: one of `optimizer_names`; None takes the model's default.
        gpu: name of the GPU preset that the kernel times are for.
        seq: sequence length in tokens, for a model of sequences; None takes the model's default.

    Returns:
        The workload. Weights, buffers and optimizer states are global tensors.

    Raises:
        InputError: a name is unknown, a value is out of range, or the GPU has no such arithmetic.

    >>> bert = load("bert-base", batch=256)
    >>> bert.metadata["parameters"], bert.metadata["seq"]
    (109514298, 128)
    """
    found = capture(name, precision, one_sample=batch == 1)
    device = gpu_preset(gpu)
    device.peak(precision)
    rule = optimizer_rule(optimizer or str(found.metadata["default_optimizer"]))
    return found.workload(
        batch=batch,
        seq=seq,
        optimizer=rule.name,
        gpu=gpu,
        fp32_arithmetic=PRECISIONS[precision][1],
    )
