"""Builders of the zoo's models from public code. Each needs PyTorch and the library it names; see `build`."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final

from pagetide.model.workload.capture.recorder import (
    TrainingStep,
    import_torch,
    import_zoo_library,
)

__all__ = ["MODELS", "ZooModel"]


@dataclass(frozen=True)
class ZooModel:
    """A model of the zoo.

    Attributes:
        title: what it is, in one line.
        optimizer: the optimizer it is trained with unless another is asked for.
        distribution: the one that the model's code comes from; empty for a module of our own.
        build: ``build(batch)``, or ``build(batch, seq)`` for a model of sequences, as `capture_step` takes.
        seq: default sequence length; None for a model without one.
        input: what one sample is.
    """

    title: str
    optimizer: str
    distribution: str
    build: Callable[..., TrainingStep]
    seq: int | None
    input: str


def _classes(batch: int, classes: int = 1000) -> Any:
    return import_torch().zeros(batch, dtype=import_torch().int64).random_(classes)


def _image_step(model: Any, batch: int, size: int) -> TrainingStep:
    torch = import_torch()
    labels = _classes(batch)
    return TrainingStep(
        model=model.train(),
        inputs=torch.randn(batch, 3, size, size),
        loss=lambda out: torch.nn.functional.cross_entropy(out, labels),
    )


def _torchvision(function: str, size: int = 224) -> Callable[[int], TrainingStep]:
    def build(batch: int) -> TrainingStep:
        models = import_zoo_library("torchvision.models")
        return _image_step(getattr(models, function)(weights=None), batch, size)

    return build


def _inception_v3(batch: int) -> TrainingStep:
    torch = import_torch()
    models = import_zoo_library("torchvision.models")
    model = models.inception_v3(weights=None, aux_logits=True, init_weights=False).train()
    labels = _classes(batch)
    cross_entropy = torch.nn.functional.cross_entropy

    def loss(out: Any) -> Any:
        return cross_entropy(out.logits, labels) + 0.4 * cross_entropy(out.aux_logits, labels)

    return TrainingStep(model=model, inputs=torch.randn(batch, 3, 299, 299), loss=loss)


def _senet154(batch: int) -> TrainingStep:
    timm = import_zoo_library("timm")
    return _image_step(timm.create_model("legacy_senet154", pretrained=False), batch, 224)


def _language_model(
    model_class: str, config_class: str, attention: str = "eager", **config: Any
) -> Callable[[int, int], TrainingStep]:
    """A model of the transformers library with its language-model loss.

    Attention is ``"eager"`` (matrix products and softmax, each a kernel) or ``"sdpa"`` (one fused kernel).
    """

    def build(batch: int, seq: int) -> TrainingStep:
        torch = import_torch()
        transformers = import_zoo_library("transformers")
        settings = getattr(transformers, config_class)(
            attn_implementation=attention, use_cache=False, **config
        )
        model = getattr(transformers, model_class)(settings).train()
        tokens = torch.zeros(batch, seq, dtype=torch.int64).random_(settings.vocab_size)
        return TrainingStep(
            model=model,
            inputs={"input_ids": tokens, "labels": tokens.clone()},
            loss=lambda out: out.loss,
            max_seq=settings.max_position_embeddings,
        )

    return build


def _dlrm(batch: int) -> TrainingStep:
    """The deep-learning recommendation model with 26 tables of a million rows of 128, dense gradients."""
    torch = import_torch()
    nn = torch.nn
    tables, rows, width, dense = 26, 1_000_000, 128, 13

    def mlp(*sizes: int, last: bool) -> Any:
        layers: list[Any] = []
        for i, (a, b) in enumerate(pairwise(sizes)):
            layers.append(nn.Linear(a, b))
            if i < len(sizes) - 2 or last:
                layers.append(nn.ReLU(inplace=True))
        return nn.Sequential(*layers)

    class Dlrm(nn.Module):  # type: ignore[misc,name-defined,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
            self.bottom = mlp(dense, 512, 256, width, last=True)
            pairs = (tables + 1) * tables // 2
            self.top = mlp(width + pairs, 1024, 1024, 512, 256, 1, last=False)
            index = torch.tril_indices(tables + 1, tables + 1, offset=-1)
            self.register_buffer("pairs", index[0] * (tables + 1) + index[1])

        def forward(self, features: Any, ids: Any) -> Any:
            bottom = self.bottom(features)
            vectors = [bottom, *(t(ids[:, i]) for i, t in enumerate(self.tables))]
            stacked = torch.stack(vectors, dim=1)
            dots = torch.bmm(stacked, stacked.transpose(1, 2)).flatten(1)
            return self.top(torch.cat([bottom, dots.index_select(1, self.pairs)], dim=1))

    clicked = torch.rand(batch, 1)
    return TrainingStep(
        model=Dlrm().train(),
        inputs=(
            torch.randn(batch, dense),
            torch.zeros(batch, tables, dtype=torch.int64).random_(rows),
        ),
        loss=lambda out: nn.functional.binary_cross_entropy_with_logits(out, clicked),
    )


_IMAGE = "one image of 3 x 224 x 224"


def _cnn(title: str, function: str) -> ZooModel:
    return ZooModel(title, "sgd", "torchvision", _torchvision(function), None, _IMAGE)


def _bert(title: str, seq: int, **config: Any) -> ZooModel:
    build = _language_model("BertForMaskedLM", "BertConfig", **config)
    return ZooModel(title, "adamw", "transformers", build, seq, "one sequence of tokens")


def _gpt2(title: str, width: int, layers: int, heads: int) -> ZooModel:
    build = _language_model(
        "GPT2LMHeadModel", "GPT2Config", n_embd=width, n_layer=layers, n_head=heads
    )
    return ZooModel(title, "adamw", "transformers", build, 1024, "one sequence of tokens")


MODELS: Final = MappingProxyType(
    {
        "bert-base": _bert("BERT-base, masked language model", 128),
        "bert-large": _bert(
            "BERT-large, masked language model",
            512,
            hidden_size=1024,
            num_hidden_layers=24,
            num_attention_heads=16,
            intermediate_size=4096,
        ),
        "gpt2": _gpt2("GPT-2 small, causal language model", 768, 12, 12),
        "gpt2-medium": _gpt2("GPT-2 medium, causal language model", 1024, 24, 16),
        "gpt2-large": _gpt2("GPT-2 large, causal language model", 1280, 36, 20),
        "gpt2-xl": _gpt2("GPT-2 XL, causal language model", 1600, 48, 25),
        "llama-7b": ZooModel(
            "Llama 7B (first release), causal language model",
            "adamw",
            "transformers",
            _language_model("LlamaForCausalLM", "LlamaConfig", attention="sdpa"),
            2048,
            "one sequence of tokens",
        ),
        "vit-b16": ZooModel(
            "ViT-B/16, image classifier",
            "adamw",
            "torchvision",
            _torchvision("vit_b_16"),
            None,
            _IMAGE,
        ),
        "resnet50": _cnn("ResNet-50, image classifier", "resnet50"),
        "resnet152": _cnn("ResNet-152, image classifier", "resnet152"),
        "inception-v3": ZooModel(
            "Inception v3 with its auxiliary classifier",
            "sgd",
            "torchvision",
            _inception_v3,
            None,
            "one image of 3 x 299 x 299",
        ),
        "senet154": ZooModel("SENet-154, image classifier", "sgd", "timm", _senet154, None, _IMAGE),
        "dlrm": ZooModel(
            "DLRM, 26 embedding tables of 1 M x 128, click prediction",
            "adamw",
            "",
            _dlrm,
            None,
            "13 numbers and 26 table rows",
        ),
    }
)
"""The zoo's models by name."""
