"""Esper on two CUDA devices simulated on the CPU: everything that README.md in this folder says can be tested so."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock

from esper import export
from esper.tasks.cifar10 import PYTHON
from tests.processes import run
from tests.tasks.archives import cifar_archive
from tests.warm import warm

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
WRITTEN_FOR = "2.13"
CPU_STATE = len(torch.Generator().get_state())

SMALL = ("env.num_epochs=4", "env.steps_per_epoch=1", "trainer.num_iterations=1", "telemetry.plots=false")
SMOKE = ("+preset=smoke", "env.mapping=matmul", "evaluation.controllers=[learned,random,never]", *SMALL)

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def library(request: pytest.FixtureRequest) -> Path:
    """The compiled device, from pytest's cache if this version of it is there."""
    if sys.platform != "linux" or torch.version.cuda is not None:
        pytest.skip("takes CUDA's place in a PyTorch for Linux that was built without it")
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    source = HERE / "device.cpp"
    version = hashlib.sha256(source.read_bytes() + torch.__version__.encode()).hexdigest()[:12]
    compiled = request.config.cache.mkdir("pretend_cuda") / f"device-{version}.so"  # type: ignore[union-attr]
    with FileLock(compiled.with_suffix(".lock")):
        if not compiled.exists():
            own = Path(torch.__file__).parent
            include = [f"-I{own / 'include'}", f"-I{own / 'include/torch/csrc/api/include'}"]
            link = [f"-L{own / 'lib'}", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{own / 'lib'}"]
            part = compiled.with_suffix(".part")
            options = ["-O0", "-std=c++20", "-fPIC", "-shared", "-w"]
            done = run(["g++", *options, *include, str(source), "-o", str(part), *link])
            if done.returncode and not torch.__version__.startswith(WRITTEN_FOR):
                pytest.skip(f"written for PyTorch {WRITTEN_FOR}, does not compile with {torch.__version__}")
            assert done.returncode == 0, done.stderr
            part.replace(compiled)
    return compiled


@pytest.fixture(scope="module")
def python(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Runs Python with two devices; fails if it fails or complains, and returns what it printed."""
    path = os.pathsep.join([str(ROOT), str(HERE / "site"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PRETEND_CUDA": str(library), "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    folder = tmp_path_factory.mktemp("elsewhere")

    with warm(environment) as interpreter:

        def execute(*words: str, cwd: Path = folder) -> str:
            done = run([interpreter.executable, *words], env=environment, cwd=cwd)
            assert done.returncode == 0, done.stderr + done.stdout
            assert done.stderr == ""
            return done.stdout

        yield execute


def result(run_dir: Path) -> Any:
    """Read the result of a finished run, in which ``never`` must have earned exactly 0."""
    found = json.loads((run_dir / "result.json").read_text())
    assert all(episode["return"] == 0.0 for episode in found["episodes"]["never"])
    return found


def devices(run_dir: Path) -> list[str]:
    """Return the device of each rank, after checking that its hosts are there."""
    members = result(run_dir)["ranks"]
    assert [member["hosts_on"] for member in members] == [member["device"] for member in members]
    return [member["device"] for member in members]


def tensors(part: Any) -> Iterator[torch.Tensor]:
    """Return all tensors in a state."""
    if isinstance(part, torch.Tensor):
        yield part
    elif isinstance(part, dict | list | tuple):
        for inner in part.values() if isinstance(part, dict) else part:
            yield from tensors(inner)


def check_checkpoints(run_dir: Path) -> None:
    """Check that they equal those of a run on CPUs: this process, without CUDA, can read them without moving
    anything.
    """
    for path in (run_dir / "checkpoints").glob("*.pt"):
        record = torch.load(path, weights_only=True)
        assert all(tensor.device.type == "cpu" for tensor in tensors(record))
        for own in record.get("training", {}).get("ranks", ()):
            for stream in ("sampling", "shuffling"):
                assert len(own[stream]["position"]) == CPU_STATE


REFUSED = """
import torch

first, second = (torch.ones(2, 3, device=f"cuda:{index}") for index in (0, 1))
for mistake in (
    lambda: first + second,
    lambda: first @ torch.ones(3, 3),
    lambda: first.new_empty(2, 3).copy_(first).add_(torch.ones(3)),
    lambda: torch.Generator("cuda:1"),
    lambda: torch.ones(2, device="cuda:2"),
):
    try:
        mistake()
    except RuntimeError as error:
        print(str(error).split("!")[0].split(" without")[0])
torch.cuda.set_sync_debug_mode("error")
for wait in (lambda: first.sum().item(), first.cpu, lambda: first[first > 0], lambda: first.add_(1), first.sum):
    try:
        wait()
        print("goes on")
    except RuntimeError as error:
        print(error)
"""


def test_it_refuses_what_a_device_refuses(python: Run) -> None:
    two = "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and "
    waits = "called a synchronizing CUDA operation: "
    assert python("-c", REFUSED).splitlines() == [
        f"{two}cuda:1",
        f"{two}cpu",
        f"{two}cpu",
        "Cannot get CUDA generator",
        "CUDA error: invalid device ordinal",
        f"{waits}item()",
        f"{waits}copy to the CPU",
        f"{waits}aten::nonzero",
        "goes on",
        "goes on",
    ]


def test_tests_marked_gpu_pass(python: Run) -> None:
    """Except the one that needs CUDA's code generator."""
    files = (
        "population/test_syncs.py",
        "population/test_amp.py",
        "policy/test_policy_amp.py",
        "training/test_waits.py",
        "launch/test_spawn.py",
        "grower/test_moving.py",
    )
    paths = [str(ROOT / "tests" / file) for file in files]
    printed = python("-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", *paths, cwd=ROOT)
    assert " passed" in printed
    assert " skipped" not in printed, "two devices are there"


@pytest.fixture(scope="module")
def pair(python: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a run on both devices."""
    run_dir = tmp_path_factory.mktemp("pair") / "run"
    python("-m", "esper.train", *SMOKE, "devices=[0,1]", f"hydra.run.dir={run_dir}")
    return run_dir


def test_two_devices_evaluate_what_two_have_trained(pair: Path, python: Run, tmp_path: Path) -> None:
    assert devices(pair) == ["cuda:0", "cuda:1"]
    check_checkpoints(pair)
    words = ("num_hosts=2", "controllers=[learned,never]", "draws=100", "devices=[0,1]")
    python("-m", "esper.evaluate", f"checkpoint={pair}", *words, f"hydra.run.dir={tmp_path / 'evaluation'}")
    found = json.loads((tmp_path / "evaluation" / "result.json").read_text())
    assert [row["name"] for row in found["controllers"]] == ["learned", "learned_sampled", "never"]


def test_a_run_goes_on_on_other_devices_and_back(pair: Path, python: Run, tmp_path: Path) -> None:
    """Moves from two GPUs to two processes on the CPU, back, and then to one device of each kind."""
    run_dir = shutil.copytree(pair, tmp_path / "run")
    for iterations, (chosen, expected, said) in enumerate(
        (
            ("[cpu,cpu]", ["cpu", "cpu"], "on cpu instead of Pretended GPU"),
            ("[0,1]", ["cuda:0", "cuda:1"], "on Pretended GPU instead of cpu"),
            ("1", ["cuda:1"], "1 rank instead of 2"),
            ("cpu", ["cpu"], "on cpu instead of Pretended GPU"),
            ("0", ["cuda:0"], "on Pretended GPU instead of cpu"),
        ),
        start=2,
    ):
        words = (f"resume={run_dir}", f"devices={chosen}", f"trainer.num_iterations={iterations}")
        printed = python("-m", "esper.train", *words)
        assert f"resuming after iteration {iterations - 1}" in printed
        assert said in printed
        assert devices(run_dir) == expected
        check_checkpoints(run_dir)


def test_a_host_grown_on_a_device_is_exported_anywhere_if_it_was_kept(
    python: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise it is replayed on another device of that name, and nowhere else."""
    run_dir = tmp_path / "run"
    words = ("evaluation.save_grown=all", "evaluation.controllers=[learned,never]", "evaluation.num_hosts=2")
    python("-m", "esper.train", *SMOKE, *words, "devices=1", f"hydra.run.dir={run_dir}")
    request = ("esper.export", f"run={run_dir}", "host=1", "format=source")
    out = [tmp_path / name for name in ("kept", "replayed", "refused")]
    monkeypatch.setattr(sys, "argv", [*request, f"out={out[0]}"])
    export.main()
    assert "(kept in grown/1.pt)" in capsys.readouterr().out
    shutil.rmtree(run_dir / "grown")
    assert "(replayed from the last checkpoint)" in python("-m", *request, f"out={out[1]}")
    assert (out[0] / "weights.safetensors").read_bytes() == (out[1] / "weights.safetensors").read_bytes()
    monkeypatch.setattr(sys, "argv", [*request, f"out={out[2]}"])
    with pytest.raises(SystemExit):
        export.main()
    assert "its hosts grew on Pretended GPU, and replaying them" in capsys.readouterr().err
    assert not out[2].exists()


def test_two_devices_train_in_fp16(python: Run, tmp_path: Path) -> None:
    python("-m", "esper.train", *SMOKE, "devices=[0,1]", "amp=fp16", f"hydra.run.dir={tmp_path / 'run'}")
    assert devices(tmp_path / "run") == ["cuda:0", "cuda:1"]
    check_checkpoints(tmp_path / "run")


def test_a_mapping_that_the_compiler_cannot_make_loses_and_the_run_goes_on(python: Run, tmp_path: Path) -> None:
    """Only on accelerators is one compiled, and here there is no code generator for it."""
    printed = python("-m", "esper.train", *SMOKE, "env.mapping=auto", "devices=0", f"hydra.run.dir={tmp_path / 'run'}")
    assert "_compiled cannot be used: " in printed
    assert devices(tmp_path / "run") == ["cuda:0"]


def write_images(folder: Path) -> tuple[str, ...]:
    (folder / PYTHON.source.name).write_bytes(cifar_archive(PYTHON))
    return "+preset=cifar10", "host.widths=[8,8,8]", "task.num_val=20"


def write_stories(folder: Path) -> tuple[str, ...]:
    story = "Once upon a time there was a small host. It had a slot, and it grew.\n<|endoftext|>\n"
    for name, count in (("TinyStories-train.txt", 200), ("TinyStories-valid.txt", 100)):
        (folder / name).write_text(story * count, encoding="utf-8")
    return "+preset=tinystories", "host.width=16", "host.mlp_width=16", "task.context_length=16", "task.num_val=16"


@pytest.mark.parametrize("write", [write_images, write_stories], ids=["cifar10", "tinystories"])
def test_debug_variants_run_on_archives_of_the_real_format(
    write: Callable[[Path], tuple[str, ...]], python: Run, tmp_path: Path
) -> None:
    words = (
        *write(tmp_path),
        "+debug=fast",
        f"task.root={tmp_path}",
        "task.verify=false",
        "env.mapping=matmul",
        *SMALL,
    )
    fewer = ("trainer.num_envs=2", "evaluation.num_hosts=2", "evaluation.controllers=[learned,random,never]")
    python("-m", "esper.train", *words, *fewer, "devices=1", f"hydra.run.dir={tmp_path / 'run'}")
    assert devices(tmp_path / "run") == ["cuda:1"]
    check_checkpoints(tmp_path / "run")
