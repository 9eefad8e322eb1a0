"""`--config FILE`: options of a command from a YAML file, as if they had been typed before the others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from fadiff.converter.names import did_you_mean
from fadiff.errors import InputError

OPTION = "--config"


def with_config(group: click.Group, arguments: Sequence[str]) -> list[str]:
    """The command line with every `--config FILE` replaced by the options in the file.

    They come first, so that what is typed wins; options that may be repeated add up.

    Raises:
        InputError: the file cannot be read, or has what the command has no option for.
    """
    words, files = _without_config(arguments)
    if not files:
        return words
    command, depth = _command(group, words)
    options = [word for file in files for word in _options(file, command)]
    return [*words[:depth], *options, *words[depth:]]


def _without_config(arguments: Sequence[str]) -> tuple[list[str], list[Path]]:
    words: list[str] = []
    files: list[Path] = []
    rest = iter(arguments)
    for word in rest:
        if word == "--":
            return [*words, word, *rest], files
        if word == OPTION:
            file = next(rest, None)
            if file is None:
                raise click.UsageError(f"Option '{OPTION}' requires an argument.")
            files.append(Path(file))
        elif word.startswith(f"{OPTION}="):
            files.append(Path(word.partition("=")[2]))
        else:
            words.append(word)
    return words, files


def _command(group: click.Group, words: Sequence[str]) -> tuple[click.Command, int]:
    """The command that is called, and where its own words begin."""
    command: click.Command = group
    for depth, word in enumerate(words):
        if not isinstance(command, click.Group):
            return command, depth
        if not word.startswith("-"):  # (as in `fadiff -v compile`)
            if word not in command.commands:
                return command, depth
            command = command.commands[word]
    return command, len(words)


def _options(file: Path, command: click.Command) -> list[str]:
    from fadiff.costmodel.target.text_file import load_yaml

    try:
        content = load_yaml(file)
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}: give {OPTION} a YAML file of options") from error
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise InputError(f"{file}: should be a mapping of options, such as `time-budget: 20`")
    known = {
        name: option
        for option in command.params
        if isinstance(option, click.Option)
        for name in (*option.opts, *option.secondary_opts)
        if name.startswith("--") and name != OPTION
    }
    words = []
    for key, value in content.items():
        name = f"--{key.replace('_', '-')}"
        if name not in known:
            advice = did_you_mean(name, known) or f"fadiff {command.name} --help lists its options"
            raise InputError(f"{file}: {key}: no option of fadiff {command.name}: {advice}")
        words += _words(file, key, name, known[name], value)
    return words


def _words(file: Path, key: str, name: str, option: click.Option, value: Any) -> list[str]:
    if option.is_flag:
        if not isinstance(value, bool):
            raise InputError(f"{file}: {key}: {value!r} should be true or false")
        opposite = [*option.secondary_opts] if name in option.opts else [*option.opts]
        return [name] if value else opposite[:1]
    if isinstance(value, dict):
        value = [f"{left}={right}" for left, right in value.items()]
    values = value if isinstance(value, list) else [value]
    if not values or not all(
        isinstance(one, str | int | float) and not isinstance(one, bool) for one in values
    ):
        raise InputError(f"{file}: {key}: should be a value or a list of values")
    texts = [str(one) for one in values] if option.multiple else [",".join(map(str, values))]
    return [f"{name}={text}" for text in texts]
