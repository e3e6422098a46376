"""Python's side of the simulated CUDA: loads its library, and answers ``torch.cuda``'s queries to the driver."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path
from typing import Any

NUM_DEVICES = 2
NAME = "Pretended GPU"


def appear(library: str) -> None:
    """Make devices appear in this process, whose PyTorch is not imported yet: it asks once what there is."""
    found = importlib.util.find_spec("torch")
    assert found is not None, "no torch"
    assert found.origin is not None, "no torch"
    own = Path(found.origin).parent / "lib"
    # In the order in which they need one another; torch's own import then finds them loaded.
    for name in ("libc10.so", "libtorch_cpu.so", library):
        device = ctypes.CDLL(str(own / name), mode=ctypes.RTLD_GLOBAL)
    device.pretend_peak.restype = ctypes.c_int64
    device.pretend_devices(NUM_DEVICES)
    import torch

    _answer(torch.cuda, torch.backends.cudnn, device)
    _reduce(torch.distributed)


def _answer(cuda: Any, cudnn: Any, device: ctypes.CDLL) -> None:
    """Functions of ``torch.cuda`` that a CPU build has no driver for."""

    def index(of: Any = None) -> int:
        number = of if isinstance(of, int) or of is None else _torch_device(of).index
        return device.pretend_current() if number is None else number

    def set_device(of: Any) -> None:
        device.pretend_exchange(index(of))

    answers = {
        "_lazy_init": lambda: None,
        "is_initialized": lambda: True,
        "is_available": lambda: True,
        "is_bf16_supported": lambda including_emulation=True: True,
        "device_count": lambda: NUM_DEVICES,
        "current_device": lambda: device.pretend_current(),
        "set_device": set_device,
        "_exchange_device": lambda number: device.pretend_exchange(number),
        "_maybe_exchange_device": lambda number: device.pretend_exchange(number),
        "get_device_name": lambda of=None: NAME,
        "get_device_capability": lambda of=None: (9, 0),
        "max_memory_allocated": lambda of=None: device.pretend_peak(index(of)),
        "manual_seed_all": lambda seed: None,
        "set_sync_debug_mode": lambda mode: device.pretend_answer_waiting(("default", "warn", "error").index(mode)),
    }
    for name, answer in answers.items():
        setattr(cuda, name, answer)
    cudnn.is_acceptable = lambda tensor: False  # it would warn that there is none


def _torch_device(of: Any) -> Any:
    import torch

    return torch.device(of)


def _reduce(dist: Any) -> None:
    """Sums over ranks as NCCL takes them, added up by gloo."""
    begin, add_up = dist.init_process_group, dist.all_reduce

    def init_process_group(backend: str, **options: Any) -> None:
        assert backend == "cpu:gloo,cuda:nccl", "objects go through gloo, tensors of a device through NCCL"
        begin("gloo", **options)

    def all_reduce(tensor: Any, *arguments: Any, **options: Any) -> Any:
        if not tensor.is_cuda:
            return add_up(tensor, *arguments, **options)
        import torch

        assert not arguments, "a sum over all ranks is all that Esper asks of NCCL"
        assert not options, "a sum over all ranks is all that Esper asks of NCCL"
        assert tensor.is_contiguous(), "NCCL wants contiguous tensors"
        assert tensor.device.index == torch.cuda.current_device() == dist.get_rank(), "NCCL wants a rank's own device"
        total = tensor.detach().cpu()
        add_up(total)
        tensor.detach().copy_(total)
        return None

    dist.init_process_group, dist.all_reduce = init_process_group, all_reduce
