"""A network is exported whole or not at all, and what is written is the network."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import esper
from esper.exporting import formats
from esper.exporting.check import LOADERS
from esper.exporting.formats import FORMATS, Traced
from esper.exporting.network import read_sheet, results_of, trace
from esper.hosts import TransformerHost

IMAGES = torch.rand(4, 1, 6, 6, generator=torch.Generator().manual_seed(0))


def small() -> nn.Module:
    """A network with layers that behave otherwise in training."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(64, 3))
    )


@pytest.mark.parametrize("name", ["torch_export", "source"])
def test_what_is_written_is_the_network(name: str, tmp_path: Path) -> None:
    network = small().eval()
    FORMATS[name].write(Traced(network=network, program=trace(network, [IMAGES]), title="A network."), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == FORMATS[name].about["files"]
    run = LOADERS[name](tmp_path)
    for size in (1, 3):
        (result,) = run([IMAGES[:size].numpy()])
        assert abs(result - results_of(network, [IMAGES[:size]])[0].numpy()).max() < 1e-6


class Branching(nn.Module):
    """Depends on the values of its input."""

    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


class Fixed(nn.Module):
    """Takes batches of one size."""

    def forward(self, x: Tensor) -> Tensor:
        return x.view(4, -1)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": ({"format": "pickle"}, "format: unknown 'pickle'; choose from torch_export, onnx, source"),
    "twice": ({"format": ["onnx", "onnx"]}, "must name one form, or several different ones"),
    "none": ({"format": []}, "must name one form"),
    "no_module": ({"network": torch.relu}, "network must be a torch.nn.Module, got a builtin"),
    "no_batch": ({"example": 3}, "example must be a batch"),
    "other_batches": ({"example": [IMAGES, IMAGES[:2]]}, "of equal length"),
    "branching": ({"network": Branching()}, "network: torch.export cannot trace Branching: "),
    "fixed": ({"network": Fixed()}, "network: Fixed does not take batches of any size"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_in_one_line_and_leaves_nothing(case: str, tmp_path: Path) -> None:
    changes, message = BAD[case]
    arguments = {"network": small(), "example": IMAGES, "format": "source", "out": tmp_path / "net"} | changes
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        esper.export_network(arguments.pop("network"), arguments.pop("example"), **arguments)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_network_of_another_type_is_exported_in_fp32(tmp_path: Path) -> None:
    kind = torch.bfloat16
    network = small().to(kind)
    esper.export_network(network, IMAGES.to(kind), format="source", out=tmp_path / "net")
    assert read_sheet(tmp_path / "net")["inputs"][0]["dtype"] == "torch.float32"
    assert next(network.parameters()).dtype is kind


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(ValueError, match=r"out=.* exists and is not an empty folder"):
        esper.export_network(small(), IMAGES, format="source", out=tmp_path)


def test_a_missing_package_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(formats, "find_spec", lambda name: None if name.startswith("onnx") else find_spec(name))
    with pytest.raises(ValueError, match=r"format=onnx needs onnx and .*: pip install '\.\[export\]'"):
        esper.export_network(small(), IMAGES, format=["source", "onnx"], out=tmp_path / "net")


@pytest.mark.slow
def test_every_form_of_a_transformer_is_compared_where_esper_cannot_be_imported(tmp_path: Path) -> None:
    import onnx

    torch.manual_seed(0)
    host = TransformerHost(num_classes=11, context_length=5, num_layers=2, width=8, num_heads=2, mlp_width=12)
    for parameter in host.parameters():
        nn.init.normal_(parameter, std=0.3)
    folder = tmp_path / "net"
    folder.mkdir()
    network = host.train()
    tokens = torch.randint(11, (4, 5))
    assert esper.export_network(network, tokens, format=list(FORMATS), out=folder, about={"note": 1}) == folder
    assert network.training, "the network stays as it is"
    sheet = read_sheet(folder)
    assert sheet["note"] == 1
    assert sheet["inputs"] == [{"shape": ["batch", 5], "dtype": "torch.int64"}]
    assert sheet["parameters"] == sum(parameter.numel() for parameter in host.parameters())
    assert all(form["difference"] <= 1e-5 for form in sheet["formats"].values())
    assert {"safetensors", "onnx", "torch"} <= sheet["versions"].keys()
    (read,) = onnx.load(folder / "model.onnx").graph.input
    assert [axis.dim_param or axis.dim_value for axis in read.type.tensor_type.shape.dim] == ["batch", 5]
    files = [name for form in FORMATS.values() for name in form.about["files"]]  # type: ignore[attr-defined]
    assert sorted(path.name for path in folder.iterdir()) == sorted([*files, "sheet.json"])
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["other numbers", "imports esper"])
def test_a_form_that_is_not_the_network_alone_is_refused(
    fault: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def wrong(traced: Traced, folder: Path) -> None:
        FORMATS["torch_export"].write(traced, folder)
        network = small().eval()
        form.write(Traced(network=network, program=trace(network, [IMAGES]), title="Another."), folder)
        if fault == "imports esper":
            code = (folder / "model.py").read_text()
            (folder / "model.py").write_text(code.replace("import torch\n", "import torch\nimport esper\n", 1))

    form = FORMATS["source"]
    monkeypatch.setitem(FORMATS._entries, "source", formats.Format(write=wrong, about=form.about))
    network = small()
    with torch.no_grad():
        if fault == "other numbers":
            next(network.parameters()).add_(1e-3)
    message = {"other numbers": "computes something else", "imports esper": "does not run without Esper: .*esper"}
    with pytest.raises(ValueError, match=message[fault]):
        esper.export_network(network, IMAGES, format="source", out=tmp_path / "net")
    assert list(tmp_path.iterdir()) == []
