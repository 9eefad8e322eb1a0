"""Decoders of transformers' code as exporters write them, small and trained, over 50 steps of generation.

FOLDER/NAME/model.onnx is what optimum exports for text generation with a past that grows.  Each is compiled
as two entries, a prompt of 8 tokens and a step, in a cache of 64 rows (--rows: further entries for steps
that see the first rows only); then four prompts of other data go on
for 50 tokens each.  The tokens are those that the float model finds likeliest; both are asked for each.
The float model is the file in ONNX Runtime, fed with the past that it has returned.

python -m benchmarks exporters FOLDER --make      # needs transformers and optimum-onnx, which FADiff does not
python -m benchmarks exporters FOLDER --only llama,gpt2
"""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.command import check_known, command, listed

WORDS, WIDTH, LAYERS, HEADS, GROUPS, PLACES = 64, 64, 2, 4, 2, 128
CONTEXT, PROMPT, STEPS = 64, 8, 50
TRAINING, LONGER, BATCH, LENGTH = 150, 600, 16, 64
"""Steps, of the first Gemma more (it learns more slowly); sequences of a step, and their length."""
CALIBRATION, TESTS = 6, 4

_PLAIN: Mapping[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 2 * WIDTH,
    "max_position_embeddings": PLACES,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
_GROUPED = {**_PLAIN, "num_key_value_heads": GROUPS}
_HEADS_OF_16 = {**_GROUPED, "head_dim": 16}
_WINDOW = {**_HEADS_OF_16, "sliding_window": 64}
_KINDS = ["sliding_attention", "full_attention"]

MODELS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("LlamaConfig", _GROUPED),
    "smollm": ("SmolLM3Config", _GROUPED),
    "qwen2": ("Qwen2Config", _GROUPED),
    "qwen3": ("Qwen3Config", _HEADS_OF_16),
    "gemma": ("GemmaConfig", {**_HEADS_OF_16, "num_key_value_heads": 1}),
    "gemma2": ("Gemma2Config", _WINDOW),
    "gemma3": ("Gemma3TextConfig", {**_WINDOW, "layer_types": _KINDS}),
    "phi": ("PhiConfig", _PLAIN),
    "phi3": ("Phi3Config", _GROUPED),
    "gpt2": (
        "GPT2Config",
        {
            "vocab_size": WORDS,
            "n_embd": WIDTH,
            "n_layer": LAYERS,
            "n_head": HEADS,
            "n_positions": PLACES,
            "bos_token_id": 0,
            "eos_token_id": 1,
        },
    ),
}
"""Configurations by the names of their classes."""


def chains(count: int, length: int, generator: torch.Generator) -> torch.Tensor:
    """Sequences in which, nine times of ten, a word follows from the last but one [count, length]."""
    follows = torch.randperm(WORDS, generator=torch.Generator().manual_seed(9))
    ids = torch.randint(WORDS, (count, length), generator=generator)
    for place in range(2, length):
        ruled = torch.rand(count, generator=generator) < 0.9
        ids[:, place] = torch.where(ruled, follows[ids[:, place - 2]], ids[:, place])
    return ids


def make(name: str, folder: Path) -> None:
    """Train one and export it; nothing is downloaded."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    library: Any = importlib.import_module("transformers")
    exporter: Any = importlib.import_module("optimum.exporters.onnx")
    kind, sizes = MODELS[name]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = getattr(library, kind)(**sizes)
    model = library.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    optimiser = torch.optim.AdamW(model.parameters(), 3e-3)
    generator = _seeded(1)
    for _ in range(LONGER if name == "gemma" else TRAINING):
        ids = chains(BATCH, LENGTH + 1, generator)
        scores = model(input_ids=ids[:, :-1], use_cache=False).logits[:, 2:]
        loss = nn.functional.cross_entropy(scores.reshape(-1, WORDS), ids[:, 3:].reshape(-1))
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    print(f"{name}: loss {loss.item():.2f}")
    model.set_attn_implementation("sdpa")
    task = "text-generation-with-past"
    exporter.onnx_export_from_model(model.eval(), output=folder / name, task=task, do_validation=False)


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class FloatModel:
    """The file in ONNX Runtime: tokens in, scores of the next out."""

    def __init__(self, path: Path) -> None:
        from fadiff.converter.read.runtime import open_session

        self.session = open_session(path)
        self.inputs = {node.name: node.shape for node in self.session.get_inputs()}
        self.outputs = [node.name for node in self.session.get_outputs()]
        self.begin()

    def begin(self) -> None:
        """A new sequence."""
        self.count = 0
        sizes = {"batch_size": 1, "past_sequence_length": 0}
        self.past = {
            name: np.zeros([sizes.get(size, size) for size in shape], np.float32)
            for name, shape in self.inputs.items()
            if name.startswith("past")
        }

    def __call__(self, tokens: list[int]) -> np.ndarray:
        """Go on with tokens; the scores behind the last [words]."""
        end = self.count + len(tokens)
        given = {
            "input_ids": np.array([tokens]),
            "attention_mask": np.ones((1, end), np.int64),
            "position_ids": np.arange(self.count, end)[None],
        }
        given = {name: array for name, array in given.items() if name in self.inputs}
        found = dict(zip(self.outputs, self.session.run(None, given | self.past), strict=True))
        self.past = {name: found[name.replace("past_key_values", "present")] for name in self.past}
        self.count = end
        scores: np.ndarray = found["logits"][0, -1]
        return scores


@dataclass(frozen=True)
class Measured:
    """Of all prompts together."""

    equal: float
    """Share of steps with the same likeliest token."""
    first_db: float
    last_db: float
    """Signal to noise of the scores, mean of the first and of the last ten steps."""
    bytes_of_weights: int
    tokens: np.ndarray
    """The likeliest by the integers [prompts, steps]."""
    steps: Mapping[str, tuple[float, int]]
    """Cycles by the clock and DRAM bytes of every entry."""


def runs() -> dict[str, np.ndarray]:
    """Calibration data of both entries."""
    ids = chains(CALIBRATION, PROMPT + STEPS, _seeded(1)).numpy()
    prompt, steps = np.arange(PROMPT), np.arange(PROMPT, PROMPT + STEPS)
    found = {
        "prefill:input_ids": ids[:, None, :PROMPT],
        "decode:input_ids": ids[:, PROMPT:].reshape(-1, 1, 1),
    }
    for name, axes in (("cache_position", ()), ("position_ids", (1,))):
        found[f"prefill:{name}"] = np.tile(prompt, (CALIBRATION, 1)).reshape(CALIBRATION, *axes, PROMPT)
        found[f"decode:{name}"] = np.tile(steps, CALIBRATION).reshape(-1, *axes, 1)
    return found


def measured(path: Path, rows: Sequence[int], progress: Callable[[str], None] = print) -> Measured:
    """Compile one with entries for steps that see so many rows, and ask both models for the same 50 tokens
    behind each prompt."""
    import fadiff

    progress(f"{path.parent.name} ...")
    common = {"batch_size": 1, "attention_mask": 1}
    prompts, step = (
        fadiff.Entry(entry, path, {**common, "sequence_length": tokens})
        for entry, tokens in (("prefill", PROMPT), ("decode", 1))
    )
    entries = [prompts, *step.of_sizes({"context": rows})]
    with tempfile.TemporaryDirectory(prefix="fadiff-exporters-") as scratch:
        data = Path(scratch) / "runs.npz"
        stored: dict[str, Any] = runs()
        np.savez(data, **stored)
        out = Path(scratch) / "out"
        options: dict[str, Any] = {"context": CONTEXT, "calibration": data, "method": "layerwise"}
        compiled = fadiff.compile_entries(entries, out, name="lm", **options).entries
        blob = (out / "firmware" / "lm_weights.bin").stat().st_size
        device, file = fadiff.load(out).generation(), FloatModel(path)
        equal, decibels, tokens = [], np.zeros((TESTS, STEPS)), np.zeros((TESTS, STEPS), int)
        for number, prompt in enumerate(chains(TESTS, PROMPT, _seeded(5)).tolist()):
            file.begin()
            device.prompt(prompt)
            wanted = file(prompt)
            for step_of in range(STEPS):
                found, token = device.scores, int(wanted.argmax())
                tokens[number, step_of] = found.argmax()
                equal.append(int(found.argmax()) == token)
                decibels[number, step_of] = 10 * np.log10(np.sum(wanted**2) / np.sum((wanted - found) ** 2))
                device.step(token)
                wanted = file([token])
    totals = {name: one.document.totals for name, one in compiled.items()}
    return Measured(
        float(np.mean(equal)),
        decibels[:, :10].mean(),
        decibels[:, -10:].mean(),
        blob,
        tokens,
        {name: (one.latency_cycles, one.dram_bytes) for name, one in totals.items()},
    )


def main(arguments: list[str]) -> int:
    """Make them, or measure them and print the table."""
    parser = command("exporters", __doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--make", action="store_true", help="train and export, and measure nothing")
    parser.add_argument("--only", type=listed, default=list(MODELS), metavar="NAME,...")
    parser.add_argument("--rows", type=listed, default=[str(CONTEXT)], metavar="ROWS,...")
    options = parser.parse_args(arguments)
    check_known(options.only, MODELS, "model")
    if options.make:
        for name in options.only:
            make(name, options.folder)
        return 0
    print("| model | tokens equal | first ten steps | last ten steps | weight bytes |")
    print("|---|---:|---:|---:|---:|")
    for name in options.only:
        file, rows = options.folder / name / "model.onnx", list(map(int, options.rows))
        found = measured(file, rows, lambda _: None)
        print(
            f"| {name} | {found.equal:.1%} | {found.first_db:.1f} dB | {found.last_db:.1f} dB | "
            f"{found.bytes_of_weights:,} |",
            flush=True,
        )
        if len(rows) > 1:
            alone = measured(file, rows[-1:], lambda _: None)
            share = np.mean(found.tokens == alone.tokens)
            print(
                f"{share:.1%} of the tokens are those of one entry ({alone.bytes_of_weights:,} weight bytes)"
            )
            for entry, (cycles, moved) in found.steps.items():
                print(f"{entry}: {cycles:,.0f} cycles, {moved:,} DRAM bytes")
    return 0
