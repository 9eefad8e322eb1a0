"""Whole language models by their sizes: every block of TinyLlama and GPT-3 6.7B, prompt and step, no weights.

One block is converted (its weights are drawn, and dropped); its layers are searched as those of all blocks in
one graph, and equal ones are solved once.  Cycles are those of the clock for the program as emitted, of
all blocks and of the scores of one token.  Bytes are beside the least: each weight and each row of the caches
once.  Host operators run on the array where the clock finds that cheaper, as `compile` decides
before it looks at accuracy.  Last line: cycles per token and bytes over the least.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from benchmarks.command import add_out, check_known, command, listed
from fadiff.console import Console
from fadiff.converter import Conversion, Graph, convert
from fadiff.costmodel.schedule.clock import program_cycles
from fadiff.costmodel.target.target import Target, load_target
from fadiff.optimizer import SearchResult
from fadiff.optimizer.realise.choice import CLOSE, EXACT, Cheaper, realised_graph
from fadiff.samples.decoders import DECODERS, Decoder, block
from fadiff.samples.graphs import chained, scores
from fadiff.search import SearchOptions, decide

HEADER = (
    "model,form,tokens,positions,layers,cycles,cycles_per_token,dram_bytes,least_bytes,edp,bound,kind,seconds"
)


@dataclass(frozen=True)
class Line:
    """One form of one model."""

    model: str
    form: str
    tokens: int
    positions: int
    layers: int
    cycles: float
    dram_bytes: int
    least_bytes: int
    edp: float
    bound: float
    kind: str
    seconds: float

    def csv(self) -> str:
        """As HEADER says."""
        return (
            f"{self.model},{self.form},{self.tokens},{self.positions},{self.layers},{self.cycles:.0f},"
            f"{self.cycles / self.tokens:.0f},{self.dram_bytes},{self.least_bytes},{self.edp:.6g},"
            f"{self.bound:.6g},{self.kind},{self.seconds:.1f}"
        )


def main(arguments: list[str]) -> int:
    """A prompt and a step of every model."""
    parser = command("language_models", __doc__)
    parser.add_argument("--target", default="gemmini-default")
    parser.add_argument("--models", type=listed, default=",".join(DECODERS))
    parser.add_argument("--prompt", type=int, default=128, help="tokens of a prompt")
    parser.add_argument("--cache", type=int, default=2048, help="positions of the caches that a step reads")
    add_out(parser)
    options = parser.parse_args(arguments)
    check_known(options.models, DECODERS, "model")
    target = load_target(options.target)
    rows, figures = [HEADER], []
    for name in options.models:
        for form, tokens, positions in (
            ("prompt", options.prompt, options.prompt),
            ("step", 1, options.cache),
        ):
            line = measure(DECODERS[name], form, tokens, positions, target)
            rows.append(line.csv())
            over, above = line.dram_bytes / line.least_bytes - 1, line.edp / line.bound - 1
            each = line.cycles / line.tokens
            print(
                f"{name:<10} {form:<7} {line.tokens:4} tokens, {line.positions:4} positions: "
                f"{line.layers} layers, {line.cycles:,.0f} cycles, {each:,.0f} per token, "
                f"{line.dram_bytes:,} DRAM bytes ({over:+.2%}), EDP {above:.2%} above its bound "
                f"({line.kind}), {line.seconds:.0f} s",
                flush=True,
            )
            figures.append(f"{name}_{form}_cycles_per_token={each:.0f}")
            figures.append(f"{name}_{form}_bytes_over_least={over:.4f}")
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "language_models.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    print(" ".join(figures))
    return 0


def measure(decoder: Decoder, form: str, tokens: int, positions: int, target: Target) -> Line:
    """All blocks and the scores of one token."""
    begun = time.perf_counter()
    conversion = _converted(block(decoder, tokens, positions))
    graph = _realised(conversion.graph, target)
    (source,) = (n for n in graph.arguments if graph.tensors[n].dtype == "int8")
    (result,) = graph.results
    whole = chained(graph, decoder.blocks, source, result)
    found = _searched(replace(conversion, graph=whole), target)
    last = _searched(replace(conversion, graph=scores(decoder.width, decoder.vocabulary)), target)
    caches = sum(whole.tensors[state.input].nbytes for state in whole.states)
    return Line(
        model=decoder.name,
        form=form,
        tokens=tokens,
        positions=positions,
        layers=len(whole.layers) + 1,
        cycles=sum(sum(program_cycles(one.schedule).values()) for one in (found, last)),
        dram_bytes=sum(one.cost.dram_bytes for one in (found, last)),
        least_bytes=decoder.weights + caches,
        edp=found.cost.edp_uj_cycles,
        bound=found.lower_bound,
        kind=found.bound,
        seconds=time.perf_counter() - begun,
    )


def _converted(model: onnx.ModelProto) -> Conversion:
    with tempfile.TemporaryDirectory(prefix="fadiff-language-models-") as folder:
        path = Path(folder) / "block.onnx"
        onnx.save(model, path)
        return convert(path, calibrate=False, calibration=())


def _realised(graph: Graph, target: Target) -> Graph:
    cheaper = Cheaper(graph, target)
    return realised_graph(realised_graph(graph, target, CLOSE, cheaper), target, EXACT, cheaper)


def _searched(conversion: Conversion, target: Target) -> SearchResult:
    _, found = decide(conversion, target, SearchOptions(), None, Console(verbosity=-1))
    return found
