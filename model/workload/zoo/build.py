"""Makes the shipped captures and optimizer rules again: ``python -m pagetide.model.workload.zoo.build [MODEL ...]``.

Needs ``pip install 'pagetide[capture]'``. Writes the files that the package ships, in the package's own folders.
"""

import argparse
import importlib.metadata
import json
from collections.abc import Callable, Sequence
from typing import Any

from pagetide.model.columnar import atomic_write_bytes
from pagetide.model.errors import InputError, did_you_mean
from pagetide.model.workload.capture.fit import capture_function, capture_step
from pagetide.model.workload.capture.format import Capture
from pagetide.model.workload.capture.optimizers import RULES_PATH, optimizer_rule
from pagetide.model.workload.capture.recorder import (
    TrainingStep,
    import_torch,
    import_zoo_library,
    record_step,
)
from pagetide.model.workload.workload import Phase, TensorKind
from pagetide.model.workload.zoo import DATA_FOLDER, capture_path
from pagetide.model.workload.zoo.models import MODELS

__all__ = [
    "OPTIMIZERS",
    "capture_model",
    "capture_one_sample",
    "capture_target",
    "make_optimizer",
    "record_rule",
]

OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("SGD", {"lr": 0.1, "momentum": 0.9}),
    "adam": ("Adam", {"lr": 1e-3}),
    "adamw": ("AdamW", {"lr": 1e-3}),
}
"""Optimizers with a shipped rule: class in ``torch.optim`` and its arguments."""

_BATCHES = (2, 3, 5)
_BATCHES_FROM_ONE = (2, 3, 1, 5)
_LENGTHS = (48, 80, 112, 2, 208)
_DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


def make_optimizer(name: str, parameters: Any) -> Any:
    """Return the ``torch.optim`` optimizer that a rule stands for, one kernel an operator and parameter."""
    torch = import_torch()
    class_name, arguments = OPTIMIZERS[name]
    return getattr(torch.optim, class_name)(parameters, foreach=False, fused=False, **arguments)


def record_rule(name: str) -> dict[str, Any]:
    """Record what an optimizer does with one parameter in its second step; the JSON form of an `OptimizerRule`."""
    torch = import_torch()
    elements = 12

    def build(batch: int) -> TrainingStep:
        model = torch.nn.Linear(3, 4, bias=False)
        return TrainingStep(
            model=model,
            inputs=torch.randn(batch, 3),
            loss=lambda out: out.sum(),
            optimizer=make_optimizer(name, model.parameters()),
        )

    step = record_step(build, batch=2)
    ((weight, gradient, _),) = step.params
    states = [t for t, kind in enumerate(step.tensor_kind) if kind == TensorKind.OPTIMIZER]
    role = {t: r for r, t in enumerate([weight, gradient, *states])}
    kernels = []
    for k, phase in enumerate(step.phases):
        if phase != Phase.OPTIMIZER:
            continue
        for tensor in step.outputs[k]:
            role.setdefault(tensor, len(role))
        kernels.append(
            [step.ops[k], [role[t] for t in step.inputs[k]], [role[t] for t in step.outputs[k]]]
        )
    if any(step.tensor_bytes[t] != 4 * elements for t in role):
        raise RuntimeError(f"{name}: not all tensors of the step are as large as the parameter")
    class_name, arguments = OPTIMIZERS[name]
    call = ", ".join(f"{key}={value}" for key, value in arguments.items())
    return {
        "call": f"torch.optim.{class_name}({call}, foreach=False, fused=False)",
        "states": [step.tensor_names[t].rsplit(".", 1)[1] for t in states],
        "temporaries": len(role) - 2 - len(states),
        "kernels": kernels,
    }


def capture_target(
    target: str,
    *,
    precision: str = "fp32",
    batch: int | Sequence[int] = (2, 3, 5),
    optimizer: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Capture:
    """Capture a model of the zoo or what a function builds; the command line's entry.

    Args:
        target: name of a model of the zoo, or ``module:function`` or ``file.py:function`` (see `capture_function`).
        precision: ``"fp32"`` or ``"bf16"``, the floating-point type of the whole step unless the function says else.
        batch: batches to record, as `capture_step`; a model of the zoo keeps its own.
        optimizer: name of a shipped optimizer step to append; None appends none.
        progress: called with what is about to be recorded.

    Raises:
        InputError: the target, the precision or the optimizer is unknown, PyTorch or the model's library is absent, or
            the step cannot be captured.
    """
    if precision not in _DTYPES:
        raise InputError(f"unknown precision {precision!r}; {did_you_mean(precision, _DTYPES)}")
    if ":" in target:
        return capture_function(
            target,
            batch=batch,
            optimizer=optimizer,
            dtype=_DTYPES[precision],
            progress=progress,
        )
    if target not in MODELS:
        raise InputError(
            f"unknown model {target!r}; {did_you_mean(target, MODELS)} (or give module:function)"
        )
    if optimizer is not None:
        optimizer_rule(optimizer)
    found = capture_model(target, precision, progress)
    return found if optimizer is None else found.with_optimizer(optimizer)


def capture_model(
    name: str, precision: str, progress: Callable[[str], None] | None = None
) -> Capture:
    """Capture a model of the zoo, without optimizer, as the shipped captures are made.

    The capture holds from batch 1 on if the step there runs the same operators, else from batch 2 on.
    """
    if MODELS[name].seq is None:
        try:
            return _capture(name, precision, _BATCHES_FROM_ONE, progress)
        except ValueError:
            # The graph differs at one sample, or the model refuses to be trained on one.
            pass
    return _capture(name, precision, _BATCHES, progress)


def capture_one_sample(name: str, precision: str) -> Capture | None:
    """Capture a model of the zoo at batch 1 alone; None if the model refuses to be trained on one sample."""
    try:
        return _capture(name, precision, 1, None)
    except InputError:
        raise
    except ValueError as error:
        if "Expected more than 1 value per channel" in str(error):
            return None
        raise


def _capture(
    name: str,
    precision: str,
    batch: int | Sequence[int],
    progress: Callable[[str], None] | None,
) -> Capture:
    model = MODELS[name]
    import_torch()
    if model.distribution:
        import_zoo_library(model.distribution)
    code = model.distribution or "pagetide"
    return capture_step(
        model.build,
        batch=batch,
        seq=None if model.seq is None else _LENGTHS,
        default_seq=model.seq,
        name=name,
        dtype=_DTYPES[precision],
        metadata={
            "title": model.title,
            "code": f"{code} {importlib.metadata.version(code)}",
            "sample": model.input,
            "default_optimizer": model.optimizer,
        },
        progress=progress,
    )


def _write_rules() -> None:
    document = {
        "torch": str(import_torch().__version__),
        "rules": {name: record_rule(name) for name in OPTIMIZERS},
    }
    atomic_write_bytes(RULES_PATH, (json.dumps(document, indent=1) + "\n").encode())
    print(f"{RULES_PATH.name}: {', '.join(OPTIMIZERS)}")


def main() -> None:
    """Write the files of the models on the command line; of all models, and the optimizer rules, if there is none."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    models = parser.parse_args().models
    for name in models:
        if name not in MODELS:
            parser.error(f"unknown model {name!r}; {did_you_mean(name, MODELS)}")
    if not models:
        _write_rules()
    DATA_FOLDER.mkdir(exist_ok=True)
    for name in models or MODELS:
        for precision in _DTYPES:
            captures = {capture_path(name, precision): capture_model(name, precision)}
            if all(found.metadata["min_batch"] > 1 for found in captures.values()):
                one = capture_one_sample(name, precision)
                if one is not None:
                    captures[capture_path(name, precision, one_sample=True)] = one
            for path, found in captures.items():
                found.save(path)
                print(f"{path.name}: {path.stat().st_size} bytes", flush=True)


if __name__ == "__main__":
    main()
