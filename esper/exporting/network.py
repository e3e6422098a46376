"""Export of any network: traced, written, loaded again without Esper, and compared, before anything is at its place."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.utils._pytree import tree_leaves

from esper.exporting import check
from esper.exporting.formats import BATCH, FORMATS, Traced, checked_formats
from esper.runtime.files import replacing_folder, write_atomic
from esper.runtime.provenance import environment_info
from esper.runtime.records import json_safe

TOLERANCE = 1e-5
"""Largest difference between results of a network and its exported form, relative to the largest result above 1."""

FEW = 1, 3
"""Batch sizes that are compared; a longer example is also run whole."""

SHEET = "sheet.json"


def export_network(
    network: nn.Module,
    example: Tensor | Sequence[Tensor],
    *,
    format: str | Sequence[str] = "torch_export",
    out: str | Path,
    about: Mapping[str, object] | None = None,
) -> Path:
    """Write a network in forms that need no Esper, and ``sheet.json``.

    Each form takes batches of any size. It is loaded again in a process that cannot import Esper, and its results are
    compared with the network's for two batch sizes.

    Args:
        network: any module that ``torch.export`` can trace, such as what :meth:`esper.Grower.finish` returns. It is
            exported in evaluation mode and in fp32, and stays as it is.
        example: a batch of its input, or several inputs in order, the first axis of each that of samples.
        format: ``torch_export`` (``model.pt2``), ``onnx`` (``model.onnx``), ``source`` (``model.py`` and
            ``weights.safetensors``), or a list of them.
        out: a new or empty folder.
        about: what else the sheet should say, in JSON types; ``title`` becomes the first line of ``model.py``.

    Returns:
        The folder.

    Raises:
        ValueError: in one line, which argument is wrong and what to do, or which form differs and by how much. Nothing
            is written then.
    """
    formats, folder = checked_formats(format), check_out(out)
    if not isinstance(network, nn.Module):
        raise ValueError(f"network must be a torch.nn.Module, got a {type(network).__name__}")
    inputs = _inputs(example)
    network = copy.deepcopy(network).cpu().float().eval()
    network.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    about = dict(about or {})
    title = str(about.pop("title", f"{type(network).__name__}, exported by Esper."))
    traced = Traced(network=network, program=trace(network, inputs), title=title)
    with replacing_folder(folder) as unfinished:
        for name in formats:
            FORMATS[name].write(traced, unfinished)
        differences = compare(network, inputs, formats, unfinished)
        sheet = {
            **about,
            "formats": {name: {**FORMATS[name].about, "difference": differences[name]} for name in formats},
            "inputs": [{"shape": [BATCH, *x.shape[1:]], "dtype": str(x.dtype)} for x in inputs],
            "parameters": sum(parameter.numel() for parameter in network.parameters()),
            **environment_info(),
        }
        sheet["versions"] |= {package: version(package) for name in formats for package in FORMATS[name].needs}
        write_atomic(unfinished / SHEET, json.dumps(json_safe(sheet), indent=2) + "\n")
    return folder


def check_out(out: str | Path) -> Path:
    """Refuse a folder that is not empty.

    Raises:
        ValueError: it does, or it is a file.
    """
    folder = Path(out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"out={out} exists and is not an empty folder: choose another, or remove it")
    return folder


def _inputs(example: Tensor | Sequence[Tensor]) -> tuple[Tensor, ...]:
    inputs = tuple(example) if isinstance(example, list | tuple) else (example,)
    if not inputs or not all(isinstance(x, Tensor) and x.dim() and len(x) == len(inputs[0]) > 0 for x in inputs):
        raise ValueError("example must be a batch as a tensor, or several of equal length, with at least one sample")
    inputs = tuple(x.detach().cpu().contiguous() for x in inputs)
    return tuple(x.float() if x.is_floating_point() else x for x in inputs)


def _batch(inputs: Sequence[Tensor], size: int) -> tuple[Tensor, ...]:
    """Return a batch of another size, in which samples are repeated if there are too few."""
    return tuple(x[torch.arange(size) % len(x)] for x in inputs)


def trace(network: nn.Module, inputs: Sequence[Tensor]) -> ExportedProgram:
    """Trace a network for batches of any size.

    Raises:
        ValueError: it cannot be traced; the message gives torch's first line.
    """
    batch = Dim(BATCH)
    arguments = _batch(inputs, max(len(inputs[0]), 2))  # an axis of one sample would be taken for a constant
    try:
        with torch.no_grad():
            return torch.export.export(network, arguments, dynamic_shapes=tuple({0: batch} for _ in arguments))
    except Exception as error:  # torch and the network itself raise any type
        if "Constraints violated (batch)" in str(error):
            raise ValueError(
                f"network: {type(network).__name__} does not take batches of any size: its forward pass holds a number "
                "where x.shape[0] belongs"
            ) from error
        line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ValueError(f"network: torch.export cannot trace {type(network).__name__}: {line}") from error


def results_of(network: nn.Module, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors among the results of a network."""
    with torch.no_grad():
        return [value for value in tree_leaves(network(*inputs)) if isinstance(value, Tensor)]


def compare(network: nn.Module, inputs: Sequence[Tensor], formats: Sequence[str], folder: Path) -> dict[str, float]:
    """Load forms again in a process that cannot import Esper, and compare their results with the network's.

    Returns:
        The largest difference of each form.

    Raises:
        ValueError: a form cannot be loaded, or differs by more than :data:`TOLERANCE`.
    """
    batches = [_batch(inputs, size) for size in (FEW[0], max(FEW[1], len(inputs[0])))]
    wanted = [results_of(network, batch) for batch in batches]
    with tempfile.TemporaryDirectory(prefix="esper-export-") as samples:
        arrays = {f"{size}.{index}": x.numpy() for size, batch in enumerate(batches) for index, x in enumerate(batch)}
        np.savez(Path(samples, "inputs.npz"), allow_pickle=False, **arrays)
        return {name: _difference(name, wanted, folder, Path(samples)) for name in formats}


def _difference(name: str, wanted: Sequence[Sequence[Tensor]], folder: Path, samples: Path) -> float:
    command = [sys.executable, "-I", check.__file__, str(folder.absolute()), str(samples), name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise ValueError(f"format={name}: what was written does not run without Esper: {lines[-1]}")
    found = np.load(samples / f"{name}.npz")
    largest = 0.0
    for size, results in enumerate(wanted):
        for index, result in enumerate(results):
            value = torch.from_numpy(found[f"{size}.{index}"])
            apart = float((value - result).abs().max()) if value.shape == result.shape else float("inf")
            if not apart <= TOLERANCE * max(1.0, float(result.abs().max())):
                raise ValueError(
                    f"format={name}: what was written computes something else (by {apart:.3g}, at most {TOLERANCE:g} "
                    f"of the largest result): choose another of {', '.join(FORMATS)}"
                )
            largest = max(largest, apart)
    return largest


def read_sheet(folder: Path) -> dict[str, Any]:
    """Return the sheet of an exported network."""
    sheet: dict[str, Any] = json.loads((folder / SHEET).read_text(encoding="utf-8"))
    return sheet
