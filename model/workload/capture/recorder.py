"""Records one training step under PyTorch FakeTensors: no weights, no data, no GPU. Needs PyTorch when called.

A dispatch mode sees every ATen operator of the forward pass, the backward pass and the optimizer step. A tensor of the
record is a *storage*: a view is another look at the storage of its base, and an in-place operator writes the storage it
reads. Operators that only make views or reserve memory move nothing and are left out.

The record is of the CPU operators: dropout is three kernels with a mask of the activation's type where a GPU has one
kernel and a mask of one byte an element, and there are no cuDNN or cuBLAS workspaces.
"""

import contextlib
import importlib
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pagetide.model.errors import InputError
from pagetide.model.workload.workload import Phase, TensorKind

if TYPE_CHECKING:
    import torch

__all__ = ["Recording", "TrainingStep", "import_torch", "import_zoo_library", "record_step"]


@dataclass
class TrainingStep:
    """What `record_step` runs once: a model, its inputs, a loss and, if wanted, an optimizer.

    Attributes:
        model: the module, in training mode.
        inputs: arguments of the model: a tensor, a sequence of positional or a mapping of keyword arguments.
        loss: takes what the model returns and gives the scalar to differentiate.
        optimizer: a ``torch.optim`` optimizer over the model's parameters; None leaves the optimizer step out, and a
            shipped rule can be appended later.
        max_seq: the longest sequence the model takes; None if it has no limit.
    """

    model: "torch.nn.Module"
    inputs: Any
    loss: Callable[[Any], "torch.Tensor"]
    optimizer: "torch.optim.Optimizer | None" = None
    max_seq: int | None = None


@dataclass
class Recording:
    """One recorded step at one batch, row by row; the columns are those of `Capture`.

    Attributes:
        tensor_bytes: size of each storage in bytes.
        tensor_names: its name, empty where none is known.
        tensor_kind: its kind.
        tensor_is_global: whether it outlives the step by its nature (weight, buffer, optimizer state).
        tensor_death: number of recorded kernels after which PyTorch freed the storage; None if it outlived the step.
        ops, modules, phases, half, flops, traffic: columns of the kernels.
        inputs, outputs: storages each kernel reads and writes.
        params: (weight storage, gradient storage, bytes) of each parameter with a gradient.
        param_count: elements of all parameters.
        dtypes: names of the parameters' types.
        optimizer: class name of the recorded optimizer, or None.
        max_seq: longest sequence of the model, or None.
    """

    tensor_bytes: list[int] = field(default_factory=list)
    tensor_names: list[str] = field(default_factory=list)
    tensor_kind: list[int] = field(default_factory=list)
    tensor_is_global: list[bool] = field(default_factory=list)
    tensor_death: list[int | None] = field(default_factory=list)
    ops: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    phases: list[int] = field(default_factory=list)
    half: list[bool] = field(default_factory=list)
    flops: list[int] = field(default_factory=list)
    traffic: list[int] = field(default_factory=list)
    inputs: list[list[int]] = field(default_factory=list)
    outputs: list[list[int]] = field(default_factory=list)
    params: list[tuple[int, int, int]] = field(default_factory=list)
    param_count: int = 0
    dtypes: list[str] = field(default_factory=list)
    optimizer: str | None = None
    max_seq: int | None = None


def import_torch() -> Any:
    """Import PyTorch; raises `InputError` that says how to install it if it is absent."""
    try:
        return importlib.import_module("torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise InputError(
            "recording a model needs PyTorch, which is not installed; run: pip install 'pagetide[capture]'"
        ) from None


def import_zoo_library(name: str) -> Any:
    """Import ``torchvision``, ``timm`` or ``transformers`` (or a submodule) beside a CPU build of PyTorch.

    The torchvision on PyPI holds operators for CUDA that do not load on a CPU build; its import, and any that leads to
    it, then dies for want of the operator ``torchvision::nms``. No model of the zoo uses that operator, so it and
    its quantised form are declared without a kernel and the import done again.

    Raises:
        InputError: the library is not installed.
    """
    import_torch()
    top = name.split(".")[0]
    try:
        with contextlib.suppress(ModuleNotFoundError):
            try:
                importlib.import_module("torchvision")
            except RuntimeError as error:
                if "torchvision::nms" not in str(error):
                    raise
                for module in [m for m in sys.modules if m.split(".")[0] == "torchvision"]:
                    del sys.modules[module]
                from torch import library as torch_library

                library = torch_library.Library("torchvision", "DEF")
                for operator in ("nms", "qnms"):
                    library.define(
                        f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                    )
                _KEPT.append(library)
                importlib.import_module("torchvision")
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != top:
            raise
        raise InputError(
            f"recording this model needs {top}, which is not installed; run: pip install 'pagetide[capture]'"
        ) from None


_KEPT: list[Any] = []
"""Operator libraries end with their Python object; these must last as long as the process."""


@contextlib.contextmanager
def _no_initialisation(torch: Any) -> Iterator[None]:
    """Make ``torch.nn.init`` leave tensors alone: initialisers look at values, and fake tensors have none."""
    init = torch.nn.init
    saved = {
        name: function
        for name, function in vars(init).items()
        if name.endswith("_") and not name.startswith("_") and callable(function)
    }

    def identity(tensor: Any, *_: Any, **__: Any) -> Any:
        return tensor

    for name in saved:
        setattr(init, name, identity)
    try:
        yield
    finally:
        for name, function in saved.items():
            setattr(init, name, function)


_IGNORED_NAMESPACES = ("prim", "profiler")

# No work on a GPU: memory is reserved, a host scalar becomes a tensor, or a value is read back by the host.
_NO_WORK = frozenset(
    {
        "aten.empty",
        "aten.empty_like",
        "aten.empty_strided",
        "aten.new_empty",
        "aten.new_empty_strided",
        "aten.lift_fresh",
        "aten._local_scalar_dense",
        "aten.set_",
        "aten.resize_",
    }
)

# In-place operators that do not read what they overwrite.
_OVERWRITES = frozenset(
    {
        "aten.copy_",
        "aten.zero_",
        "aten.fill_",
        "aten.bernoulli_",
        "aten.normal_",
        "aten.uniform_",
        "aten.random_",
        "aten.exponential_",
    }
)

# Arguments that are written although the operator's schema does not say so.
_HIDDEN_WRITES = {"aten.native_batch_norm": ("running_mean", "running_var")}

# Argument of which only as many elements are read as the operator gives out.
_READS_OUTPUT_SIZE = {
    "aten.embedding": "weight",
    "aten._embedding_bag": "weight",
    "aten._embedding_bag_forward_only": "weight",
    "aten.gather": "self",
    "aten.index": "self",
    "aten.index_select": "self",
    "aten.take": "self",
}

# Arguments that are read twice: a reduction over them must end before they are used element by element, and they do not
# fit on the chip between. (Layer normalisation reduces its rows on the chip; its weight gradients need a second pass.)
_READ_TWICE = {
    "aten.native_batch_norm": ("input",),
    "aten.native_batch_norm_backward": ("input", "grad_out"),
    "aten.native_layer_norm_backward": ("input", "grad_out"),
    "aten.native_group_norm": ("input",),
    "aten.native_group_norm_backward": ("input", "grad_out"),
}

# Written argument of which only as many elements are read and written as the named source has.
_WRITES_SOURCE_SIZE = {
    "aten.index_put_": "values",
    "aten._index_put_impl_": "values",
    "aten.scatter_": "src",
    "aten.scatter_add_": "src",
    "aten.index_add_": "source",
    "aten.index_copy_": "source",
}


def _distinct_bytes(tensor: Any) -> int:
    """Bytes of the elements a view really holds: a dimension with stride 0 holds one."""
    elements = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        elements *= size if stride else min(size, 1)
    return int(elements) * int(tensor.element_size())


def _matrix_flops(base: str, arguments: dict[str, Any], results: list[Any]) -> int | None:
    """FLOPs of the operators that take most of a step, 2 a multiply-add; None for an operator not known here.

    Convolution is counted here because the counter in PyTorch takes a grouped convolution's backward pass for a dense
    one.
    """
    if base in ("aten.mm", "aten.bmm", "aten.addmm", "aten.baddbmm"):
        left = arguments.get("mat1", arguments.get("batch1", arguments.get("self")))
        assert left is not None
        return 2 * int(results[0].numel()) * int(left.shape[-1])
    if base == "aten.convolution":
        weight = arguments["weight"]
        on = arguments["input"] if arguments["transposed"] else results[0]
        return 2 * int(on.numel()) * int(weight.numel() // weight.shape[0])
    if base == "aten.convolution_backward":
        weight = arguments["weight"]
        on = arguments["input"] if arguments["transposed"] else arguments["grad_output"]
        passes = sum(bool(wanted) for wanted in arguments["output_mask"][:2])
        return passes * 2 * int(on.numel()) * int(weight.numel() // weight.shape[0])
    if base.startswith("aten._scaled_dot_product_"):
        query, key, value = (arguments[n] for n in ("query", "key", "value"))
        pairs = int(query.shape[0] * query.shape[1] * query.shape[2] * key.shape[2])
        per_pair_qk, per_pair_v = 2 * int(query.shape[3]), 2 * int(value.shape[3])
        if base.endswith("_backward"):
            # Scores again, gradient of the scores, of value, of query and of key.
            return pairs * (3 * per_pair_qk + 2 * per_pair_v)
        return pairs * (per_pair_qk + per_pair_v)
    return None


class _Storages:
    """Numbers storages in order of appearance and notes when each one dies."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self._id_of: dict[int, int] = {}

    def number(self, tensor: Any) -> int:
        storage = tensor.untyped_storage()
        address = int(storage._cdata)
        found = self._id_of.get(address)
        if found is not None:
            return found
        row = self.recording
        new = len(row.tensor_bytes)
        row.tensor_bytes.append(int(storage.nbytes()))
        row.tensor_names.append("")
        row.tensor_kind.append(int(TensorKind.ACTIVATION))
        row.tensor_is_global.append(False)
        row.tensor_death.append(None)
        self._id_of[address] = new
        # An address may serve another storage later, so the number ends with the storage.
        weakref.finalize(storage, self._died, address, new).atexit = False
        return new

    def _died(self, address: int, number: int) -> None:
        self.recording.tensor_death[number] = len(self.recording.ops)
        del self._id_of[address]

    def known(self, tensor: Any) -> int | None:
        return self._id_of.get(int(tensor.untyped_storage()._cdata))


def _tensors_in(torch: Any, value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors_in(torch, item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors_in(torch, item)


def _recorder(torch: Any, recording: Recording, storages: _Storages, host: set[int]) -> Any:
    """Make the dispatch mode; a class inside a function, because its base needs PyTorch."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import flop_registry

    class Recorder(TorchDispatchMode):  # type: ignore[misc,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.phase = Phase.FORWARD
            self.module = [""]
            self.module_of_node: dict[int, str] = {}

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            if func.namespace not in _IGNORED_NAMESPACES:
                self._note(func, args, kwargs or {}, result)
            return result

        def _note(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
            if self.phase == Phase.FORWARD:
                # The node that will run this operator's backward pass has been made just before. An operator that
                # needs no gradient makes none and must not take the last one's place.
                node = torch.autograd._get_sequence_nr() - 1
                self.module_of_node.setdefault(node, self.module[-1])
            base = str(func).rsplit(".", 1)[0]
            schema = func._schema.arguments
            arguments = dict(zip((a.name for a in schema), args, strict=False))
            arguments.update(kwargs)
            overwritten_names = {a.name for a in schema if a.is_out}
            written_names = {
                a.name for a in schema if a.alias_info is not None and a.alias_info.is_write
            }
            if arguments.get("training", True):
                written_names.update(_HIDDEN_WRITES.get(base, ()))

            read: dict[int, None] = {}
            written: dict[int, None] = {}
            traffic = 0
            results = [t for t in _tensors_in(torch, result) if t.untyped_storage().nbytes()]
            operands: list[Any] = []
            counted: set[tuple[Any, ...]] = set()
            for name, value in arguments.items():
                for tensor in _tensors_in(torch, value):
                    number = storages.number(tensor)
                    if number in host or not tensor.untyped_storage().nbytes():
                        continue
                    operands.append(tensor)
                    view = (number, tensor.storage_offset(), tensor.shape, tensor.stride())
                    size = _distinct_bytes(tensor)
                    if _READS_OUTPUT_SIZE.get(base) == name and results:
                        size = _distinct_bytes(results[0])
                    source = arguments.get(_WRITES_SOURCE_SIZE.get(base, ""))
                    if name in written_names and isinstance(source, torch.Tensor):
                        size = _distinct_bytes(source)
                    if name in _READ_TWICE.get(base, ()):
                        size *= 2
                    if name in written_names:
                        written[number] = None
                        traffic += size
                        if base in _OVERWRITES or name in overwritten_names:
                            continue
                    read[number] = None
                    if view not in counted:
                        counted.add(view)
                        traffic += size
            fresh = [t for t in results if storages.known(t) is None]
            if base == "aten.lift_fresh":
                host.update(storages.number(t) for t in fresh)
            if base in _NO_WORK or not (fresh or written):
                for tensor in fresh:
                    storages.number(tensor)
                return
            for tensor in fresh:
                number = storages.number(tensor)
                if number not in written:
                    written[number] = None
                    traffic += _distinct_bytes(tensor)

            flops = _matrix_flops(base, arguments, results)
            if flops is None:
                counter = flop_registry.get(func._overloadpacket)
                flops = int(counter(*args, **kwargs, out_val=result)) if counter else 0
            recording.ops.append(str(func))
            recording.modules.append(self._owner())
            recording.phases.append(int(self.phase))
            floats = [t for t in operands if t.is_floating_point()]
            recording.half.append(bool(floats) and all(t.element_size() == 2 for t in floats))
            recording.flops.append(flops)
            recording.traffic.append(traffic)
            recording.inputs.append(list(read))
            recording.outputs.append(list(written))

        def _owner(self) -> str:
            if self.phase == Phase.BACKWARD:
                node = torch._C._current_autograd_node()
                return self.module_of_node.get(node._sequence_nr(), "") if node else ""
            return self.module[-1]

    return Recorder()


def record_step(
    build: Callable[..., "TrainingStep | tuple[Any, ...]"],
    *,
    batch: int,
    seq: int | None = None,
    dtype: str = "float32",
) -> Recording:
    """Record one training step of what `build` returns.

    With an optimizer two steps are run and the second recorded: its states then exist, as in every step but the first.

    Args:
        build: called as ``build(batch)``, or ``build(batch, seq)`` if a sequence length is given; returns a
            `TrainingStep` or a tuple of its first three or four fields. It runs under fake tensors, and must make model,
            inputs and optimizer inside.
        batch: samples in the batch.
        seq: sequence length in tokens, or None.
        dtype: default floating-point type while `build` runs, for instance ``"bfloat16"``.

    Returns:
        The recording.

    Raises:
        InputError: PyTorch is absent, `build` returns something else, or the step needs values that fake tensors do
            not have.
    """
    torch = import_torch()
    from torch._subclasses.fake_tensor import (
        DataDependentOutputException,
        DynamicOutputShapeException,
        FakeTensorMode,
    )

    needs_values = (DataDependentOutputException, DynamicOutputShapeException)

    saved = torch.get_default_dtype()
    with FakeTensorMode(allow_non_fake_inputs=True), contextlib.ExitStack() as stack:
        stack.enter_context(_no_initialisation(torch))
        # Recurrent layers then run as matrix products, and not as one operator that only a CPU has.
        (onednn, *_) = torch.backends.mkldnn.set_flags(_enabled=False, _fp32_precision=None)
        stack.callback(torch.backends.mkldnn.set_flags, _enabled=onednn, _fp32_precision=None)
        torch.set_default_dtype(getattr(torch, dtype))
        try:
            made = build(batch) if seq is None else build(batch, seq)
        except needs_values as error:
            raise InputError(
                f"the build function looks at a tensor's values ({error}), and fake tensors have none; "
                "make the model without doing so"
            ) from None
        except RuntimeError as error:
            if "Couldn't swap" not in str(error):
                raise
            raise InputError(
                "the build function converts a module that exists (with .to(), .half() or alike), which fake tensors "
                "do not allow; make it in the right type, for instance with capture_step's dtype"
            ) from None
        finally:
            torch.set_default_dtype(saved)
        step = _checked(torch, made)
        try:
            return _run(torch, step)
        except needs_values as error:
            raise InputError(
                f"the training step looks at a tensor's values ({error}), and fake tensors have none; "
                "take that part out of the step"
            ) from None
        except NotImplementedError as error:
            if "Cannot access storage" not in str(error):
                raise
            raise InputError(
                f"the training step uses a tensor without storage ({error}), such as a sparse gradient; "
                "use dense tensors"
            ) from None


def _checked(torch: Any, made: Any) -> TrainingStep:
    step = made
    if isinstance(made, tuple) and 3 <= len(made) <= 4:
        step = TrainingStep(*made)
    if not isinstance(step, TrainingStep):
        raise InputError(
            "the build function must return a TrainingStep or a tuple (model, inputs, loss[, optimizer]), "
            f"not {type(made).__name__}"
        )
    if not isinstance(step.model, torch.nn.Module):
        raise InputError(
            f"the build function must return a torch.nn.Module as its model, not {type(step.model).__name__}"
        )
    if not callable(step.loss):
        raise InputError(
            f"the build function must return a callable as its loss, not {type(step.loss).__name__}"
        )
    return step


def _run(torch: Any, step: TrainingStep) -> Recording:
    recording = Recording(max_seq=step.max_seq)
    storages = _Storages(recording)
    host: set[int] = set()
    recorder = _recorder(torch, recording, storages, host)
    model, optimizer = step.model, step.optimizer

    if optimizer is not None:
        _loss(step).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    else:
        for parameter in model.parameters():
            parameter.grad = None

    _name_state(torch, step, storages, host)
    with _module_names(torch, model, recorder), recorder:
        loss = _loss(step)
        recorder.phase = Phase.BACKWARD
        loss.backward()
        del loss
        parameters = {id(p): p for p in model.parameters()}.values()
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                weight, gradient = (storages.number(t) for t in (parameter, parameter.grad))
                recording.tensor_names[gradient] = f"{name}.grad"
                recording.tensor_kind[gradient] = int(TensorKind.GRADIENT)
                recording.params.append(
                    (weight, gradient, parameter.numel() * parameter.element_size())
                )
        recording.param_count = sum(p.numel() for p in parameters)
        recording.dtypes = sorted({str(p.dtype).removeprefix("torch.") for p in parameters})
        recorder.phase = Phase.OPTIMIZER
        if optimizer is not None:
            recording.optimizer = type(optimizer).__name__.lower()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    _set_kinds(recording)
    return recording


def _loss(step: TrainingStep) -> Any:
    inputs = step.inputs
    if isinstance(inputs, dict):
        return step.loss(step.model(**inputs))
    if isinstance(inputs, (list, tuple)):
        return step.loss(step.model(*inputs))
    return step.loss(step.model(inputs))


def _name_state(torch: Any, step: TrainingStep, storages: _Storages, host: set[int]) -> None:
    """Number and name what exists before the step and outlives it: weights, buffers, optimizer states."""
    recording = storages.recording

    def note(tensor: Any, name: str, kind: TensorKind) -> None:
        number = storages.number(tensor)
        if not recording.tensor_is_global[number]:
            recording.tensor_names[number] = name
            recording.tensor_kind[number] = int(kind)
            recording.tensor_is_global[number] = True

    names = {}
    for name, parameter in step.model.named_parameters():
        names[id(parameter)] = name
        note(parameter, name, TensorKind.WEIGHT)
    for name, buffer in step.model.named_buffers():
        note(buffer, name, TensorKind.WEIGHT)
    if step.optimizer is None:
        return
    for parameter, states in step.optimizer.state.items():
        owner = names.get(id(parameter), "parameter")
        for state, value in states.items():
            for tensor in _tensors_in(torch, value):
                if tensor.dim() == 0 and not step.optimizer.defaults.get("capturable", False):
                    # Step counters live on the host.
                    host.add(storages.number(tensor))
                else:
                    note(tensor, f"{owner}.{state}", TensorKind.OPTIMIZER)


@contextlib.contextmanager
def _module_names(torch: Any, model: Any, recorder: Any) -> Iterator[None]:
    """Keep the name of the module whose forward pass runs on top of ``recorder.module``."""
    names = {id(module): name for name, module in model.named_modules()}
    handles = []

    def enter(module: Any, _: Any) -> None:
        recorder.module.append(names.get(id(module), recorder.module[-1]))

    def leave(module: Any, _: Any, __: Any) -> None:
        recorder.module.pop()

    for module in model.modules():
        handles.append(module.register_forward_pre_hook(enter))
        handles.append(module.register_forward_hook(leave))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _set_kinds(recording: Recording) -> None:
    """Tell inputs (read, but written by no kernel before) and the optimizer's temporaries from activations."""
    written: set[int] = set()
    optimizer = int(Phase.OPTIMIZER)
    first: dict[int, int] = {}
    for kernel, (reads, writes) in enumerate(zip(recording.inputs, recording.outputs, strict=True)):
        for tensor in reads:
            if tensor not in written and not recording.tensor_is_global[tensor]:
                recording.tensor_kind[tensor] = int(TensorKind.INPUT)
        for tensor in (*reads, *writes):
            first.setdefault(tensor, recording.phases[kernel])
        written.update(writes)
    for tensor, phase in first.items():
        if (
            phase == optimizer
            and not recording.tensor_is_global[tensor]
            and recording.tensor_kind[tensor] == int(TensorKind.ACTIVATION)
        ):
            recording.tensor_kind[tensor] = int(TensorKind.WORKSPACE)
