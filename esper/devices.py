"""Which device a run uses."""

from __future__ import annotations

import torch


def visible_devices() -> list[str]:
    """What may be asked for: ``cpu`` and the index of each CUDA device."""
    return ["cpu", *map(str, range(torch.cuda.device_count()))]


def resolve_device(devices: str) -> torch.device:
    """The device of a run.

    Args:
        devices: ``auto`` (the first CUDA device if there is one, otherwise the CPU), ``cpu``, or a CUDA index.

    Raises:
        ValueError: not there; names what was asked and what is visible.
    """
    visible = visible_devices()
    asked = visible[1] if devices == "auto" and len(visible) > 1 else "cpu" if devices == "auto" else devices
    if asked not in visible:
        raise ValueError(f"devices={devices} is not there; visible: {', '.join(visible)}")
    return torch.device("cpu") if asked == "cpu" else torch.device("cuda", int(asked))
