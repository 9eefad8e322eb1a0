"""The same files in the dialect of Timeloop's Python front end (timeloopfe, pytimeloop), v0.4.

Fan-outs belong to the containers below a level, factors and permutations are lists, and the
architecture is a flat list of tagged nodes.  The front end rewrites all this to the native form.
"""

from __future__ import annotations

from fadiff.costmodel.target.target import Target
from fadiff.emitters.timeloop.write.architecture import architecture
from fadiff.emitters.timeloop.write.yaml_text import Tagged

Yaml = dict[str, object]

FAN_OUT = {"Scratchpad": "PECols", "Accumulator": "PERows"}
"""The container whose spatial fan-out lies below a level."""


def frontend_architecture(target: Target, *, tile_buffer: bool = False) -> Yaml:
    """Root keys `architecture` (nodes, outermost first), `ERT` and `ART`."""
    native = architecture(target, tile_buffer=tile_buffer)
    nodes: list[Tagged] = []
    tree = native["architecture"]
    while isinstance(tree, dict) and "subtree" in tree:
        tree = tree["subtree"][0]
        nodes.append(_container(tree["name"], target.side))
        nodes += [_component(part) for part in tree["local"]]
    return {
        "architecture": {"version": 0.4, "nodes": nodes},
        "ERT": native["ERT"],
        "ART": _no_areas(native["ERT"]),
    }


def frontend_problem(native: Yaml) -> Yaml:
    """Root key `problem` with its version."""
    problem = native["problem"]
    assert isinstance(problem, dict)
    return {"problem": {"version": 0.4, **problem}}


def frontend_mapping(native: Yaml) -> Yaml:
    """Root key `mapping`: lists instead of strings, containers as spatial targets."""
    directives = native["mapping"]
    assert isinstance(directives, list)
    return {"mapping": [_directive(d) for d in directives]}


def _no_areas(energies: object) -> Yaml:
    """The front end takes over an ERT only beside an ART; areas are not ours to know."""
    assert isinstance(energies, dict)
    names = [table["name"] for table in energies["tables"]]
    return {"version": 0.4, "tables": [{"name": name, "area": 0.0} for name in names]}


def _container(name: str, side: int) -> Tagged:
    container: Yaml = {"name": name.split("[")[0]}
    if container["name"] in FAN_OUT.values():
        container["spatial"] = {"meshX" if container["name"] == "PECols" else "meshY": side}
    return Tagged("!Container", container)


def _component(part: Yaml) -> Tagged:
    attributes = part["attributes"]
    assert isinstance(attributes, dict)
    renamed = {"word_bits": "datawidth", "entries": "depth"}
    kept = {renamed.get(k, k): v for k, v in attributes.items() if k not in ("instances", "meshX")}
    if "depth" in kept:
        kept["width"] = kept["datawidth"]
    return Tagged("!Component", {"name": part["name"], "class": part["class"], "attributes": kept})


def _directive(native: Yaml) -> Yaml:
    if native["type"] == "bypass":
        return {**native, "type": "dataspace"}
    changed = dict(native)
    changed["factors"] = str(native["factors"]).split()
    changed["permutation"] = list(str(native["permutation"]))
    if native["type"] == "spatial":
        changed["target"] = FAN_OUT[str(native["target"])]
    return changed
