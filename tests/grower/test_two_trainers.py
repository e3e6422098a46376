"""Two ranks that grow in a trainer of Lightning or Hugging Face, each on its half of a batch, are one on the batch."""

from __future__ import annotations

import socket
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
import two_trainers
from processes import LIMIT, started

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:pytorch_lightning"),
]


@pytest.mark.parametrize("framework", ["lightning", "transformers"])
def test_two_halves_of_a_batch_are_the_batch(framework: str, tmp_path: Path) -> None:
    """Through all stages, with equal weights on both ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, two_trainers.__file__, framework]
    with ExitStack() as stack:
        ranks = [[*command, str(rank), str(tmp_path), str(port)] for rank in range(2)]
        for process in [stack.enter_context(started(rank)) for rank in ranks]:
            assert process.wait(LIMIT) == 0
    one, other = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    alone = getattr(two_trainers, framework)(0, 1, tmp_path)
    assert one["kept"] == other["kept"] == alone["kept"] != []
    assert one["norms"] == other["norms"]
    assert one["norms"] == pytest.approx(alone["norms"], rel=1e-2)
    assert one["state"].keys() == alone["state"].keys()
    for name, value in alone["state"].items():
        assert torch.equal(one["state"][name], other["state"][name]), name
        torch.testing.assert_close(one["state"][name], value, rtol=1e-2, atol=1e-4, msg=name)
