"""The sample networks by name: how to build each and what its inputs look like."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from fadiff.samples import branches, characters, digits, mobile, recurrent, resnet, swin, transformers, vgg
from fadiff.samples.images import images

Options = Mapping[str, int]
Builder = Callable[[Options], nn.Module]


@dataclass(frozen=True)
class Sample:
    """One network; `defaults` are its options with their default values."""

    name: str
    description: str
    builder: Builder
    make_inputs: Callable[[Options, int, torch.Generator], tuple[Tensor, ...]]
    defaults: Options = field(default_factory=dict)
    input_names: tuple[str, ...] = ("input",)
    classifier: bool = False
    """Whether the last linear layer is to be fitted to the seeded image classes."""
    norm_bias: float = 1.0
    """Of batch norms.  Random deep ReLU networks amplify small differences, quantisation noise too, like
    chaos; with mostly positive inputs to each ReLU they do not.  Residual shortcuts need less of it."""
    repeats: bool = False
    """A chain of equal blocks, too large to build as a whole: one is exported and repeated in the file."""
    train: Callable[[nn.Module, torch.Generator], digits.HeldOut] | None = None
    """Trains the module on real data; otherwise weights are random."""
    write: Callable[[Path, int], tuple[Path, Path, Path]] | None = None
    """Trains and writes the model with a seed, and its own calibration, test and labelled data."""

    def build(self, options: Options) -> nn.Module:
        """The module; options that are not given take their defaults."""
        return self.builder({**self.defaults, **options})

    def inputs(self, options: Options, batch: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Random inputs of the network."""
        return self.make_inputs({**self.defaults, **options}, batch, generator)


def _classifier(
    name: str, description: str, network: Callable[[], nn.Module], norm_bias: float = 1.0
) -> Sample:
    size = {"image_size": 224}
    return Sample(name, description, lambda _: network(), images, size, classifier=True, norm_bias=norm_bias)


def _images_to(name: str, description: str, network: Callable[[], nn.Module], size: int) -> Sample:
    """A network on images that is no classifier."""
    return Sample(name, description, lambda _: network(), images, {"image_size": size})


def _sized_classifier(name: str, description: str, builder: Builder, **options: int) -> Sample:
    """A classifier whose layers depend on its options; `image_size` is one of them."""
    return Sample(name, description, builder, images, {"image_size": 224, **options}, classifier=True)


def _tokens(width: int) -> Callable[[Options, int, torch.Generator], tuple[Tensor, ...]]:
    """Hidden states [batch, seq, width] of a transformer, unit variance; an option `width` has precedence."""

    def make(options: Options, batch: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        shape = (batch, options["seq"], options.get("width", width))
        return (torch.randn(shape, generator=generator),)

    return make


def _token_numbers(options: Options, batch: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Token numbers [batch, seq]."""
    return (torch.randint(recurrent.TOKENS, (batch, options["seq"]), generator=generator),)


def _blocks(name: str, description: str, network: Callable[[int], nn.Module], width: int) -> Sample:
    defaults = {"seq": 128, "layers": 1}
    return Sample(name, description, lambda o: network(o["layers"]), _tokens(width), defaults)


def _prompts(_: Options, batch: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Characters [batch, 32], their positions, and empty caches."""
    tokens = torch.randint(len(characters.ALPHABET), (batch, characters.PROMPT), generator=generator)
    return (tokens, torch.arange(characters.PROMPT), *characters.empty_caches(batch))


def _trained(name: str, description: str, network: Callable[[], nn.Module]) -> Sample:
    return Sample(name, description, lambda _: network(), digits.noise, train=digits.train)


SAMPLES: Mapping[str, Sample] = {
    sample.name: sample
    for sample in (
        _classifier("resnet18", "ResNet-18, 11.7 M weights, 1.81 GMAC", resnet.resnet18, norm_bias=0.5),
        _classifier("resnet50", "ResNet-50, 25.6 M weights", resnet.resnet50, norm_bias=0.5),
        _classifier("resnet152", "ResNet-152, 60.2 M weights", resnet.resnet152, norm_bias=0.5),
        _sized_classifier("vgg16", "VGG-16, 138 M weights, 15.5 GMAC", lambda o: vgg.vgg16(o["image_size"])),
        _sized_classifier("vgg19", "VGG-19, 144 M weights, 19.6 GMAC", lambda o: vgg.vgg19(o["image_size"])),
        _classifier("mobilenetv1", "MobileNet v1, 4.2 M weights", mobile.mobilenetv1),
        _classifier("mobilenetv2", "MobileNet v2, 3.5 M weights", mobile.mobilenetv2),
        _classifier("mobilenetv3", "MobileNet v3 small: squeeze-excite, hard-swish", mobile.mobilenetv3),
        _classifier("efficientnet-b0", "EfficientNet-B0: squeeze-excite, SiLU", mobile.efficientnet_b0),
        _classifier("shufflenet", "ShuffleNet-v2-like: split, shuffle, concatenate", mobile.shufflenet),
        _classifier("squeezenet", "SqueezeNet 1.1", branches.squeezenet),
        _classifier(
            "densenet121", "DenseNet-121: concatenations, pre-activation batch norm", branches.densenet121
        ),
        _classifier("inception", "Inception-like branches", branches.inception),
        _images_to("unet", "U-Net: transposed convolutions and skip concatenations", branches.unet, 64),
        _images_to("detector", "YOLO-like head: upsampling, two scales", branches.detector, 128),
        _sized_classifier(
            "vit-block",
            "ViT-tiny with patches, class token and classifier",
            lambda o: transformers.vit(o["image_size"], o["layers"]),
            layers=2,
        ),
        _sized_classifier(
            "swin-block",
            "Swin-T's first stage: windows, shifted windows, patch merging; image size a multiple of 56",
            lambda o: swin.swin(o["image_size"], o["layers"]),
            layers=2,
        ),
        _blocks("bert-block", "BERT-base encoder blocks (768, 12 heads)", transformers.bert, 768),
        Sample(
            "gpt3-block",
            "GPT-3 6.7B decoder blocks: 0.8 GB each at full width",
            lambda o: transformers.gpt3(o["layers"], o["width"]),
            _tokens(4096),
            {"seq": 128, "layers": 1, "width": 4096},
            repeats=True,
        ),
        _blocks("gpt2-block", "GPT-2 small decoder blocks (768, 12 heads)", transformers.gpt2, 768),
        _blocks(
            "llama-block",
            "LLaMA-style block: RMS norm, rotary, grouped queries, SwiGLU",
            transformers.llama,
            512,
        ),
        Sample(
            "lstm-tagger",
            "Embedding, bidirectional LSTM and tag scores of a token sequence",
            lambda o: recurrent.LstmTagger(o["layers"]),
            _token_numbers,
            {"seq": 8, "layers": 1},
        ),
        _trained("digits", "Small CNN, trained on handwritten digits", digits.convolutions),
        _trained("digits-transformer", "Two transformer blocks, trained on the same", digits.transformer),
        Sample(
            "characters",
            "Language model of characters with caches, trained on FADiff's documentation",
            lambda _: characters.CharacterModel(),
            _prompts,
            write=characters.write,
        ),
    )
}
