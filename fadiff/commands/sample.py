"""`fadiff sample`: write a sample model as ONNX, with calibration and test inputs."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from fadiff.commands import options
from fadiff.console import Console
from fadiff.converter.names import did_you_mean


@click.command()
@click.argument("name", required=False)
@click.option("-o", "--output", type=options.FILE, metavar="FILE.onnx", help="File to write.")
@click.option("--list", "listing", is_flag=True, help="List the samples and their options.")
@click.option("--seed", default=0, show_default=True, help="Seed of weights and data.")
@click.option(
    "--exporter",
    type=click.Choice(["dynamo", "torchscript"]),
    default="dynamo",
    show_default=True,
    help="Which of PyTorch's two ONNX exporters.",
)
@click.option("--image-size", type=click.IntRange(1), help="Height and width of image inputs.")
@click.option("--seq", type=click.IntRange(1), help="Length of the sequences.")
@click.option("--layers", type=click.IntRange(1), help="Number of transformer blocks or LSTM layers.")
@click.option("--width", type=click.IntRange(1), help="Width of gpt3-block, a multiple of 128.")
@options.console_options
def sample(
    console: Console,
    name: str | None,
    output: Path | None,
    listing: bool,
    seed: int,
    exporter: str,
    **given: int | None,
) -> None:
    """Write NAME as ONNX: FILE.onnx, FILE.calibration.npz and FILE.inputs.npz.

    Weights are random but seeded. Those of digits, digits-transformer and characters are trained; they come
    with FILE.labelled.npz for `fadiff accuracy`, or FILE.text.npz. Nothing is downloaded. Samples need
    fadiff[samples].

    \b
    Examples:
      fadiff sample --list
      fadiff sample resnet18 -o resnet18.onnx
      fadiff sample resnet18 -o small.onnx --image-size 64 --seed 1
      fadiff sample digits -o digits.onnx
    """
    from fadiff.samples.catalog import SAMPLES
    from fadiff.samples.export import export

    if listing:
        for entry in SAMPLES.values():
            defaults = " ".join(f"--{k.replace('_', '-')} {v}" for k, v in entry.defaults.items())
            console.result(f"{entry.name:16} {entry.description} [{defaults}]")
        return
    if name is None:
        raise click.UsageError("which sample? try --list")
    if name not in SAMPLES:
        advice = did_you_mean(name, SAMPLES) or f"choose one of {', '.join(SAMPLES)}"
        raise click.UsageError(f"no sample called {name!r}; {advice}")
    chosen = SAMPLES[name]
    known = {key: value for key, value in given.items() if value is not None}
    for option in known:
        if option not in chosen.defaults:
            raise click.UsageError(f"{name} has no option --{option.replace('_', '-')}")
    path = output or Path(f"{name}.onnx")
    if not path.parent.is_dir():
        raise click.UsageError(f"{path.parent} is not a folder")
    with console.stage(f"building and exporting {name} ({exporter})"):
        try:
            written = export(chosen, path, options=known, seed=seed, exporter=exporter)  # type: ignore[arg-type]
        except ValueError as error:  # an option that the network cannot have, or no data to train on
            raise click.UsageError(f"{name}: {error}") from error
    for file in filter(None, (written.model, written.calibration, written.inputs, written.labelled)):
        console.result(f"{file} {file.stat().st_size} bytes")
