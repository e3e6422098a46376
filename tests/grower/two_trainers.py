"""Growing in a trainer on two ranks: ``two_trainers.py <framework> <rank> <folder> <port>`` leaves what it found."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

from nets import QUICK, batch  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

Found = dict[str, Any]


def lightning(rank: int, size: int, folder: Path) -> Found:
    """A fit, on the rank's share of each batch."""
    import in_lightning as loops

    shares = [tuple(part.chunk(size)[rank] for part in batch(step)) for step in range(loops.BATCHES)]
    loader: Any = DataLoader(shares, batch_size=None)  # type: ignore[arg-type]
    options = {"strategy": "ddp", "devices": size, "use_distributed_sampler": False} if size > 1 else {}
    growing = loops.callback(loops.GROWING, rules=QUICK, seed=rank)
    module = loops.fit(loops.Module(norm=False, dropout=0.0), [growing], data=loader, **options)
    return result(module.net, growing)


def transformers(rank: int, size: int, folder: Path) -> Found:
    """A training, on every other batch of half the size; gradients of two batches are accumulated."""
    import in_transformers as loops

    growing = loops.callback(loops.GROWING, rules=QUICK, seed=rank)
    options = {"per_device_train_batch_size": loops.BATCH // size, "gradient_accumulation_steps": 2}
    if size > 1:
        options["ddp_backend"] = "gloo"
    return result(loops.train(folder, loops.gpt(0.0), [growing], **options), growing)


def result(model: Any, growing: Any) -> Found:
    norms = {path: slot.gradient_norm for path, slot in growing.report.slots.items()}
    return {"state": model.state_dict(), "norms": norms, "kept": list(growing.grower.sheet()["kept"])}


if __name__ == "__main__":
    framework, own, folder, port = sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "RANK": own, "LOCAL_RANK": own}
    found = {"lightning": lightning, "transformers": transformers}[framework](int(own), 2, folder)
    torch.save(found, folder / f"{own}.pt")
    torch.distributed.destroy_process_group()
