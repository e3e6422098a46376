"""Forms of an exported network."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import nn
from torch.export import ExportedProgram

from esper.exporting.source import build, source_of
from esper.runtime.registry import Registry

OPSET = 20
"""Version of ONNX's operators in exported files, the first with GELU; onnxruntime runs it from 1.17 on."""

BATCH = "batch"
"""Name of the axis of samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """A network to export, and its trace.

    Attributes:
        network: network in evaluation mode, on the CPU.
        program: traced form of the network.
        title: one line that describes the network.
    """

    network: nn.Module
    program: ExportedProgram
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A form in which networks are exported.

    Attributes:
        write: function that writes its files into a folder.
        needs: packages that it and its check need besides torch and numpy.
        about: further content of its entry in ``sheet.json``.
    """

    write: Callable[[Traced, Path], None]
    needs: tuple[str, ...] = ()
    about: Mapping[str, object]


def _torch_export(traced: Traced, folder: Path) -> None:
    torch.export.save(traced.program, folder / "model.pt2")


def _onnx(traced: Traced, folder: Path) -> None:
    inputs = [name for name in traced.program.graph_signature.user_inputs if isinstance(name, str)]
    with _quiet():
        program = torch.onnx.export(
            traced.program, (), dynamo=True, opset_version=OPSET, input_names=inputs, verbose=False
        )
    assert program is not None, "the exporter of traced programs returns one"
    graph = program.model.graph
    values = (*graph.inputs, *graph.outputs, *(result for node in graph for result in node.outputs))
    shapes = [value.shape for value in values if value.shape is not None]
    traced_name = str(shapes[0][0])
    for shape in shapes:
        for axis, size in enumerate(shape):
            if str(size) == traced_name:
                shape[axis] = BATCH
    program.save(folder / "model.onnx")


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the exporter's warnings about itself: deprecations within torch, and the lack of torchvision."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        logger.setLevel(level)


def _source(traced: Traced, folder: Path) -> None:
    from safetensors.torch import save

    source = source_of(traced.program, traced.network, traced.title)
    (folder / "model.py").write_text(source.code, encoding="utf-8")
    network = build(source)
    tensors = {**dict(network.named_parameters()), **dict(network.named_buffers())}  # shared ones once
    (folder / "weights.safetensors").write_bytes(save({name: value.detach() for name, value in tensors.items()}))


FORMATS: Registry[Format] = Registry(
    "format",
    {
        "torch_export": Format(write=_torch_export, about={"files": ["model.pt2"]}),
        "onnx": Format(
            write=_onnx,
            needs=("onnx", "onnxscript", "onnxruntime"),
            about={"files": ["model.onnx"], "opset": OPSET},
        ),
        "source": Format(write=_source, needs=("safetensors",), about={"files": ["model.py", "weights.safetensors"]}),
    },
    functions=lambda form: (form.write,),
)


def checked_formats(format: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of one form or several.

    Raises:
        ValueError: an unknown one, one twice, none, or one that needs a package which is not installed.
    """
    names = (format,) if isinstance(format, str) else tuple(format)
    if not names or len(set(names)) < len(names):
        raise ValueError(f"format={list(names)} must name one form, or several different ones, of {', '.join(FORMATS)}")
    for name in names:
        missing = [package for package in FORMATS.find(name, "format").needs if find_spec(package) is None]
        if missing:
            raise ValueError(f"format={name} needs {' and '.join(missing)}: pip install '.[export]'")
    return names
