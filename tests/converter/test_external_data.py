"""External data lies beside the model, as long as its tensor says; no other file of this machine is read."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from fadiff.converter import ModelError, convert
from fadiff.converter.ir import stored
from tests.fadiff.models import with_external_data


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    return with_external_data(tmp_path / "model" / "net.onnx")


@pytest.fixture(params=["small", "large"])
def any_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The paths of weights that are read at once, and of those that stay in their file."""
    if request.param == "large":
        monkeypatch.setattr(stored, "LARGE_MODEL", 1)
        monkeypatch.setattr(stored, "LARGE_WEIGHT", 16)


def _changed(path: Path, **entries: str) -> None:
    """The first initializer's external data is said to be elsewhere, or otherwise long."""
    model = onnx.load(path, load_external_data=False)
    tensor = model.graph.initializer[0]
    kept = {entry.key: entry.value for entry in tensor.external_data} | entries
    del tensor.external_data[:]
    for key, value in kept.items():
        tensor.external_data.add(key=key, value=value)
    path.write_bytes(model.SerializeToString())


def _message(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        convert(path, calibrate=False)
    message = str(caught.value)
    assert "\n" not in message and "w1" in message
    return message


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("way", ["parent", "through", "absolute", "windows"])
def test_a_file_elsewhere_is_not_read(model: Path, way: str) -> None:
    secret = model.parent.parent / "secret.bin"
    secret.write_bytes(bytes(2**16))
    (model.parent / "sub").mkdir()
    place = {
        "parent": "../secret.bin",
        "through": "sub/../../secret.bin",
        "absolute": str(secret),
        "windows": "C:\\secret.bin",
    }[way]
    _changed(model, location=place)
    assert "outside" in _message(model)


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("linked", ["file", "folder"])
def test_links_are_not_followed(model: Path, linked: str) -> None:
    elsewhere = model.parent.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "secret.bin").write_bytes(bytes(2**16))
    if linked == "file":
        (model.parent / "weights.bin").symlink_to(elsewhere / "secret.bin")
        _changed(model, location="weights.bin")
    else:
        (model.parent / "weights").symlink_to(elsewhere)
        _changed(model, location="weights/secret.bin")
    assert "symbolic link" in _message(model)


def test_data_in_a_folder_below_is_read(model: Path) -> None:
    data = model.parent / "net.onnx.data"
    expected = convert(model, calibrate=False).graph.tensors
    (model.parent / "deep" / "er").mkdir(parents=True)
    (model.parent / "deep" / "er" / "w.bin").write_bytes(data.read_bytes())
    _changed(model, location="deep/er/w.bin")
    found = convert(model, calibrate=False).graph.tensors
    assert all((found[n].data == t.data).all() for n, t in expected.items() if t.data is not None)


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ({"offset": "-4"}, "no size"),
        ({"offset": "four"}, "no size"),
        ({"offset": "9" * 5000}, "no size"),
        ({"offset": "99999999"}, "needs"),
        ({"length": "-1"}, "no size"),
        ({"length": "8"}, "length 8"),
        ({"location": ""}, "no name"),
        ({"location": "."}, "no name"),
        ({"location": "missing.bin"}, "missing"),
    ],
)
def test_sizes_that_are_none(model: Path, entries: dict[str, str], says: str) -> None:
    _changed(model, **entries)
    assert says in _message(model)


@pytest.mark.usefixtures("any_size")
def test_a_tensor_larger_than_its_file(model: Path) -> None:
    content = onnx.load(model, load_external_data=False)
    content.graph.initializer[0].dims[0] = 2**40
    entries = content.graph.initializer[0].external_data
    del entries[[entry.key for entry in entries].index("length")]
    model.write_bytes(content.SerializeToString())
    assert "needs" in _message(model)
