"""The `fadiff` command: parse, run, and turn every ending into an exit code.

Exit codes: 0 ok, 1 the check failed, 2 bad input or usage, 3 internal error (a bug).
Command modules import only light packages at the top, so that `fadiff --help` is instant.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from types import FrameType

import rich_click as click

from fadiff.commands.accuracy import accuracy
from fadiff.commands.codesign import codesign
from fadiff.commands.compare import compare
from fadiff.commands.compile import compile_command
from fadiff.commands.completion import completion
from fadiff.commands.diff import diff
from fadiff.commands.doctor import doctor
from fadiff.commands.evaluate import evaluate
from fadiff.commands.groups import grouped
from fadiff.commands.inspect import inspect
from fadiff.commands.map import map_command
from fadiff.commands.measure import measure
from fadiff.commands.options import verbosity_options
from fadiff.commands.report import report
from fadiff.commands.sample import sample
from fadiff.commands.sweep import sweep
from fadiff.commands.targets import targets
from fadiff.commands.timeloop import timeloop
from fadiff.commands.verify import verify
from fadiff.config_file import with_config
from fadiff.console import Console, print_error
from fadiff.errors import BAD_INPUT, INTERNAL, is_bad_input, one_line

INTERRUPTED = 130
TERMINATED = 143


class Terminated(BaseException):
    """SIGTERM: ends a run as Ctrl-C does, so that nothing half written is left."""


@contextmanager
def _terminable() -> Iterator[None]:
    """Turn SIGTERM into an exception, where that can be done (signals belong to the main thread)."""

    def end(number: int, frame: FrameType | None) -> None:
        raise Terminated

    try:
        before = signal.signal(signal.SIGTERM, end)
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 ok, 1 the check failed, 2 bad input or usage, 3 internal error.",
)
@click.version_option(version("fadiff"), prog_name="fadiff")
@verbosity_options
def cli() -> None:
    """ONNX model to Gemmini C and Timeloop mappings, searched and verified.

    \b
    Start here:
      fadiff inspect MODEL.onnx
      fadiff compile MODEL.onnx --target gemmini-default --out DIR --verify
      fadiff doctor
    """


for _command in (
    compile_command,
    verify,
    accuracy,
    measure,
    inspect,
    compare,
    evaluate,
    targets,
    sweep,
    codesign,
    report,
    diff,
    timeloop,
    map_command,
    sample,
    doctor,
    completion,
):
    cli.add_command(_command)
grouped(cli)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    console = Console()
    try:
        with _terminable():
            code = cli.main(
                with_config(cli, sys.argv[1:] if arguments is None else arguments),
                prog_name="fadiff",
                standalone_mode=False,
                obj=console,
            )
        sys.stdout.flush()
        return int(code or 0)
    except click.ClickException as error:
        error.show()
        return BAD_INPUT
    except (KeyboardInterrupt, click.Abort):
        print_error("interrupted")
        return INTERRUPTED
    except Terminated:
        print_error("terminated")
        return TERMINATED
    except BrokenPipeError:  # `fadiff inspect model.onnx | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if console.verbosity > 0:
            traceback.print_exc()
        if is_bad_input(error):
            print_error(one_line(error))
            return BAD_INPUT
        print_error(
            f"internal error in fadiff {version('fadiff')}: {type(error).__name__}: {one_line(error)}"
        )
        print(
            "This is a bug. Please report it with the model (or `fadiff inspect MODEL.onnx --json`), "
            "the command, and its output with -v.",
            file=sys.stderr,
        )
        return INTERNAL
