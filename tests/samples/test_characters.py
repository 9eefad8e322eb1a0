"""The character model: trained, compiled as one firmware, and writing the same text wherever it runs."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from click.testing import CliRunner

import fadiff
from fadiff.commands.sample import sample
from fadiff.emulator.build import build_firmware
from fadiff.emulator.machine import Machine
from fadiff.samples.characters import ALPHABET, CONTEXT, PROMPT

BEGIN = "a mapping cuts it into four levels"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder; the model is beside it."""
    folder = tmp_path_factory.mktemp("characters")
    model = folder / "characters.onnx"
    result = CliRunner().invoke(sample, ["characters", "-o", str(model)])
    assert result.exit_code == 0, result.output
    entries = [fadiff.Entry("prefill", model, {"seq": PROMPT}), fadiff.Entry("decode", model, {"seq": 1})]
    fadiff.compile_entries(entries, folder / "out", method="layerwise")
    return folder / "out"


def tokens(text: str) -> list[int]:
    return [ALPHABET.index(c) for c in text]


class FloatModel:
    """The file in ONNX Runtime, token by token."""

    def __init__(self, model: Path) -> None:
        self.session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
        self.caches = [node for node in self.session.get_inputs() if node.name.startswith("past.")]

    def scores(self, text: np.ndarray) -> np.ndarray:
        """Of the next character, after each [len(text), characters]."""
        kept = {node.name: np.zeros(node.shape, np.float32) for node in self.caches}
        found = []
        for at, token in enumerate(text):
            given = {"tokens": np.array([[token]], np.int64), "position": np.array([at], np.int64)}
            scores, *caches = self.session.run(None, given | kept)
            kept = dict(zip(kept, caches, strict=True))
            found.append(scores.reshape(-1))
        return np.stack(found)


def test_perplexity_is_that_of_the_float_model(compiled: Path) -> None:
    """On text that training did not see: characters 33 to 64 of each piece, given those before."""
    with np.load(compiled.parent / "characters.text.npz") as data:
        text = data["tokens"]
        assert "".join(map(chr, data["alphabet"])) == ALPHABET
    pieces = text[: len(text) // (CONTEXT + 1) * (CONTEXT + 1)].reshape(-1, CONTEXT + 1)[:30]
    model = FloatModel(compiled.parent / "characters.onnx")
    run = fadiff.load(compiled).generation()
    losses: dict[str, list[float]] = {"int8": [], "float": []}
    for piece in pieces:
        floats = model.scores(piece[:CONTEXT])
        run.prompt(piece[:PROMPT])
        for at in range(PROMPT, CONTEXT + 1):
            for name, scores in (("int8", run.scores), ("float", floats[at - 1])):
                losses[name].append(
                    float(np.log(np.exp(scores - scores.max()).sum()) + scores.max() - scores[piece[at]])
                )
            if at < CONTEXT:
                run.step(piece[at])
    int8, floating = (float(np.exp(np.mean(losses[name]))) for name in ("int8", "float"))
    print(f"perplexity {floating:.3f} in float, {int8:.3f} in int8, of {len(ALPHABET)} characters")
    assert floating < 10
    assert int8 < 1.03 * floating


def test_the_text_is_that_of_the_program(compiled: Path, tmp_path: Path) -> None:
    """Python on the integer reference, and the C on the functional model, with a short and a long prompt."""
    model = fadiff.load(compiled)
    firmware, target = compiled / "firmware", model_target(compiled)
    built = build_firmware(firmware, target, tmp_path)
    machine = Machine(target, check_regions=False)
    library = ctypes.CDLL(str(built))
    for begin in (BEGIN[:9], BEGIN, f"{BEGIN} of memory"):
        prompt = tokens(begin)
        count = CONTEXT - len(prompt) + 1
        expected = model.generate(prompt, count)
        machine.reset()
        assert library.characters_prompt((ctypes.c_int32 * len(prompt))(*prompt), len(prompt)) == 0
        found = [library.characters_argmax()]
        while len(found) < count:
            assert library.characters_step(found[-1]) == 0
            found.append(library.characters_argmax())
        machine.check()
        assert found == list(expected)
        assert library.characters_step(0) == -2  # CHARACTERS_NO_ROOM
        print(begin, "->", "".join(ALPHABET[token] for token in found))
    assert library.characters_prompt((ctypes.c_int32 * 1)(0), 0) == -2


def model_target(folder: Path) -> fadiff.Target:
    from fadiff.folder import OutputFolder

    return OutputFolder(folder / "decode").document.target


def test_sampling_and_limits(compiled: Path) -> None:
    model, prompt = fadiff.load(compiled), tokens(BEGIN)
    generator = np.random.default_rng(0)

    def drawn(scores: np.ndarray) -> int:
        chances = np.exp(scores - scores.max())
        return int(generator.choice(len(scores), p=chances / chances.sum()))

    likeliest = model.generate(prompt, 20)
    assert list(model.generate(prompt, 20, drawn)) != list(likeliest)
    assert list(model.generate(prompt, 20)) == list(likeliest)
    with pytest.raises(fadiff.InputError, match="as many as the model has positions"):
        model.generate(prompt, CONTEXT)
    with pytest.raises(fadiff.InputError, match="at least one token"):
        model.generate([], 1)


def test_the_header_is_plain_c(compiled: Path, tmp_path: Path) -> None:
    program = tmp_path / "main.c"
    program.write_text(
        '#include "characters_generate.h"\nint main(void) { return characters_step(characters_argmax()); }\n'
    )
    flags = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only")
    subprocess.run(["cc", *flags, "-I", str(compiled / "firmware"), str(program)], check=True)


def test_draws_are_those_of_the_program(compiled: Path, tmp_path: Path) -> None:
    """The same tokens from the same seed; more of the likeliest where it is cooler."""
    model, prompt = fadiff.load(compiled), tokens(BEGIN)
    library = ctypes.CDLL(str(build_firmware(compiled / "firmware", model_target(compiled), tmp_path)))
    library.characters_sample.argtypes = (ctypes.c_int32, ctypes.c_float, ctypes.POINTER(ctypes.c_uint32))
    machine, found = Machine(model_target(compiled), check_regions=False), dict[float, list[int]]()
    for most, temperature, seed in ((8, 1.0, 5), (64, 0.7, 2**32 - 1), (1, 1.0, 5)):
        state = ctypes.c_uint32(seed)
        assert library.characters_prompt((ctypes.c_int32 * len(prompt))(*prompt), len(prompt)) == 0
        drawn = found[temperature] = []
        while len(drawn) < 12:
            if drawn:
                assert library.characters_step(drawn[-1]) == 0
            drawn.append(library.characters_sample(most, temperature, ctypes.byref(state)))
        assert drawn == list(model.generate(prompt, 12, fadiff.top_k(most, temperature, seed)))
    machine.check()
    assert found[1.0] == list(model.generate(prompt, 12))  # (among one)
    assert found[0.7] != found[1.0]
    choose, scores = fadiff.top_k(3, 0.5, 7), np.log(np.array([0.1, 0.4, 0.05, 0.3, 0.15]))
    counts = np.bincount([choose(scores) for _ in range(4000)], minlength=5) / 4000
    squares = np.array([0, 0.16, 0, 0.09, 0.0225])
    np.testing.assert_allclose(counts, squares / squares.sum(), atol=0.03)
    for wrong in ((0, 1.0, 1), (65, 1.0, 1), (2, 0.0, 1), (2, 1.0, 0)):
        with pytest.raises(fadiff.InputError, match="top_k: 1 to 64"):
            fadiff.top_k(*wrong)


def test_main_runs_both_entries_and_generates(compiled: Path) -> None:
    done = subprocess.run(
        ["make", "-s", "check", f"PYTHON={sys.executable}"],
        cwd=compiled / "firmware",
        capture_output=True,
        text=True,
        check=False,
    )
    assert "characters: all outputs agree in 5 calls of 2 entries" in done.stdout, done.stdout + done.stderr
    with np.load(compiled.parent / "characters.inputs.npz") as data:
        prompt = data["prefill:tokens"][0, 0]
    expected = " ".join(map(str, fadiff.load(compiled).generate(prompt, 16)))
    assert f"characters: after 32 tokens of the test vectors: {expected}\n" in done.stdout
