"""Recording with PyTorch; skipped where it is not installed (``pip install 'pagetide[capture]'``)."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from pagetide.model.errors import InputError
from pagetide.model.workload import Phase, TensorKind, Workload, zoo
from pagetide.model.workload.capture import (
    Capture,
    TrainingStep,
    capture_function,
    capture_step,
    optimizer_rule,
    record_step,
)

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="PyTorch is not installed (pip install 'pagetide[capture]')",
)


def cnn(batch: int, optimizer: str | None = None) -> TrainingStep:
    """Convolutions (one grouped), batch norm, in-place ReLU, dropout, a view and a linear layer."""
    import torch

    from pagetide.model.workload.zoo.build import make_optimizer

    nn = torch.nn
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.Conv2d(8, 8, 3, groups=4),
        nn.Dropout(0.1),
        nn.Flatten(),
        nn.Linear(8 * 4 * 4, 10),
    )
    labels = torch.zeros(batch, dtype=torch.int64)
    return TrainingStep(
        model=model,
        inputs=torch.randn(batch, 3, 8, 8),
        loss=lambda out: nn.functional.cross_entropy(out, labels),
        optimizer=make_optimizer(optimizer, model.parameters()) if optimizer else None,
    )


def graph(workload: Workload) -> list[tuple[object, ...]]:
    """Kernels with operands renamed by first appearance: equal for equal steps."""
    number: dict[int, int] = {}
    tensors = workload.tensors
    return [
        (
            workload.kernels.names[k].split(":")[-1],
            workload.kernels.duration_ns[k],
            *(
                [
                    (
                        number.setdefault(int(t), len(number)),
                        int(tensors.size_bytes[t]),
                        int(tensors.kind[t]),
                        bool(tensors.is_global[t]),
                    )
                    for t in csr[k]
                ]
                for csr in (workload.inputs, workload.outputs)
            ),
        )
        for k in range(len(workload.kernels))
    ]


@pytest.fixture(scope="module")
def step() -> Workload:
    return capture_step(cnn).workload(batch=16)


def test_kernels_without_views_and_reservations(step: Workload) -> None:
    forward = [n for n, p in zip(step.kernels.names, step.kernels.phase, strict=True) if p == 0]
    assert forward == [
        "0:convolution",
        "1:add_",
        "1:native_batch_norm",
        "2:relu_",
        "3:convolution",
        "4:bernoulli_",
        "4:div_",
        "4:mul",
        "6:addmm",
        "_log_softmax",
        "nll_loss_forward",
    ]
    backward = [n for n, p in zip(step.kernels.names, step.kernels.phase, strict=True) if p == 1]
    assert "0:convolution_backward" in backward
    assert "6:mm" in backward


def test_flops_count_groups(step: Workload) -> None:
    flops = dict(zip(step.kernels.names, step.kernels.flops, strict=True))
    assert flops["0:convolution"] == 16 * 2 * 8 * 6 * 6 * 3 * 9
    assert flops["3:convolution"] == 16 * 2 * 8 * 4 * 4 * 2 * 9
    # The image needs no gradient, so the first convolution has only that of its weight.
    assert flops["0:convolution_backward"] == flops["0:convolution"]
    assert flops["3:convolution_backward"] == 2 * flops["3:convolution"]


def test_sizes_and_kinds(step: Workload) -> None:
    size = dict(zip(step.tensors.names, step.tensors.size_bytes.tolist(), strict=True))
    kind = dict(zip(step.tensors.names, step.tensors.kind.tolist(), strict=True))
    assert size["0.weight"] == size["0.weight.grad"] == 4 * 8 * 3 * 9
    assert kind["0.weight"] == TensorKind.WEIGHT
    assert kind["0.weight.grad"] == TensorKind.GRADIENT
    assert kind["1.running_mean"] == TensorKind.WEIGHT
    inputs = sorted(size[n] for n in size if kind[n] == TensorKind.INPUT)
    assert inputs == [16 * 8, 16 * 3 * 8 * 8 * 4]


def test_storages_die_after_their_last_use() -> None:
    recording = record_step(cnn, batch=2)
    last = {}
    for k, operands in enumerate(zip(recording.inputs, recording.outputs, strict=True)):
        for tensor in (t for ids in operands for t in ids):
            last[tensor] = k
    dead = {t: d for t, d in enumerate(recording.tensor_death) if d is not None and t in last}
    assert all(death > last[tensor] for tensor, death in dead.items())
    activations = [t for t, kind in enumerate(recording.tensor_kind) if kind == 3 and t in last]
    early = sum(recording.tensor_death[t] < len(recording.ops) for t in activations)
    assert early > len(activations) / 2


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_rule_equals_the_recorded_step(optimizer: str) -> None:
    recorded = capture_step(lambda batch: cnn(batch, optimizer))
    assert recorded.metadata["optimizer"] == optimizer
    appended = capture_step(cnn).with_optimizer(optimizer)
    assert graph(recorded.workload(batch=4)) == graph(appended.workload(batch=4))


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_shipped_rule_is_what_pytorch_does(optimizer: str) -> None:
    from pagetide.model.workload.zoo.build import record_rule

    fresh, shipped = record_rule(optimizer), optimizer_rule(optimizer)
    assert fresh["states"] == list(shipped.states)
    assert fresh["temporaries"] == shipped.temporaries
    assert fresh["kernels"] == [[k.op, list(k.reads), list(k.writes)] for k in shipped.kernels]


def test_dlrm_can_be_captured_again() -> None:
    """The only model of the zoo that needs no library but PyTorch: the same bytes but for the provenance."""
    from pagetide.model.workload.zoo.build import capture_model

    fresh, shipped = capture_model("dlrm", "bf16"), zoo.capture("dlrm", "bf16")
    assert fresh.kernel_ops == shipped.kernel_ops
    assert graph(fresh.workload(batch=64)) == graph(shipped.workload(batch=64))


def test_one_batch_alone() -> None:
    capture = capture_step(cnn, batch=4)
    assert capture.workload().metadata["batch"] == 4
    many = capture_step(cnn)
    assert graph(capture.workload()) == graph(many.workload(batch=4))


def test_sizes_depend_on_the_sequence_length() -> None:
    """Attention probabilities with the square of it; checked to the byte at a length and batch outside the fit."""
    import torch

    def build(batch: int, seq: int) -> tuple[object, ...]:
        layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        return layer, torch.randn(batch, seq, 32), lambda out: out.sum()

    capture = capture_step(build, seq=(8, 12, 20, 2, 28))
    assert (capture.metadata["min_batch"], capture.metadata["min_seq"]) == (2, 2)
    step = capture.workload(batch=6, seq=50)
    (probabilities,) = {
        int(step.tensors.size_bytes[step.outputs[k][0]])
        for k, name in enumerate(step.kernels.names)
        if name.endswith("softmax")
    }
    assert probabilities == 4 * 6 * 4 * 50 * 50
    alone = capture_step(lambda batch: build(batch, 50), batch=6)
    assert graph(alone.workload()) == graph(step)


def test_graph_that_depends_on_the_batch_is_refused() -> None:
    import torch

    def build(batch: int) -> tuple[object, ...]:
        layers = [torch.nn.Linear(4, 4) for _ in range(batch)]
        return torch.nn.Sequential(*layers), torch.randn(batch, 4), lambda out: out.sum()

    with pytest.raises(
        InputError, match="the step at batch 3 runs other operators than at batch 2"
    ):
        capture_step(build)


def test_size_that_is_not_affine_is_refused() -> None:
    import torch

    def build(batch: int) -> tuple[object, ...]:
        def loss(out: torch.Tensor) -> torch.Tensor:
            return (out @ out.T).sum()

        return torch.nn.Linear(4, 4), torch.randn(batch, 4), loss

    with pytest.raises(InputError, match=r"no polynomial of batch \(checked at batch 5\)"):
        capture_step(build)


def test_step_that_looks_at_values_is_refused() -> None:
    import torch

    def build(batch: int) -> tuple[object, ...]:
        def loss(out: torch.Tensor) -> torch.Tensor:
            return out.sum() if out.max() > 0 else out.mean()

        return torch.nn.Linear(4, 4), torch.randn(batch, 4), loss

    with pytest.raises(InputError, match="the training step looks at a tensor's values"):
        capture_step(build)


def test_out_argument_is_written_without_being_read() -> None:
    import torch

    def build(batch: int) -> tuple[object, ...]:
        def loss(out: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                torch.exp(out, out=torch.empty_like(out))
            return out.sum()

        return torch.nn.Linear(4, 4), torch.randn(batch, 4), loss

    step = capture_step(build).workload(batch=2)
    kernel = step.kernels.names.index("exp")
    assert len(step.inputs[kernel]) == len(step.outputs[kernel]) == 1
    assert step.inputs[kernel][0] != step.outputs[kernel][0]


def test_conversion_in_the_build_function_is_refused() -> None:
    import torch

    with pytest.raises(InputError, match="converts a module that exists"):
        capture_step(lambda batch: (torch.nn.Linear(2, 2).half(), torch.randn(batch, 2), sum))


def test_sparse_gradient_is_refused() -> None:
    import torch

    def build(batch: int) -> tuple[object, ...]:
        ids = torch.zeros(batch, 3, dtype=torch.int64)
        return torch.nn.Embedding(9, 4, sparse=True), ids, lambda out: out.sum()

    with pytest.raises(InputError, match="a tensor without storage"):
        capture_step(build)


def test_recurrent_layer_counts_its_matrix_products() -> None:
    """Eight products of 16 x 32 (input) and 32 x 32 (state) weights a sample and time step: four gates, 2 a multiply-add."""
    import torch

    def build(batch: int) -> tuple[object, ...]:
        layer = torch.nn.LSTM(16, 32, batch_first=True)
        return layer, torch.randn(batch, 12, 16), lambda out: out[0].sum()

    step = capture_step(build).workload(batch=4)
    forward = step.kernels.flops[step.kernels.phase == Phase.FORWARD].sum()
    assert forward == 4 * 12 * 4 * 2 * (16 * 32 + 32 * 32)


def test_autocast_is_mixed_precision() -> None:
    import torch

    class Mixed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.layer(x)

    def build(batch: int) -> tuple[object, ...]:
        return Mixed(), torch.randn(batch, 64), lambda out: out.float().sum()

    capture = capture_step(build)
    assert capture.metadata["precision"] == "mixed"
    half = dict(zip(capture.kernel_ops, capture.kernel_half, strict=True))
    assert half["aten.addmm.default"]
    assert not half["aten.sum.default"]


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (None, "must return a TrainingStep or a tuple"),
        ((1, 2, 3), "a torch.nn.Module as its model, not int"),
    ],
)
def test_wrong_build_function(made: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        capture_step(lambda batch: made)


def test_capture_of_a_file_s_function(tmp_path: Path) -> None:
    source = tmp_path / "my_model.py"
    source.write_text(
        "import torch\n"
        "def build(batch):\n"
        "    model = torch.nn.Linear(4, 2)\n"
        "    return model, torch.randn(batch, 4), lambda out: out.sum()\n"
    )
    told: list[str] = []
    capture = capture_function(f"{source}:build", optimizer="sgd", progress=told.append)
    assert told == ["batch 2", "batch 3", "batch 5"]
    path = tmp_path / "my_model.npz"
    capture.save(path)
    step = Capture.load(path).workload(batch=100)
    assert step.name == "build-b100-fp32-sgd"
    assert np.count_nonzero(step.kernels.phase == Phase.OPTIMIZER) == 2 * 3
    with pytest.raises(InputError, match="has no function 'built'"):
        capture_function(f"{source}:built")
    with pytest.raises(InputError, match="no such file"):
        capture_function(f"{tmp_path / 'none.py'}:build")
    with pytest.raises(InputError, match="no module 'no_such_module'"):
        capture_function("no_such_module:build")
    with pytest.raises(InputError, match="names no function"):
        capture_function("my_model")
