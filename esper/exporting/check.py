"""An exported network, loaded and run where Esper cannot be imported: ``python -I check.py <folder> <format>...``.

This file is run as a script of its own. It reads ``inputs.npz`` from its own folder of samples and writes the results
of each format to ``<format>.npz`` there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Run = Callable[[Sequence[Any]], list[Any]]


def torch_export(folder: Path) -> Run:
    """Load ``model.pt2``."""
    import torch

    return _torch(torch.export.load(folder / "model.pt2").module())


def source(folder: Path) -> Run:
    """Import ``model.py`` and load its weights."""
    import runpy

    return _torch(runpy.run_path(str(folder / "model.py"))["load"]())


def onnx(folder: Path) -> Run:
    """Load ``model.onnx`` with onnxruntime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]
    return lambda inputs: list(session.run(None, dict(zip(names, inputs, strict=True))))


def _torch(network: Any) -> Run:
    import torch

    def run(inputs: Sequence[Any]) -> list[Any]:
        with torch.no_grad():
            result = network(*map(torch.from_numpy, inputs))
        results = result if isinstance(result, list | tuple) else [result]
        return [value.numpy() for value in results if isinstance(value, torch.Tensor)]

    return run


LOADERS = {"torch_export": torch_export, "source": source, "onnx": onnx}
"""Functions that load an exported network from its folder, by format."""


def main(folder: str, samples: str, *formats: str) -> None:
    """Run every batch of ``inputs.npz`` through each format of a folder."""
    sys.modules["esper"] = None  # type: ignore[assignment]  # so that importing it fails
    batches = np.load(Path(samples) / "inputs.npz")
    sizes = sorted({key.partition(".")[0] for key in batches})
    for name in formats:
        run = LOADERS[name](Path(folder))
        results: dict[str, Any] = {}
        for size in sizes:
            inputs = [batches[key] for key in sorted(batches) if key.startswith(f"{size}.")]
            results |= {f"{size}.{index}": value for index, value in enumerate(run(inputs))}
        np.savez(Path(samples) / f"{name}.npz", **results)


if __name__ == "__main__":
    main(*sys.argv[1:])
