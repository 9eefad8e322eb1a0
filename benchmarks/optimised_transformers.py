"""Small transformers of Hugging Face's code, trained for seconds, as ONNX Runtime's optimiser makes them.

Writes FOLDER/NAME.onnx with NAME.calibration.npz beside it and NAME.labelled.npz, for

    fadiff compile FOLDER/NAME.onnx --verify OPTIONS            (OPTIONS: sizes, printed for each)
    fadiff accuracy FOLDER/NAME.onnx --data FOLDER/NAME.labelled.npz OPTIONS

Needs the package transformers, which FADiff does not; nothing is downloaded.  The optimiser's patterns are
those of some of its releases: 4.38.2 for bert, gpt2, vit and whisper, 4.34.1 for llama, 4.57.6 for
distilbert, each in an environment of its own.

python -m benchmarks optimised_transformers FOLDER                    # those for the installed release
python -m benchmarks optimised_transformers FOLDER --only bert,gpt2
"""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor, nn

from benchmarks.command import check_known, command, listed

WIDTH, LAYERS, HEADS = 64, 2, 4
LENGTH, WORDS, CLASSES = 16, 64, 8
PIXELS, PATCH, BANDS = 32, 8, 8
CALIBRATION, TEST, BATCH = 64, 256, 64
Batch = dict[str, Tensor]
Draw = Callable[[int, torch.Generator], tuple[Batch, Tensor]]


def words(count: int, generator: torch.Generator) -> tuple[Batch, Tensor]:
    """Sequences, padded behind, in which words of one of eight groups are frequent; the group."""
    labels = torch.randint(CLASSES, (count,), generator=generator)
    group = WORDS // CLASSES
    of_group = labels[:, None] * group + torch.randint(group, (count, LENGTH), generator=generator)
    others = torch.randint(WORDS, (count, LENGTH), generator=generator)
    ids = torch.where(torch.rand((count, LENGTH), generator=generator) < 0.4, of_group, others)
    lengths = torch.randint(LENGTH // 2, LENGTH + 1, (count, 1), generator=generator)
    mask = (torch.arange(LENGTH) < lengths).long()
    return {"input_ids": ids * mask, "attention_mask": mask}, labels


def chains(count: int, generator: torch.Generator) -> tuple[Batch, Tensor]:
    """Sequences in which, nine times of ten, a word follows from the last but one; all next words."""
    follows = torch.randperm(WORDS, generator=torch.Generator().manual_seed(9))
    ids = torch.randint(WORDS, (count, LENGTH + 1), generator=generator)
    for place in range(2, LENGTH + 1):
        ruled = torch.rand(count, generator=generator) < 0.9
        ids[:, place] = torch.where(ruled, follows[ids[:, place - 2]], ids[:, place])
    return {"input_ids": ids[:, :-1]}, ids[:, 1:]


def gratings(count: int, generator: torch.Generator) -> tuple[Batch, Tensor]:
    """Noisy stripes in one of eight directions."""
    labels = torch.randint(CLASSES, (count,), generator=generator)
    angle = labels[:, None, None] * (torch.pi / CLASSES)
    rows, columns = torch.meshgrid(torch.arange(PIXELS), torch.arange(PIXELS), indexing="ij")
    phase = 6.3 * torch.rand((count, 1, 1), generator=generator)
    waves = torch.sin(0.7 * (rows * torch.sin(angle) + columns * torch.cos(angle)) + phase)
    noise = 0.5 * torch.randn((count, 3, PIXELS, PIXELS), generator=generator)
    return {"pixel_values": waves[:, None] + noise}, labels


def tones(count: int, generator: torch.Generator) -> tuple[Batch, Tensor]:
    """A burst in one of eight bands, among noise."""
    labels = torch.randint(CLASSES, (count,), generator=generator)
    sound = 0.5 * torch.randn((count, BANDS, 2 * LENGTH), generator=generator)
    starts = torch.randint(2 * LENGTH - 8, (count, 1), generator=generator)
    times = torch.arange(2 * LENGTH)
    burst = ((times >= starts) & (times < starts + 8)).float() * 1.5
    sound[torch.arange(count), labels] += burst
    return {"input_features": sound}, labels


class Classifier(nn.Module):
    """Inputs by position, the logits."""

    def __init__(self, net: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.net, self.names = net, names

    def forward(self, *inputs: Tensor) -> Tensor:
        """[batch, classes], of a sequence [batch, length, words]."""
        logits: Tensor = self.net(**dict(zip(self.names, inputs, strict=True))).logits
        return logits


class Encoder(nn.Module):
    """Whisper's encoder and a head on the mean of its positions."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net, self.head = net, nn.Linear(WIDTH, CLASSES)

    def forward(self, features: Tensor) -> Tensor:
        """[batch, classes]."""
        logits: Tensor = self.head(self.net(features).last_hidden_state.mean(1))
        return logits


class Step(nn.Module):
    """One word with the cache of those before it: logits [batch, words] and the longer cache."""

    def __init__(self, net: nn.Module, *, stacked: bool) -> None:
        super().__init__()
        self.net, self.stacked = net, stacked

    def forward(self, ids: Tensor, mask: Tensor, places: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        """Keys and values of a layer are two tensors, or one stacked."""
        halves = [half for pair in past for half in pair] if self.stacked else list(past)
        pairs = tuple(zip(halves[::2], halves[1::2], strict=True))
        found = self.net(
            input_ids=ids, attention_mask=mask, position_ids=places, past_key_values=pairs, use_cache=True
        )
        presents = found.past_key_values
        if self.stacked:
            return (found.logits[:, 0], *(torch.stack(pair) for pair in presents))
        return (found.logits[:, 0], *(half for pair in presents for half in pair))


@dataclass(frozen=True)
class Net:
    """How one is made: the release of transformers, the optimiser's name for its kind, its data."""

    release: str
    kind: str
    draw: Draw
    make: Callable[[Any], nn.Module]
    steps: int = 400
    decodes: bool = False
    stacked: bool = False

    def options(self) -> dict[str, int]:
        """Sizes of the file's symbolic dimensions."""
        if self.decodes:
            return {"batch": 1, "sequence": 1, "past": LENGTH - 1, "total": LENGTH}
        return {"batch": 1, "sequence": LENGTH} if self.draw is words else {"batch": 1}


def _bert(library: Any) -> nn.Module:
    config = library.BertConfig(
        vocab_size=WORDS,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH,
        max_position_embeddings=LENGTH,
        num_labels=CLASSES,
    )
    return Classifier(library.BertForSequenceClassification(config), ("input_ids", "attention_mask"))


def _distilbert(library: Any) -> nn.Module:
    config = library.DistilBertConfig(
        vocab_size=WORDS,
        dim=WIDTH,
        n_layers=LAYERS,
        n_heads=HEADS,
        hidden_dim=4 * WIDTH,
        max_position_embeddings=LENGTH,
        num_labels=CLASSES,
    )
    return Classifier(library.DistilBertForSequenceClassification(config), ("input_ids", "attention_mask"))


def _gpt2(library: Any) -> nn.Module:
    config = library.GPT2Config(
        vocab_size=WORDS, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=2 * LENGTH
    )
    return Classifier(library.GPT2LMHeadModel(config), ("input_ids",))


def _llama(library: Any) -> nn.Module:
    config = library.LlamaConfig(
        vocab_size=WORDS,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        intermediate_size=2 * WIDTH,
        max_position_embeddings=2 * LENGTH,
    )
    return Classifier(library.LlamaForCausalLM(config), ("input_ids",))


def _vit(library: Any) -> nn.Module:
    config = library.ViTConfig(
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH,
        image_size=PIXELS,
        patch_size=PATCH,
        num_labels=CLASSES,
    )
    return Classifier(library.ViTForImageClassification(config), ("pixel_values",))


def _whisper(library: Any) -> nn.Module:
    config = library.WhisperConfig(
        d_model=WIDTH,
        encoder_layers=LAYERS,
        encoder_attention_heads=HEADS,
        encoder_ffn_dim=4 * WIDTH,
        num_mel_bins=BANDS,
        max_source_positions=LENGTH,
    )
    return Encoder(library.models.whisper.modeling_whisper.WhisperEncoder(config))


NETS: Mapping[str, Net] = {
    "bert": Net("4.38.2", "bert", words, _bert),
    "distilbert": Net("4.57.6", "bert", words, _distilbert),
    "gpt2": Net("4.38.2", "gpt2", chains, _gpt2, decodes=True, stacked=True),
    "llama": Net("4.34.1", "gpt2", chains, _llama, decodes=True),
    "vit": Net("4.38.2", "vit", gratings, _vit),
    "whisper": Net("4.38.2", "bart", tones, _whisper),
}


def trained(net: Net, library: Any) -> nn.Module:
    """With seeded weights and data, by Adam."""
    torch.manual_seed(0)
    model = net.make(library)
    generator = torch.Generator().manual_seed(1)
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(net.steps):
        batch, labels = net.draw(BATCH, generator)
        logits = model(*batch.values())
        loss = nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    print(f"  loss {loss.item():.3f} after {net.steps} steps")
    return model.eval()


def sampled(net: Net, model: nn.Module, count: int, seed: int) -> tuple[Batch, Tensor]:
    """Inputs of the exported model by name, and labels; of a decoder the last word, the cache before it."""
    batch, labels = net.draw(count, torch.Generator().manual_seed(seed))
    if not net.decodes:
        return batch, labels
    ids = batch["input_ids"]
    inner: Any = model.net
    pasts = inner(input_ids=ids[:, :-1], use_cache=True).past_key_values
    found = {
        "input_ids": ids[:, -1:],
        "attention_mask": torch.ones_like(ids),
        "position_ids": torch.full_like(ids[:, :1], LENGTH - 1),
    }
    for layer, (key, value) in enumerate(pasts):
        if net.stacked:
            found[f"past_{layer}"] = torch.stack((key, value))
        else:
            found |= {f"past_key_values.{layer}.key": key, f"past_key_values.{layer}.value": value}
    return found, labels[:, -1]


def export(net: Net, model: nn.Module, inputs: Batch, path: Path) -> None:
    """By torch's tracing exporter: its graphs are those that the optimiser knows."""
    presents = [name.replace("past_key_values", "present").replace("past", "present") for name in inputs]
    axes = {name: _axes(name) for name in inputs}
    if net.decodes:  # the mask is of the cache, too
        axes["attention_mask"] = {0: "batch", 1: "total"}
    torch.onnx.export(
        Step(model.net, stacked=net.stacked) if net.decodes else model,  # type: ignore[arg-type]
        tuple(inputs.values()),
        str(path),
        input_names=list(inputs),
        output_names=["logits", *(name for name in presents if name.startswith("present"))],
        dynamic_axes=axes,
        opset_version=17,
        dynamo=False,
    )


def _axes(name: str) -> dict[int, str]:
    """Symbolic dimensions of one input."""
    if name.startswith("past_key_values"):
        return {0: "batch", 2: "past"}
    if name.startswith("past"):
        return {1: "batch", 3: "past"}
    if name in ("pixel_values", "input_features"):
        return {0: "batch"}
    return {0: "batch", 1: "sequence"}


def optimise(net: Net, path: Path) -> None:
    """In place, by onnxruntime.transformers; GroupQueryAttention (as many groups as heads) for Llama."""
    optimizer: Any = importlib.import_module("onnxruntime.transformers.optimizer")
    model = optimizer.optimize_model(str(path), net.kind, num_heads=HEADS, hidden_size=WIDTH, opt_level=0)
    if net is NETS["llama"]:
        caches: Any = ModuleType("transformers.cache_utils")  # of later releases, imported and not used here
        caches.DynamicCache = caches.EncoderDecoderCache = object
        borrowed = {caches.__name__: caches, "optimizer": optimizer}  # by the latter name it imports its own
        sys.modules.update(borrowed)
        generation: Any = importlib.import_module("onnxruntime.transformers.convert_generation")
        for name in borrowed:
            del sys.modules[name]
        model = generation.replace_mha_with_gqa(model, "attention_mask", HEADS)
        model.prune_graph()
        model.update_graph(allow_remove_graph_inputs=True)
    model.topological_sort()
    model.save_model_to_file(str(path))


def _write(path: Path, batch: Batch, axis: Mapping[str, int], labels: Tensor | None = None) -> None:
    """Samples along the first axis, each with a batch of its own."""
    arrays = {name: torch.movedim(x, axis[name], 0).unsqueeze(axis[name] + 1) for name, x in batch.items()}
    if labels is not None:
        arrays["labels"] = labels
    stored: dict[str, Any] = {name: x.numpy() for name, x in arrays.items()}
    np.savez(path, **stored)


def make(name: str, folder: Path, library: Any) -> None:
    """One model with its data."""
    net, path = NETS[name], folder / f"{name}.onnx"
    print(name)
    model = trained(net, library)
    with torch.no_grad():
        example, _ = sampled(net, model, 1, 2)
        export(net, model, example, path)
        optimise(net, path)
        inputs = {value.name for value in onnx.load(path).graph.input}
        axis = {n: next(i for i, dim in _axes(n).items() if dim == "batch") for n in example}
        for suffix, count, seed in (("calibration", CALIBRATION, 3), ("labelled", TEST, 4)):
            batch, labels = sampled(net, model, count, seed)
            batch = {n: x for n, x in batch.items() if n in inputs}
            _write(folder / f"{name}.{suffix}.npz", batch, axis, labels if suffix == "labelled" else None)
    made = Counter(node.op_type for node in onnx.load(path).graph.node if node.domain == "com.microsoft")
    print("  " + ", ".join(f"{op} x {count}" for op, count in sorted(made.items())))
    print("  " + " ".join(f"--dim {dim}={size}" for dim, size in net.options().items()))


def main(arguments: list[str]) -> int:
    """Make those that the installed release of transformers is for."""
    parser = command("optimised_transformers", __doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", type=listed, default=list(NETS), metavar="NAME,...")
    options = parser.parse_args(arguments)
    check_known(options.only, NETS, "model")
    library: Any = importlib.import_module("transformers")
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.only:
        if NETS[name].release == library.__version__:
            make(name, options.folder, library)
        else:
            print(
                f"{name}: needs transformers {NETS[name].release}, not {library.__version__}", file=sys.stderr
            )
    return 0
