"""Optimizer steps as rules for one parameter, recorded once from PyTorch and applied to every parameter.

The rules are in ``optimizers.json`` beside this file, written by `pagetide.model.workload.zoo.build` from
``torch.optim`` with ``foreach=False, fused=False`` in its second step, when the states exist. A step that fuses the
parameters of a model into a few multi-tensor kernels would end the iteration with fewer and longer kernels; it is not
offered.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pagetide.model.errors import InputError, did_you_mean

__all__ = ["OptimizerKernel", "OptimizerRule", "optimizer_names", "optimizer_rule"]

RULES_PATH = Path(__file__).with_name("optimizers.json")


@dataclass(frozen=True)
class OptimizerKernel:
    """One operator on tensors that are all as large as the parameter.

    Attributes:
        op: name of the operator.
        reads: roles of the tensors it reads: 0 the parameter, 1 its gradient, then the states in order, then the
            temporaries.
        writes: roles of the tensors it writes.
    """

    op: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]


@dataclass(frozen=True)
class OptimizerRule:
    """What an optimizer does with one parameter in a steady-state step.

    Attributes:
        name: the rule's name.
        call: the call in PyTorch that it was recorded from.
        states: names of the states, each as large as the parameter.
        temporaries: number of tensors of the parameter's size that live within the step.
        kernels: the operators in order.
    """

    name: str
    call: str
    states: tuple[str, ...]
    temporaries: int
    kernels: tuple[OptimizerKernel, ...]


@cache
def _rules() -> Mapping[str, OptimizerRule]:
    rows: dict[str, Any] = json.loads(RULES_PATH.read_text(encoding="utf-8"))["rules"]
    return {
        name: OptimizerRule(
            name=name,
            call=row["call"],
            states=tuple(row["states"]),
            temporaries=row["temporaries"],
            kernels=tuple(
                OptimizerKernel(op=op, reads=tuple(reads), writes=tuple(writes))
                for op, reads, writes in row["kernels"]
            ),
        )
        for name, row in rows.items()
    }


def optimizer_names() -> list[str]:
    """Return the names of the optimizers that can be applied to any captured model."""
    return list(_rules())


def optimizer_rule(name: str) -> OptimizerRule:
    """Return the rule of that name; raises `InputError` for an unknown one."""
    try:
        return _rules()[name]
    except KeyError:
        raise InputError(f"unknown optimizer {name!r}; {did_you_mean(name, _rules())}") from None
