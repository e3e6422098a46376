"""The position of a process according to torchrun and Slurm, and the distribution of environments."""

from __future__ import annotations

import os
import platform
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from processes import run

from esper.runtime.devices import intra_op_threads, num_cores, spread, thread_lines
from esper.runtime.placement import Placement, outside_placement

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "a"}
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
    "SLURM_STEP_NODELIST": "gpu[03-05],cpu1",
    "SLURM_JOB_ID": "41234",
}


def test_torchrun_places_its_processes() -> None:
    placed = outside_placement(TORCHRUN | {"MASTER_PORT": "29500"})
    assert placed == Placement(rank=3, size=4, local_rank=1, local_size=2, rendezvous="env://")
    assert outside_placement(TORCHRUN) is None, "not without everything that a rendezvous needs"


def test_srun_places_its_tasks() -> None:
    placed = outside_placement(SLURM)
    assert placed == Placement(rank=5, size=7, local_rank=1, local_size=2, rendezvous="tcp://gpu03:26254")
    last = outside_placement(SLURM | {"SLURM_PROCID": "6", "SLURM_NODEID": "3", "SLURM_LOCALID": "0"})
    assert last is not None
    assert last.local_size == 1


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("n1", "n1"),
        ("n1,n2", "n1"),
        ("a-b[7,9-11]", "a-b7"),
        ("x[01-20],y3", "x01"),
        ("h.example.org", "h.example.org"),
    ],
)
def test_ranks_meet_at_the_first_node(nodes: str, first: str) -> None:
    placed = outside_placement(SLURM | {"SLURM_STEP_NODELIST": nodes})
    assert placed is not None
    assert placed.rendezvous.startswith(f"tcp://{first}:")


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "1"},
        {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},
    ],
    ids=["nothing", "the script of a batch job", "a step of one task"],
)
def test_a_process_on_its_own_is_placed_by_nobody(environ: dict[str, str]) -> None:
    assert outside_placement(environ) is None


@given(st.integers(1, 200), st.integers(1, 16))
def test_shares_are_even_consecutive_and_complete(count: int, num_ranks: int) -> None:
    shares = spread(count, num_ranks)
    assert [env for share in shares for env in share] == list(range(count))
    sizes = [len(share) for share in shares]
    assert len(sizes) == num_ranks
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


FAULTS = """
import resource, torch
from esper.runtime.devices import keep_freed_memory
done = keep_freed_memory()
def work():
    for _ in range(20):
        features = [torch.empty(4 << 20, dtype=torch.uint8).fill_(1) for _ in range(8)]
        del features
work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
work()
print(int(done), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator is not glibc's")
@pytest.mark.slow
def test_freed_memory_is_taken_again_without_asking_the_system() -> None:
    """A page that comes from the system faults on its first touch."""
    printed = run([sys.executable, "-c", FAULTS], check=True).stdout
    done, faults = map(int, printed.split())
    assert done
    assert faults < 100


def test_threads_of_all_ranks_together_fit_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 <= num_cores() <= (os.cpu_count() or 1)
    monkeypatch.setattr("esper.runtime.devices.num_cores", lambda: 8)
    assert intra_op_threads(0, 1) == 8
    assert intra_op_threads(0, 2) == 4
    assert intra_op_threads(1, 2) == 1
    assert intra_op_threads(6, 2) == 4, "more than a share is cut"
    assert intra_op_threads(0, 16) == 1
    assert thread_lines(4096, 2) == ["num_threads=4096: 4 in each rank, which is what 8 cores allow"]
    assert thread_lines(4, 2) == thread_lines(0, 2) == []
