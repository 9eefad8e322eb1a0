"""Python data to YAML text the way Timeloop users write it: stable order, no aliases, one line per leaf."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import yaml

if TYPE_CHECKING:
    from yaml import SafeDumper
else:
    SafeDumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # (some builds of PyYAML are without libyaml)

HYPHENATED = {
    "word_bits": "word-bits",
    "block_size": "block-size",
    "data_spaces": "data-spaces",
    "read_write": "read-write",
}
"""Keys that releases before 2024-02 only know with hyphens (v3.0.3 src/model, src/workload)."""


@dataclass(frozen=True)
class Tagged:
    """A map with a YAML tag, such as `!Component` of the front-end dialect."""

    tag: str
    content: dict[str, object]


@dataclass(frozen=True)
class OneLine:
    """A nested value written on one line: `[[[N]], [[K]]]`."""

    content: object


class _Dumper(SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True


def _tagged(dumper: yaml.SafeDumper, data: Tagged) -> yaml.Node:
    return dumper.represent_mapping(data.tag, data.content.items())


def _one_line(dumper: yaml.SafeDumper, data: OneLine) -> yaml.Node:
    node = dumper.represent_data(data.content)
    pending = [node]
    while pending:
        inner = pending.pop()
        if isinstance(inner, yaml.CollectionNode):
            inner.flow_style = True
            pending += inner.value if isinstance(inner, yaml.SequenceNode) else [v for _, v in inner.value]
    return node


_Dumper.add_representer(Tagged, _tagged)
_Dumper.add_representer(OneLine, _one_line)


def yaml_text(content: object, comments: tuple[str, ...] = ()) -> str:
    """The file's text: comment lines, then the document."""
    header = "".join(f"# {line}\n" for line in comments)
    body = yaml.dump(content, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=1000)
    return header + str(body)


def with_hyphens(content: object) -> object:
    """The same data with hyphenated keys."""
    if isinstance(content, dict):
        return {HYPHENATED.get(key, key): with_hyphens(value) for key, value in content.items()}
    if isinstance(content, list):
        return [with_hyphens(item) for item in content]
    if isinstance(content, OneLine):
        return OneLine(with_hyphens(content.content))
    return content
