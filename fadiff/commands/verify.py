"""`fadiff verify`: run the emitted C and compare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from fadiff.commands.options import PATH, accuracy_options, console_options
from fadiff.console import Console
from fadiff.errors import CHECK_FAILED, OK

if TYPE_CHECKING:
    from fadiff.costmodel.schedule.verdict import Verdict
    from fadiff.emulator import VerifyReport
    from fadiff.emulator.report import LayerReport


@click.command()
@click.argument("folder", metavar="DIR", type=PATH)
@accuracy_options
@click.option("--json", "as_json", is_flag=True, help="Machine-readable, per layer.")
@console_options
def verify(
    console: Console, folder: Path, min_sqnr: float | None, min_top1: float | None, as_json: bool
) -> int:
    """Build DIR/firmware for this machine, run it on the functional model of Gemmini, and compare.

    Every layer output is compared bit for bit with the integer reference in ONNX Runtime (float32 targets:
    within 1e-5 of the tensor's largest value), every byte moved with the prediction. Exits 1 on any
    difference, and names the first; and where the integers, right as they are, lose the float model.

    \b
    Example:
      fadiff verify build/resnet18 --json
    """
    from fadiff.costmodel.schedule.verdict import verdict_of
    from fadiff.entries import verify_entries
    from fadiff.folder import OutputFolder, entry_names
    from fadiff.pipeline import verify_folder

    names = entry_names(folder)
    outputs = [OutputFolder(folder / name) for name in names] or [OutputFolder(folder)]
    reports = verify_entries(folder, console) if names else [verify_folder(outputs[0], console)]
    judged, passed = {}, True
    for output, report in zip(outputs, reports, strict=True):
        accuracy = verdict_of(output.document, min_sqnr, min_top1)
        right = report.passed and (accuracy is None or accuracy.passed)
        passed = passed and right
        verdict = {"passed": right, "accuracy": accuracy.as_dict() if accuracy is not None else None}
        judged[output.entry] = {**report.as_dict(), **verdict}
        if not as_json:
            entry = output.entry and f", entry {output.entry},"
            console.result(f"{output.document.model.name}{entry} on {output.document.target.name}")
            print_accuracy(console, accuracy)
            print_verification(console, report)
    if as_json:
        found = {"passed": passed, "entries": judged} if names else judged[""]
        console.result(json.dumps(found, indent=2))
    return OK if passed else CHECK_FAILED


def print_accuracy(console: Console, accuracy: Verdict | None) -> None:
    """The verdict against the float model; shared with `fadiff compile`."""
    for i, line in enumerate(accuracy.lines() if accuracy is not None else ()):
        console.result(f"  {'' if i else 'accuracy':<11} {line}")


def print_verification(console: Console, report: VerifyReport) -> None:
    """The outcome in a few lines; shared with `fadiff compile --verify`."""
    from fadiff.costmodel.schedule.verdict import figures_of

    if report.error is not None:
        console.result(f"  verified    FAILED: {report.error}")
        return
    agree = sum(bool(layer.agrees) for layer in report.compared)
    label = "within 1e-5" if report.tolerance else "bit-exact"
    console.result(
        f"  {label:<11} {agree} of {len(report.compared)} layer outputs on {report.vectors} test vectors"
        + (_worst(report) if report.tolerance else "")
        + ("" if report.agrees else ": FAILED")
    )
    unseen = [layer.name for layer in report.layers if layer.agrees is None]
    if unseen:
        what = "output is" if len(unseen) == 1 else "outputs are"
        console.result(
            f"  between     {len(unseen)} {what} compared as what is made of them: a pool's, as they leave "
            f"the accumulator, or a host operator's ({', '.join(unseen[:3])}"
            f"{', ...' if len(unseen) > 3 else ''})"
        )
    if report.first_divergence is not None:
        console.result(f"  first       {_divergence(report.first_divergence)}")
    if report.measured is not None:
        verdict = (
            "equal for every layer and tensor" if report.traffic_exact else "NOT equal everywhere: FAILED"
        )
        console.result(
            f"  DRAM bytes  {report.measured.dram_bytes:,} measured, "
            f"{report.predicted.dram_bytes:,} predicted, {verdict}"
        )
    for layer in report.layers:
        if not layer.traffic_exact:
            console.result(f"              {layer.name}: {_traffic(layer)}")
    if figures := figures_of(report.sqnr_db, report.top1_agreement):
        console.result(f"  measured    {figures} against the float model, on {_vectors(report)}")
    if report.quantized_top1_agreement is not None and not report.tolerance:
        console.result(
            f"  rounding    top-1 {100 * report.quantized_top1_agreement:.1f} % as {_runtime_model(report)}, "
            f"on {_vectors(report)}"
        )
    if not report.meaning_kept:
        console.result(
            f"  meaning     {report.runtime_sqnr_db:.1f} dB against {_runtime_model(report)}: FAILED "
            "(the conversion is wrong; please report the model)"
        )


def _vectors(report: VerifyReport) -> str:
    if report.vectors_are == "random":
        return f"{report.vectors} random vectors, which say nothing about real data"
    return "the test vectors"


def _worst(report: VerifyReport) -> str:
    errors = [layer.max_relative_error for layer in report.compared if layer.max_relative_error is not None]
    return f", largest relative error {max(errors, default=0.0):.1e}"


def _runtime_model(report: VerifyReport) -> str:
    return "ONNX Runtime's float model" if report.tolerance else "ONNX Runtime's quantised model"


def _divergence(first: dict[str, object]) -> str:
    return (
        f"{first['layer']}: {first['tensor']}{first['index']} of vector {first['vector']} "
        f"is {first['actual']}, expected {first['expected']} ({first['wrong_elements']} elements differ)"
    )


def _traffic(layer: LayerReport) -> str:
    return ", ".join(
        f"{tensor} {direction} {both.measured:,} measured, {both.predicted:,} predicted"
        for tensor, directions in layer.traffic.items()
        for direction, both in directions.items()
        if both.measured != both.predicted
    )
