"""python -m samples: write a sample model as ONNX, with calibration and test inputs."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from fadiff.converter.did_you_mean import did_you_mean

EPILOG = """\b
Examples:
  python -m samples --list
  python -m samples resnet18 -o resnet18.onnx
  python -m samples resnet18 -o small.onnx --image-size 64 --seed 1
  python -m samples digits -o digits.onnx
"""


@click.command(epilog=EPILOG)
@click.argument("name", required=False)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="File to write (.onnx)."
)
@click.option("--list", "listing", is_flag=True, help="List the samples and their options.")
@click.option("--seed", default=0, show_default=True, help="Of weights and data.")
@click.option("--exporter", type=click.Choice(["dynamo", "torchscript"]), default="dynamo", show_default=True)
@click.option("--image-size", type=click.IntRange(1), help="Height and width of image inputs.")
@click.option("--seq", type=click.IntRange(1), help="Length of the sequences.")
@click.option("--layers", type=click.IntRange(1), help="Number of transformer blocks or LSTM layers.")
@click.option("--width", type=click.IntRange(1), help="Width of gpt3-block, a multiple of 128.")
def main(
    name: str | None, output: Path | None, listing: bool, seed: int, exporter: str, **options: int | None
) -> None:
    """Write NAME as ONNX: FILE.onnx, FILE.calibration.npz and FILE.inputs.npz.

    Weights are random but seeded. Those of digits and digits-transformer are trained; they come with
    FILE.labelled.npz for `fadiff accuracy`. Nothing is downloaded.
    """
    from fadiff.samples.catalog import SAMPLES

    if listing:
        for sample in SAMPLES.values():
            defaults = " ".join(f"--{k.replace('_', '-')} {v}" for k, v in sample.defaults.items())
            click.echo(f"{sample.name:16} {sample.description} [{defaults}]")
        return
    if name is None:
        raise click.UsageError("which sample? try --list")
    if name not in SAMPLES:
        raise click.UsageError(
            f"no sample called {name!r}; "
            + (did_you_mean(name, SAMPLES) or f"choose one of {', '.join(SAMPLES)}")
        )
    sample = SAMPLES[name]
    given = {key: value for key, value in options.items() if value is not None}
    for option in given:
        if option not in sample.defaults:
            raise click.UsageError(f"{name} has no option --{option.replace('_', '-')}")
    path = output or Path(f"{name}.onnx")
    if not path.parent.is_dir():
        raise click.UsageError(f"{path.parent} is not a folder")
    from fadiff.samples.export import export

    print(f"building and exporting {name} ({exporter})", file=sys.stderr)
    try:
        written = export(sample, path, options=given, seed=seed, exporter=exporter)  # type: ignore[arg-type]
    except ValueError as error:  # of an option that the network cannot have, or without data to train on
        raise click.UsageError(f"{name}: {error}") from error
    for file in filter(None, (written.model, written.calibration, written.inputs, written.labelled)):
        click.echo(f"{file} {file.stat().st_size} bytes")


if __name__ == "__main__":
    main()
