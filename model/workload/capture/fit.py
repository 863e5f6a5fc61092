"""Fits recordings at several batches (and sequence lengths) to one `Capture` whose sizes are polynomials."""

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pagetide.model.errors import InputError
from pagetide.model.workload.capture.format import Capture, evaluate
from pagetide.model.workload.capture.optimizers import optimizer_rule
from pagetide.model.workload.capture.recorder import Recording, import_torch, record_step
from pagetide.model.workload.workload import Csr, TensorKind

__all__ = ["capture_function", "capture_step"]

_PRECISION_OF_DTYPES: dict[tuple[str, ...], str] = {
    ("float32",): "fp32",
    ("bfloat16",): "bf16",
    ("float16",): "fp16",
}


def capture_step(
    build: Callable[..., Any],
    *,
    batch: int | Sequence[int] = (2, 3, 5),
    seq: Sequence[int] | None = None,
    name: str | None = None,
    default_seq: int | None = None,
    dtype: str = "float32",
    metadata: Mapping[str, Any] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Capture:
    """Capture one training step of a model.

    The step is recorded at several batches, the sizes are fitted, and the fit is checked to the byte at one batch more.

    Args:
        build: ``build(batch)``, or ``build(batch, seq)`` if `seq` is given, returns ``(model, inputs, loss)`` or
            ``(model, inputs, loss, optimizer)``, or a `TrainingStep`; see `record_step`.
        batch: three batches or more, all different: the first two fix the fit, the others check it. The capture holds
            from the smallest of them on; with one sample PyTorch often leaves out copies, so the step at batch 1 is
            another. One number records that batch alone; the capture then holds for it only.
        seq: None, or four sequence lengths or more: the first three fix a fit of second degree, the others check it.
            The capture holds from the shortest on.
        name: name of the capture; None takes the function's name.
        default_seq: sequence length that a workload has unless another is asked for; None takes the last of `seq`.
        dtype: default floating-point type while `build` runs.
        metadata: more provenance.
        progress: called with what is about to be recorded, such as ``"batch 2"``; a recording takes seconds.

    Returns:
        The capture.

    Raises:
        InputError: as `record_step`; or the operators differ between batches, or sizes are no such polynomials.
    """
    torch = import_torch()
    batches = [batch] if isinstance(batch, int) else list(batch)
    lengths: list[int | None] = [None] if seq is None else list(seq)
    if len(batches) not in (1, *range(3, 100)) or len(set(batches)) != len(batches):
        raise InputError(f"batch must be one number, or three different ones or more, not {batch}")
    if len(lengths) not in (1, *range(4, 100)) or len(set(lengths)) != len(lengths):
        raise InputError(f"seq must be None, or four different lengths or more, not {seq}")

    b_terms = 1 if len(batches) == 1 else 2
    s_terms = 1 if len(lengths) == 1 else 3
    basis = tuple((i, j) for j in range(s_terms) for i in range(b_terms))
    grid = list(product(batches[:b_terms], lengths[:s_terms]))
    checks = [(batches[-1], lengths[-1])] if len(batches) > 1 or len(lengths) > 1 else []
    checks += [(b, lengths[0]) for b in batches[b_terms:-1]]
    checks += [(batches[0], s) for s in lengths[s_terms:-1]]

    title = str(name or getattr(build, "__name__", "model"))

    def record(b: int, s: int | None) -> Recording:
        if progress is not None:
            progress(_at(b, s))
        return record_step(build, batch=b, seq=s, dtype=dtype)

    recordings = [record(b, s) for b, s in grid]
    base = recordings[0]
    if not base.ops:
        raise InputError(f"{title}: the step runs no operator; nothing to capture")
    for (b, s), other in zip(grid[1:], recordings[1:], strict=True):
        _same_graph(title, base, other, grid[0], (b, s))

    inverse = _inverse([[Fraction(b**i * (s or 0) ** j) for i, j in basis] for b, s in grid])
    fitted = {
        column: _fit(title, inverse, [getattr(r, column) for r in recordings])
        for column in ("tensor_bytes", "flops", "traffic")
    }
    for b, s in checks:
        other = record(b, s)
        _same_graph(title, base, other, grid[0], (b, s))
        for column, coefficients in fitted.items():
            want = np.array(getattr(other, column), dtype=np.int64)
            wrong = np.flatnonzero(evaluate(coefficients, basis, b, s or 0) != want)
            if wrong.size:
                raise InputError(
                    f"{title}: {column} of row {int(wrong[0])} is no polynomial of "
                    f"{'batch' if s is None else 'batch and sequence length'} (checked at {_at(b, s)}); "
                    "capture one batch alone"
                )

    precision = _PRECISION_OF_DTYPES.get(tuple(base.dtypes), "mixed")
    info: dict[str, Any] = {
        "precision": "mixed" if precision == "fp32" and any(base.half) else precision,
        "torch": str(torch.__version__),
        "date": datetime.now(UTC).date().isoformat(),
        "captured_at": [_at(b, s) for b, s in grid],
        "checked_at": [_at(b, s) for b, s in checks],
        **(metadata or {}),
    }
    if len(batches) == 1:
        info["batch"] = batches[0]
    else:
        info["min_batch"] = min(batches)
    if seq is not None:
        info["min_seq"] = min(seq)
        info["seq"] = default_seq if default_seq is not None else lengths[-1]
        if base.max_seq is not None:
            info["max_seq"] = base.max_seq
    if base.optimizer is not None:
        info["optimizer"] = base.optimizer
    return _assembled(title, basis, base, fitted, info)


def capture_function(
    target: str,
    *,
    batch: int | Sequence[int] = (2, 3, 5),
    seq: Sequence[int] | None = None,
    optimizer: str | None = None,
    name: str | None = None,
    dtype: str = "float32",
    progress: Callable[[str], None] | None = None,
) -> Capture:
    """Capture what ``module:function`` or ``file.py:function`` builds; the command line's entry.

    Args:
        target: module (found as Python does, the working folder included) or path of a Python file, a colon, and the
            name of a `build` function as `capture_step` takes.
        batch: as `capture_step`.
        seq: as `capture_step`.
        optimizer: name of a shipped optimizer step to append; None keeps what the function's optimizer does.
        name: name of the capture; None takes the function's name.
        dtype: default floating-point type while the function runs.
        progress: as `capture_step`.

    Raises:
        InputError: the target cannot be found, or as `capture_step`.
    """
    if optimizer is not None:
        optimizer_rule(optimizer)
    import_torch()
    module_name, _, function_name = target.rpartition(":")
    if not module_name or not function_name:
        raise InputError(f"{target!r} names no function; write module:function or file.py:function")
    build = getattr(_module(module_name), function_name, None)
    if not callable(build):
        raise InputError(f"{module_name} has no function {function_name!r}; check the name")
    capture = capture_step(
        build,
        batch=batch,
        seq=seq,
        name=name or function_name,
        dtype=dtype,
        metadata={"source": target},
        progress=progress,
    )
    return capture if optimizer is None else capture.with_optimizer(optimizer)


def _module(name: str) -> Any:
    if name.endswith(".py"):
        path = Path(name)
        if not path.is_file():
            raise InputError(f"{name}: no such file; check the path")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        return module
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise
        raise InputError(
            f"no module {name!r} in Python's path or the working folder; check the name"
        ) from None
    finally:
        sys.path.remove(folder)


def _at(batch: int, seq: int | None) -> str:
    return f"batch {batch}" if seq is None else f"batch {batch}, sequence length {seq}"


# Sizes may differ from batch to batch, and a storage in a reference cycle dies when Python's collector runs.
_GRAPH_COLUMNS = tuple(
    f.name
    for f in fields(Recording)
    if f.name not in ("tensor_bytes", "flops", "traffic", "tensor_death")
)


def _same_graph(
    title: str,
    base: Recording,
    other: Recording,
    at: tuple[int, int | None],
    other_at: tuple[int, int | None],
) -> None:
    """Raise `InputError` unless two recordings differ in sizes only."""
    for column in _GRAPH_COLUMNS:
        if getattr(base, column) != getattr(other, column):
            raise InputError(
                f"{title}: the step at {_at(*other_at)} runs other operators than at {_at(*at)} "
                f"({column} differs); capture one batch alone"
            )
    if len(base.tensor_bytes) != len(other.tensor_bytes):
        raise InputError(
            f"{title}: the step at {_at(*other_at)} has another number of tensors than at {_at(*at)}; "
            "capture one batch alone"
        )


def _inverse(matrix: list[list[Fraction]]) -> list[list[Fraction]]:
    """Invert a square matrix of fractions by Gauss-Jordan elimination."""
    size = len(matrix)
    rows = [[*row, *(Fraction(int(i == j)) for j in range(size))] for i, row in enumerate(matrix)]
    for column in range(size):
        pivot = next(r for r in range(column, size) if rows[r][column])
        rows[column], rows[pivot] = rows[pivot], rows[column]
        rows[column] = [value / rows[column][column] for value in rows[column]]
        for r in range(size):
            if r != column and rows[r][column]:
                factor = rows[r][column]
                rows[r] = [a - factor * b for a, b in zip(rows[r], rows[column], strict=True)]
    return [row[size:] for row in rows]


def _fit(
    title: str, inverse: list[list[Fraction]], values: Sequence[Sequence[int]]
) -> NDArray[np.int64]:
    """Return int64[N, M] coefficients through the values at the M grid points; exact, or `InputError`."""
    scale = np.lcm.reduce([f.denominator for row in inverse for f in row])
    weights = np.array(
        [[f.numerator * (int(scale) // f.denominator) for f in row] for row in inverse],
        dtype=object,
    )
    products = np.array(values, dtype=object).T @ weights.T
    if np.any(products % int(scale)):
        raise InputError(f"{title}: sizes are no polynomial of the batch; capture one batch alone")
    coefficients: NDArray[np.int64] = (products // int(scale)).astype(np.int64)
    return coefficients


def _assembled(
    name: str,
    basis: tuple[tuple[int, int], ...],
    base: Recording,
    fitted: Mapping[str, NDArray[np.int64]],
    metadata: Mapping[str, Any],
) -> Capture:
    """Keep the tensors that kernels use, renumbered, and name the inputs."""
    inputs, outputs = Csr.from_lists(base.inputs), Csr.from_lists(base.outputs)
    params = np.array(base.params, dtype=np.int64).reshape(-1, 3)
    used = np.unique(np.concatenate([inputs.ids, outputs.ids, params[:, :2].ravel()]))
    new = np.full(len(base.tensor_bytes), -1, dtype=np.int32)
    new[used] = np.arange(used.size, dtype=np.int32)
    names = [base.tensor_names[t] for t in used]
    kind = np.array(base.tensor_kind, dtype=np.uint8)[used]
    nameless_inputs = [t for t in np.flatnonzero(kind == TensorKind.INPUT) if not names[t]]
    for number, tensor in enumerate(nameless_inputs):
        names[tensor] = f"input{number}"
    return Capture(
        name=name,
        basis=basis,
        tensor_names=tuple(names),
        tensor_bytes=fitted["tensor_bytes"][used],
        tensor_kind=kind,
        tensor_is_global=np.array(base.tensor_is_global, dtype=np.bool_)[used],
        param_tensor=new[params[:, 0]],
        param_gradient=new[params[:, 1]],
        param_bytes=params[:, 2],
        param_count=base.param_count,
        kernel_ops=tuple(base.ops),
        kernel_modules=tuple(base.modules),
        kernel_phase=np.array(base.phases, dtype=np.uint8),
        kernel_half=np.array(base.half, dtype=np.bool_),
        kernel_flops=fitted["flops"],
        kernel_traffic=fitted["traffic"],
        inputs=Csr(indptr=inputs.indptr, ids=new[inputs.ids]),
        outputs=Csr(indptr=outputs.indptr, ids=new[outputs.ids]),
        metadata=metadata,
    )
