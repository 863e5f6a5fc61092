"""The zoo against public facts of its models and closed formulas; needs neither PyTorch nor shared data."""

from itertools import pairwise

import numpy as np
import pytest

from pagetide.model.errors import InputError
from pagetide.model.workload import Phase, TensorKind, Workload, zoo

# Numbers of parameters as the models' authors and libraries publish them.
PARAMETERS = {
    "bert-base": 109_514_298,
    "bert-large": 335_174_458,
    "dlrm": 26 * 10**6 * 128
    + sum(
        a * b + b
        for widths in ((13, 512, 256, 128), (128 + 27 * 26 // 2, 1024, 1024, 512, 256, 1))
        for a, b in pairwise(widths)
    ),
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "inception-v3": 27_161_264,
    "llama-7b": 6_738_415_616,
    "resnet50": 25_557_032,
    "resnet152": 60_192_808,
    "senet154": 115_088_984,
    "vit-b16": 86_567_656,
}


def phase_flops(workload: Workload, phase: Phase) -> float:
    return float(workload.kernels.flops[workload.kernels.phase == phase].sum())


def bytes_of(workload: Workload, kind: TensorKind) -> int:
    return int(workload.tensors.size_bytes[workload.tensors.kind == kind].sum())


def test_the_zoo_has_exactly_these_models() -> None:
    assert zoo.names() == sorted(PARAMETERS)


@pytest.mark.parametrize("name", sorted(PARAMETERS))
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_parameters_and_states(name: str, precision: str) -> None:
    width = {"fp32": 4, "bf16": 2}[precision]
    step = zoo.load(name, batch=2, precision=precision, optimizer="adamw")
    assert step.metadata["parameters"] == PARAMETERS[name]
    # Auxiliary state beside the parameters (running statistics, position ids) is global too.
    assert bytes_of(step, TensorKind.WEIGHT) >= width * PARAMETERS[name]
    assert bytes_of(step, TensorKind.GRADIENT) == width * PARAMETERS[name]
    assert bytes_of(step, TensorKind.OPTIMIZER) == 2 * width * PARAMETERS[name]
    sgd = zoo.load(name, batch=2, precision=precision, optimizer="sgd")
    assert bytes_of(sgd, TensorKind.OPTIMIZER) == width * PARAMETERS[name]


@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_structure(name: str) -> None:
    """What is global, what is written before it is read, and in which phase gradients and states are used."""
    step = zoo.load(name, batch=3)
    kind, is_global = step.tensors.kind, step.tensors.is_global
    assert np.array_equal(is_global, np.isin(kind, [TensorKind.WEIGHT, TensorKind.OPTIMIZER]))
    assert np.all(np.diff(step.kernels.phase.astype(int)) >= 0)

    kernels = len(step.kernels)
    first_read = np.full(len(step.tensors), kernels)
    np.minimum.at(first_read, step.inputs.ids, step.inputs.rows)
    first_write = np.full(len(step.tensors), kernels)
    np.minimum.at(first_write, step.outputs.ids, step.outputs.rows)
    made = np.isin(kind, [TensorKind.ACTIVATION, TensorKind.GRADIENT, TensorKind.WORKSPACE])
    assert np.all(first_write[made] < kernels)
    # A tensor that a kernel both makes and reads would be in-place on memory that holds nothing.
    assert np.all(first_write[made] < first_read[made])
    inputs = kind == TensorKind.INPUT
    assert inputs.any()
    assert np.all(first_read[inputs] < kernels)

    touched = np.zeros((3, len(step.tensors)), dtype=bool)
    for csr in (step.inputs, step.outputs):
        touched[step.kernels.phase[csr.rows], csr.ids] = True
    gradients = kind == TensorKind.GRADIENT
    assert not touched[Phase.FORWARD][gradients].any()
    assert touched[Phase.BACKWARD][gradients].all()
    assert touched[Phase.OPTIMIZER][gradients].all()
    states = kind == TensorKind.OPTIMIZER
    assert not touched[: Phase.OPTIMIZER, states].any()
    # Every kernel of the optimizer step that writes a state also reads it.
    assert step.kernels.names[-1].split(":")[1] == (
        "add_" if step.metadata["optimizer"] == "sgd" else "addcdiv_"
    )


@pytest.mark.parametrize(
    ("name", "layers", "width"),
    [("gpt2", 12, 768), ("gpt2-medium", 24, 1024), ("gpt2-large", 36, 1280), ("gpt2-xl", 48, 1600)],
)
@pytest.mark.parametrize(("batch", "seq"), [(1, 1024), (7, 513)])
def test_gpt2_flops_follow_the_closed_formula(
    name: str, layers: int, width: int, batch: int, seq: int
) -> None:
    """24 s d^2 + 4 s^2 d a layer and 2 s d V for the logits; twice that backward. Exact at every batch and length."""
    step = zoo.load(name, batch=batch, seq=seq)
    forward = batch * (
        layers * (24 * seq * width**2 + 4 * seq**2 * width) + 2 * seq * width * 50257
    )
    assert phase_flops(step, Phase.FORWARD) == forward
    assert phase_flops(step, Phase.BACKWARD) == 2 * forward


def test_bert_tensor_sizes_at_another_length() -> None:
    """Attention probabilities grow with the square of the length, logits with its first power."""
    batch, seq = 5, 384
    step = zoo.load("bert-base", batch=batch, seq=seq)
    size = dict(zip(step.kernels.names, range(len(step.kernels)), strict=True))

    def made_by(kernel: str) -> int:
        return int(step.tensors.size_bytes[step.outputs[size[kernel]][0]])

    assert made_by("bert.encoder.layer.3.attention.self:_softmax") == 4 * batch * 12 * seq * seq
    assert made_by("cls.predictions.decoder:addmm") == 4 * batch * seq * 30522


@pytest.mark.parametrize(
    ("name", "gmac"), [("resnet50", 4.09), ("resnet152", 11.51), ("vit-b16", 17.56)]
)
def test_forward_flops_of_image_models(name: str, gmac: float) -> None:
    """Multiply-adds of an image as torchvision's tables of its models give them (rounded)."""
    step = zoo.load(name, batch=4)
    assert phase_flops(step, Phase.FORWARD) / 4 == pytest.approx(2e9 * gmac, rel=0.003)


def test_grouped_convolution_backward_is_not_counted_as_dense() -> None:
    """SENet's grouped convolutions: input and weight gradient cost one forward pass each."""
    step = zoo.load("senet154", batch=1)
    ratio = phase_flops(step, Phase.BACKWARD) / phase_flops(step, Phase.FORWARD)
    assert ratio == pytest.approx(2.0, abs=0.01)


def test_one_sample_is_a_step_of_its_own() -> None:
    """A transpose over a dimension of 1 is contiguous, so PyTorch leaves out the copies around attention."""

    def copies(batch: int) -> int:
        names = zoo.load("bert-base", batch=batch).kernels.names
        return sum(name.endswith(":clone") for name in names)

    assert copies(3) == copies(2) > copies(1)
    assert phase_flops(zoo.load("bert-base", batch=1), Phase.FORWARD) * 2 == phase_flops(
        zoo.load("bert-base", batch=2), Phase.FORWARD
    )


@pytest.mark.parametrize("name", sorted(set(PARAMETERS) - {"inception-v3"}))
@pytest.mark.parametrize("precision", list(zoo.PRECISIONS))
def test_smallest_steps(name: str, precision: str) -> None:
    seq = 2 if "seq" in zoo.describe(name) else None
    step = zoo.load(name, batch=1, precision=precision, seq=seq)
    assert np.all(step.kernels.flops >= 0)
    assert step.metadata["batch"] == 1
    assert step.metadata["parameters"] == PARAMETERS[name]


def test_default_optimizers() -> None:
    assert zoo.load("resnet50", batch=1).metadata["optimizer"] == "sgd"
    assert zoo.load("gpt2", batch=1).metadata["optimizer"] == "adamw"


@pytest.mark.parametrize(("optimizer", "kernels"), [("sgd", 3), ("adam", 7), ("adamw", 8)])
def test_optimizer_kernels_a_parameter(optimizer: str, kernels: int) -> None:
    step = zoo.load("resnet50", batch=1, optimizer=optimizer)
    assert np.count_nonzero(step.kernels.phase == Phase.OPTIMIZER) == 161 * kernels


def test_precision_changes_sizes_and_times() -> None:
    steps = {p: zoo.load("bert-base", batch=16, precision=p) for p in zoo.PRECISIONS}
    assert steps["tf32"].total_bytes == steps["fp32"].total_bytes
    assert steps["bf16"].total_bytes == pytest.approx(steps["fp32"].total_bytes / 2, rel=0.01)
    assert steps["bf16"].ideal_ns < steps["tf32"].ideal_ns < steps["fp32"].ideal_ns


def test_in_place_operand_is_input_and_output() -> None:
    step = zoo.load("resnet50", batch=2)
    kernel = step.kernels.names.index("relu:relu_")
    assert np.array_equal(step.inputs[kernel], step.outputs[kernel])
    running_mean = step.tensors.names.index("bn1.running_mean")
    kernel = step.kernels.names.index("bn1:native_batch_norm")
    assert running_mean in step.inputs[kernel]
    assert running_mean in step.outputs[kernel]


def test_dropout_mask_is_written_without_being_read() -> None:
    step = zoo.load("bert-base", batch=2)
    kernel = step.kernels.names.index("bert.embeddings.dropout:bernoulli_")
    assert len(step.inputs[kernel]) == 0
    assert len(step.outputs[kernel]) == 1


def test_names_are_those_of_the_model() -> None:
    step = zoo.load("gpt2", batch=1)
    for name in ("transformer.wte.weight", "transformer.wte.weight.grad"):
        assert name in step.tensors.names
    assert "transformer.h.11.mlp.c_fc.weight.exp_avg_sq" in step.tensors.names
    assert len(set(step.tensors.names)) == len(step.tensors)
    backward = [
        name
        for name, phase in zip(step.kernels.names, step.kernels.phase, strict=True)
        if phase == Phase.BACKWARD
    ]
    assert "transformer.h.0.ln_1:native_layer_norm_backward" in backward


def test_same_workload_twice(tmp_path) -> None:
    paths = [tmp_path / "a.npz", tmp_path / "b.npz"]
    for path in paths:
        zoo.load("dlrm", batch=100).save(path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert Workload.load(paths[0]).total_bytes == zoo.load("dlrm", batch=100).total_bytes


def test_describe() -> None:
    told = zoo.describe("bert-base")
    assert told["parameters"] == PARAMETERS["bert-base"]
    assert (told["seq"], told["max_seq"], told["default_optimizer"]) == (128, 512, "adamw")
    assert "seq" not in zoo.describe("resnet50")
    for name in zoo.names():
        told = zoo.describe(name)
        assert told["title"]
        assert told["torch"].startswith("2.")
        assert told["kernels"] > 100


def test_shipped_files_are_small() -> None:
    assert sum(path.stat().st_size for path in zoo.DATA_FOLDER.glob("*.npz")) < 2**20


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("bert-bsae", {}, "unknown model 'bert-bsae'; did you mean 'bert-base'?"),
        ("gpt2", {"precision": "fp23"}, "unknown precision 'fp23'; did you mean 'fp32'?"),
        ("gpt2", {"optimizer": "adamww"}, "unknown optimizer 'adamww'; did you mean 'adamw'?"),
        ("gpt2", {"gpu": "a100-40g"}, "unknown GPU 'a100-40g'; did you mean 'a100-40gb'?"),
        ("gpt2", {"gpu": "v100-32gb", "precision": "bf16"}, "has no 'bf16' arithmetic"),
        ("gpt2", {"gpu": "v100-32gb", "precision": "tf32"}, "has no 'tf32' arithmetic"),
        ("gpt2", {"batch": 0}, "batch must be a positive whole number, not 0"),
        ("gpt2", {"batch": 2.5}, "batch must be a positive whole number, not 2.5"),
        ("gpt2", {"batch": 10**15}, "do not fit 63 bits"),
        ("gpt2", {"seq": 1025}, "over the model's limit of 1024"),
        ("gpt2", {"seq": 0}, "sequence length must be a positive whole number"),
        ("gpt2", {"seq": 1}, "holds from sequence length 2 on, not for 1"),
        # Its auxiliary classifier normalises over one value a channel and sample.
        ("inception-v3", {}, "holds from batch 2 on, not for 1"),
        ("resnet50", {"seq": 128}, "has no sequence length"),
    ],
)
def test_bad_arguments(name: str, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as error:
        zoo.load(name, **{"batch": 1, **arguments})  # type: ignore[arg-type]
    assert message in str(error.value)
