"""The `Capture`: one recorded training step with sizes as polynomials of batch (and sequence length)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pagetide.model.columnar import load_columns, save_columns, text_column, text_from_column
from pagetide.model.errors import InputError
from pagetide.model.workload.capture.optimizers import optimizer_rule
from pagetide.model.workload.roofline import classify, kernel_times_ns
from pagetide.model.workload.roofline import gpu as gpu_preset
from pagetide.model.workload.workload import Csr, Kernels, Phase, TensorKind, Tensors, Workload

__all__ = ["Capture", "evaluate"]

_VERSION = 1


def evaluate(
    coefficients: NDArray[np.int64], basis: Sequence[tuple[int, int]], batch: int, seq: int
) -> NDArray[np.int64]:
    """Evaluate rows of polynomial coefficients.

    Args:
        coefficients: int64[N, M].
        basis: M pairs (i, j), the exponents of batch and sequence length in each monomial.
        batch: batch size in samples.
        seq: sequence length in tokens; any value where no monomial has it.

    Returns:
        int64[N].

    Raises:
        InputError: a value does not fit 63 bits.

    >>> evaluate(np.array([[100, 4]]), [(0, 0), (1, 0)], batch=8, seq=0).tolist()
    [132]
    """
    powers = [batch**i * seq**j for i, j in basis]
    bound = sum(
        power * int(np.abs(coefficients[:, m]).max(initial=0)) for m, power in enumerate(powers)
    )
    if bound >= 2**63:
        raise InputError(
            f"batch {batch}: sizes of this batch do not fit 63 bits; use a smaller one"
        )
    return coefficients @ np.array(powers, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Capture:
    """One recorded training step of a model, without kernel times; immutable.

    A tensor is a storage: views share it. Kernels are the ATen operators that move or compute data, in execution order;
    views and operators without work are left out. Sizes and counts are polynomials of the batch and, where `basis`
    has it, the sequence length; see `evaluate`.

    Attributes:
        name: the model's name.
        basis: exponents (batch, sequence length) of the monomials that the columns with M entries refer to.
        tensor_names: one name a tensor; empty where it follows from the kernel that makes the tensor.
        tensor_bytes: int64[T, M], coefficients of the size in bytes.
        tensor_kind: uint8[T], values of `TensorKind`.
        tensor_is_global: bool[T], weights, buffers and recorded optimizer states.
        param_tensor: int32[P], tensor of each parameter that has a gradient, in the order of ``model.parameters()``.
        param_gradient: int32[P], tensor of its gradient.
        param_bytes: int64[P], size of the parameter.
        param_count: number of elements of all parameters, shared ones counted once.
        kernel_ops: K operator names such as ``"aten.addmm.default"``.
        kernel_modules: K names of the module that the kernel belongs to; empty outside any.
        kernel_phase: uint8[K], values of `Phase`.
        kernel_half: bool[K], the kernel computes on 16-bit floats.
        kernel_flops: int64[K, M], coefficients of the FLOPs of matrix products and convolutions (2 a multiply-add).
        kernel_traffic: int64[K, M], coefficients of the bytes read and written.
        inputs: tensors each kernel reads.
        outputs: tensors each kernel writes.
        metadata: provenance and limits. Keys used here: ``precision`` (``"fp32"``, ``"bf16"``, ``"fp16"`` or
            ``"mixed"``), ``batch`` (int if the sizes hold for one batch
            only), ``min_batch``, ``seq`` (the default length), ``min_seq``, ``max_seq``, ``optimizer`` (name of the recorded optimizer; absent if
            the step was recorded without one).
    """

    name: str
    basis: tuple[tuple[int, int], ...]
    tensor_names: tuple[str, ...]
    tensor_bytes: NDArray[np.int64]
    tensor_kind: NDArray[np.uint8]
    tensor_is_global: NDArray[np.bool_]
    param_tensor: NDArray[np.int32]
    param_gradient: NDArray[np.int32]
    param_bytes: NDArray[np.int64]
    param_count: int
    kernel_ops: tuple[str, ...]
    kernel_modules: tuple[str, ...]
    kernel_phase: NDArray[np.uint8]
    kernel_half: NDArray[np.bool_]
    kernel_flops: NDArray[np.int64]
    kernel_traffic: NDArray[np.int64]
    inputs: Csr
    outputs: Csr
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_seq(self) -> bool:
        """Whether sizes depend on a sequence length that is free."""
        return any(j for _, j in self.basis)

    def workload(
        self,
        *,
        batch: int | None = None,
        seq: int | None = None,
        optimizer: str | None = None,
        gpu: str = "a100-40gb",
        fp32_arithmetic: str = "fp32",
    ) -> Workload:
        """Make the workload of one steady-state training step.

        Args:
            batch: samples in the batch; may be left out if the capture holds for one batch only.
            seq: sequence length in tokens; None takes the capture's default.
            optimizer: name of a shipped optimizer step that is appended (see `optimizer_names`); None keeps what was
                recorded.
            gpu: name of the GPU preset that the kernel times are for.
            fp32_arithmetic: arithmetic of matrix products and convolutions on 32-bit floats, ``"fp32"`` or ``"tf32"``.

        Returns:
            The workload. Weights, buffers and optimizer states are global tensors; the states exist at the start of
            the step, as in every step but the first.

        Raises:
            InputError: a value is out of range, or the capture is for another batch, sequence length or optimizer.
        """
        batch = self._batch(batch)
        seq = self._seq(seq)
        device = gpu_preset(gpu)
        precision = str(self.metadata["precision"])
        step = self if optimizer is None else self.with_optimizer(optimizer)
        flops = evaluate(step.kernel_flops, self.basis, batch, seq).astype(np.float64)
        duration_ns = kernel_times_ns(
            device,
            op_class=classify(step.kernel_ops),
            flops=flops,
            traffic_bytes=evaluate(step.kernel_traffic, self.basis, batch, seq).astype(np.float64),
            half=step.kernel_half,
            fp32_arithmetic=fp32_arithmetic,
            half_arithmetic="fp16" if precision == "fp16" else "bf16",
        )
        optimizer = str(step.metadata.get("optimizer", "none"))
        metadata = {
            **step.metadata,
            "graph": f"capture of {self.name}",
            "times": f"roofline of {device.title}, 32-bit matrix arithmetic {fp32_arithmetic}",
            "gpu": gpu,
            "fp32_arithmetic": fp32_arithmetic,
            "batch": batch,
            "optimizer": optimizer,
            "parameters": self.param_count,
        }
        tags = [self.name, f"b{batch}"]
        if "seq" in self.metadata:
            metadata["seq"] = seq
            tags.append(f"s{seq}")
        tags.append("tf32" if (precision, fp32_arithmetic) == ("fp32", "tf32") else precision)
        kernel_names = step._kernel_names()
        return Workload(
            name="-".join([*tags, optimizer]),
            tensors=Tensors(
                names=step._tensor_names(kernel_names),
                size_bytes=evaluate(step.tensor_bytes, self.basis, batch, seq),
                kind=step.tensor_kind,
                is_global=step.tensor_is_global,
            ),
            kernels=Kernels(
                names=kernel_names, duration_ns=duration_ns, flops=flops, phase=step.kernel_phase
            ),
            inputs=step.inputs,
            outputs=step.outputs,
            metadata=metadata,
        )

    def with_optimizer(self, name: str) -> "Capture":
        """Return this capture with a shipped optimizer step appended for every parameter that has a gradient.

        The operators of one parameter follow those of the one before, as PyTorch does with ``foreach=False``.

        Args:
            name: one of `optimizer_names`.

        Raises:
            InputError: the name is unknown, or the step was recorded with another optimizer.
        """
        recorded = self.metadata.get("optimizer")
        if recorded is not None:
            if recorded == name:
                return self
            raise InputError(
                f"capture {self.name!r}: the step was recorded with optimizer {recorded!r}, not {name!r}; "
                "leave the optimizer out, or record the model without one"
            )
        rule = optimizer_rule(name)
        params, states = len(self.param_tensor), len(rule.states)
        count = len(self.tensor_names)
        state_ids = count + np.arange(params * states, dtype=np.int32).reshape(params, states)
        temporary_ids = (
            count
            + params * states
            + np.arange(params * rule.temporaries, dtype=np.int32).reshape(params, -1)
        )
        # Column r holds, for each parameter, the tensor that plays role r in the rule.
        role = np.column_stack(
            [self.param_tensor, self.param_gradient, state_ids, temporary_ids]
        ).astype(np.int32)
        names = [self.tensor_names[t] for t in self.param_tensor]
        made = params * (states + rule.temporaries)
        moved = np.array([len(k.reads) + len(k.writes) for k in rule.kernels], dtype=np.int64)
        kernels = params * len(rule.kernels)
        made_bytes = np.zeros((made, len(self.basis)), dtype=np.int64)
        traffic = np.zeros((kernels, len(self.basis)), dtype=np.int64)
        constant = self.basis.index((0, 0))
        made_bytes[:, constant] = np.concatenate(
            [np.repeat(self.param_bytes, states), np.repeat(self.param_bytes, rule.temporaries)]
        )
        traffic[:, constant] = np.outer(self.param_bytes, moved).ravel()
        return replace(
            self,
            tensor_names=(
                *self.tensor_names,
                *(f"{n}.{state}" for n in names for state in rule.states),
                *(f"{n}.step{i}" for n in names for i in range(rule.temporaries)),
            ),
            tensor_bytes=np.concatenate([self.tensor_bytes, made_bytes]),
            tensor_kind=np.concatenate(
                [
                    self.tensor_kind,
                    np.full(params * states, TensorKind.OPTIMIZER, dtype=np.uint8),
                    np.full(params * rule.temporaries, TensorKind.WORKSPACE, dtype=np.uint8),
                ]
            ),
            tensor_is_global=np.concatenate(
                [self.tensor_is_global, np.arange(made) < params * states]
            ),
            kernel_ops=(*self.kernel_ops, *[k.op for k in rule.kernels] * params),
            kernel_modules=(*self.kernel_modules, *(n for n in names for _ in rule.kernels)),
            kernel_phase=np.concatenate(
                [self.kernel_phase, np.full(kernels, Phase.OPTIMIZER, dtype=np.uint8)]
            ),
            kernel_half=np.concatenate([self.kernel_half, np.zeros(kernels, dtype=np.bool_)]),
            kernel_flops=np.concatenate(
                [self.kernel_flops, np.zeros((kernels, len(self.basis)), dtype=np.int64)]
            ),
            kernel_traffic=np.concatenate([self.kernel_traffic, traffic]),
            inputs=_appended(self.inputs, role, [k.reads for k in rule.kernels]),
            outputs=_appended(self.outputs, role, [k.writes for k in rule.kernels]),
            metadata={**self.metadata, "optimizer": name},
        )

    def _batch(self, batch: int | None) -> int:
        only = self.metadata.get("batch")
        if only is not None:
            if batch is not None and batch != only:
                raise InputError(
                    f"capture {self.name!r}: holds for batch {only} only, not {batch}; record it at several batches"
                )
            return int(only)
        if batch is None:
            raise InputError(
                f"capture {self.name!r}: a batch is needed; give a positive whole number"
            )
        batch = _positive(batch, f"capture {self.name!r}: batch")
        least = int(self.metadata.get("min_batch", 1))
        if batch < least:
            raise InputError(
                f"capture {self.name!r}: holds from batch {least} on, not for {batch}; record that batch alone"
            )
        return batch

    def _seq(self, seq: int | None) -> int:
        default = self.metadata.get("seq")
        if seq is None:
            return int(default or 0)
        if default is None:
            raise InputError(f"capture {self.name!r}: has no sequence length; leave it out")
        if not self.has_seq and seq != default:
            raise InputError(
                f"capture {self.name!r}: holds for sequence length {default} only, not {seq}"
            )
        limit = self.metadata.get("max_seq")
        seq = _positive(seq, f"capture {self.name!r}: sequence length")
        least = int(self.metadata.get("min_seq", 1))
        if seq < least:
            raise InputError(
                f"capture {self.name!r}: holds from sequence length {least} on, not for {seq}"
            )
        if limit is not None and seq > limit:
            raise InputError(
                f"capture {self.name!r}: sequence length {seq} is over the model's limit of {limit}"
            )
        return seq

    def _kernel_names(self) -> tuple[str, ...]:
        short = {op: op.removeprefix("aten.").split(".")[0] for op in set(self.kernel_ops)}
        return tuple(
            f"{module}:{short[op]}" if module else short[op]
            for module, op in zip(self.kernel_modules, self.kernel_ops, strict=True)
        )

    def _tensor_names(self, kernel_names: Sequence[str]) -> tuple[str, ...]:
        """Name each nameless tensor after the first kernel that writes it and that kernel's number."""
        names = list(self.tensor_names)
        for kernel, tensor in zip(
            self.outputs.rows.tolist(), self.outputs.ids.tolist(), strict=True
        ):
            if not names[tensor]:
                names[tensor] = f"{kernel_names[kernel]}.k{kernel}.t{tensor}"
        return tuple(name or f"t{tensor}" for tensor, name in enumerate(names))

    # -- files --------------------------------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        """Write to one compressed file; the same capture gives the same bytes."""
        ops, op_of = np.unique(np.array(self.kernel_ops), return_inverse=True)
        modules, module_of = np.unique(np.array(self.kernel_modules), return_inverse=True)
        save_columns(
            path,
            kind="capture",
            version=_VERSION,
            header={
                "name": self.name,
                "basis": [list(powers) for powers in self.basis],
                "param_count": self.param_count,
                "metadata": dict(self.metadata),
            },
            columns={
                "tensor_names": text_column(self.tensor_names),
                "tensor_bytes": self.tensor_bytes,
                "tensor_kind": self.tensor_kind,
                "tensor_is_global": self.tensor_is_global,
                "param_tensor": self.param_tensor,
                "param_gradient": self.param_gradient,
                "param_bytes": self.param_bytes,
                "ops": text_column(ops.tolist()),
                "modules": text_column(modules.tolist()),
                "kernel_op": op_of.astype(np.int32),
                "kernel_module": module_of.astype(np.int32),
                "kernel_phase": self.kernel_phase,
                "kernel_half": self.kernel_half,
                "kernel_flops": self.kernel_flops,
                "kernel_traffic": self.kernel_traffic,
                "input_count": np.diff(self.inputs.indptr).astype(np.int32),
                "input_delta": _as_distance(self.inputs),
                "output_count": np.diff(self.outputs.indptr).astype(np.int32),
                "output_delta": _as_distance(self.outputs),
            },
        )

    @classmethod
    def load(cls, path: Path) -> "Capture":
        """Read what `save` wrote; raises `InputError` for a missing or damaged file."""
        header, column = load_columns(path, kind="capture", version=_VERSION, required=_COLUMNS)
        try:
            ops = text_from_column(column["ops"])
            modules = text_from_column(column["modules"])
            basis = tuple((int(i), int(j)) for i, j in header["basis"])
            capture = cls(
                name=str(header["name"]),
                basis=basis,
                tensor_names=text_from_column(column["tensor_names"]),
                tensor_bytes=column["tensor_bytes"].astype(np.int64, casting="safe"),
                tensor_kind=column["tensor_kind"].astype(np.uint8, casting="safe"),
                tensor_is_global=column["tensor_is_global"].astype(np.bool_, casting="safe"),
                param_tensor=column["param_tensor"].astype(np.int32, casting="safe"),
                param_gradient=column["param_gradient"].astype(np.int32, casting="safe"),
                param_bytes=column["param_bytes"].astype(np.int64, casting="safe"),
                param_count=int(header["param_count"]),
                kernel_ops=tuple(ops[i] for i in column["kernel_op"]),
                kernel_modules=tuple(modules[i] for i in column["kernel_module"]),
                kernel_phase=column["kernel_phase"].astype(np.uint8, casting="safe"),
                kernel_half=column["kernel_half"].astype(np.bool_, casting="safe"),
                kernel_flops=column["kernel_flops"].astype(np.int64, casting="safe"),
                kernel_traffic=column["kernel_traffic"].astype(np.int64, casting="safe"),
                inputs=_from_distance(column["input_count"], column["input_delta"]),
                outputs=_from_distance(column["output_count"], column["output_delta"]),
                metadata=dict(header["metadata"]),
            )
            capture._check()
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise InputError(f"{path}: damaged capture file ({error}); write it again") from None
        return capture

    def _check(self) -> None:
        tensors, kernels, terms = len(self.tensor_names), len(self.kernel_ops), len(self.basis)
        if (0, 0) not in self.basis:
            raise InputError("damaged capture: the basis has no constant term; write it again")
        for label, column, shape in (
            ("tensor_bytes", self.tensor_bytes, (tensors, terms)),
            ("tensor_kind", self.tensor_kind, (tensors,)),
            ("tensor_is_global", self.tensor_is_global, (tensors,)),
            ("param_gradient", self.param_gradient, self.param_tensor.shape),
            ("param_bytes", self.param_bytes, self.param_tensor.shape),
            ("kernel_modules", np.array(self.kernel_modules), (kernels,)),
            ("kernel_phase", self.kernel_phase, (kernels,)),
            ("kernel_half", self.kernel_half, (kernels,)),
            ("kernel_flops", self.kernel_flops, (kernels, terms)),
            ("kernel_traffic", self.kernel_traffic, (kernels, terms)),
            ("input_count", self.inputs.indptr, (kernels + 1,)),
            ("output_count", self.outputs.indptr, (kernels + 1,)),
        ):
            if column.shape != shape:
                raise InputError(
                    f"damaged capture: column {label} has shape {column.shape}, but {shape} is needed; write it again"
                )
        for label, ids in (
            ("param_tensor", self.param_tensor),
            ("param_gradient", self.param_gradient),
            ("input", self.inputs.ids),
            ("output", self.outputs.ids),
        ):
            if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < tensors:
                raise InputError(
                    f"damaged capture: {label} names a tensor outside 0 to {tensors - 1}; write it again"
                )


_COLUMNS = (
    "tensor_names",
    "tensor_bytes",
    "tensor_kind",
    "tensor_is_global",
    "param_tensor",
    "param_gradient",
    "param_bytes",
    "ops",
    "modules",
    "kernel_op",
    "kernel_module",
    "kernel_phase",
    "kernel_half",
    "kernel_flops",
    "kernel_traffic",
    "input_count",
    "input_delta",
    "output_count",
    "output_delta",
)


def _positive(value: int, label: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise InputError(f"{label} must be a positive whole number, not {value!r}")
    if value < 1:
        raise InputError(f"{label} must be a positive whole number, not {value}")
    return int(value)


def _appended(before: Csr, role: NDArray[np.int32], kernels: Sequence[Sequence[int]]) -> Csr:
    """Append the operand lists of one rule, given in roles, for every parameter (row of `role`)."""
    flat = [r for kernel in kernels for r in kernel]
    counts = np.tile(np.array([len(kernel) for kernel in kernels], dtype=np.int64), len(role))
    return Csr(
        indptr=np.concatenate([before.indptr, before.indptr[-1] + np.cumsum(counts)]),
        ids=np.concatenate([before.ids, role[:, flat].ravel()]),
    )


def _as_distance(csr: Csr) -> NDArray[np.int32]:
    """Ids as differences to the id before: layers that repeat then compress well."""
    return np.diff(csr.ids, prepend=np.int32(0)).astype(np.int32)


def _from_distance(count: NDArray[np.int32], distance: NDArray[np.int32]) -> Csr:
    indptr = np.concatenate([[0], np.cumsum(count, dtype=np.int64)])
    ids = np.cumsum(distance, dtype=np.int64)
    if indptr[-1] != len(ids) or (ids.size and int(ids.max()) >= 2**31):
        raise InputError("damaged capture: operand counts and operands differ; write it again")
    return Csr(indptr=indptr, ids=ids.astype(np.int32))
