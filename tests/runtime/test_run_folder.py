"""A run folder belongs to one run, and its files are complete at any moment."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from esper.runtime import run_folder as runs
from esper.runtime.placement import PeerLost
from esper.runtime.preemption import Preempted
from esper.runtime.run_folder import (
    RunCondition,
    RunFolder,
    RunFolderError,
    RunState,
    run_status,
    stop_told,
)


def status(folder: RunFolder) -> dict[str, object]:
    record: dict[str, object] = json.loads(folder.status_file.read_text())
    return record


def test_a_new_folder_has_its_configuration_and_subfolders(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "outputs" / "run", "seed: 1\n")
    assert folder.config.read_text() == "seed: 1\n"
    assert folder.checkpoints.is_dir()
    assert folder.plots.is_dir()
    without = RunFolder.create(tmp_path / "outputs" / "evaluation", "", checkpoints=False)
    assert without.plots.is_dir()
    assert not without.checkpoints.exists()


def test_a_folder_with_other_things_in_it_is_fine(tmp_path: Path) -> None:
    (tmp_path / ".hydra").mkdir()
    (tmp_path / "train.log").write_text("")
    RunFolder.create(tmp_path, "")


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl", "status.json", "result.json"])
def test_a_folder_that_holds_a_run_is_refused_and_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("earlier")
    with pytest.raises(RunFolderError, match=rf"already holds a run \({name}\): choose another folder") as caught:
        RunFolder.create(tmp_path, "later")
    assert str(tmp_path) in str(caught.value)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [name]
    assert (tmp_path / name).read_text() == "earlier"


@pytest.mark.parametrize("text", ["", '{"state": "runn', "[]", '{"state": "paused"}', '{"state": 3}'])
def test_a_run_whose_status_is_broken_is_one_that_was_interrupted(tmp_path: Path, text: str) -> None:
    """The run resumes from its last checkpoint, and blocks no other run."""
    folder = RunFolder.create(tmp_path, "")
    folder.status_file.write_text(text)
    assert folder.state is None
    assert folder.condition() is RunCondition.INTERRUPTED


def test_a_second_run_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    RunFolder.create(tmp_path, "")
    with pytest.raises(RunFolderError, match="already holds a run"):
        RunFolder.create(tmp_path, "")


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="file/run cannot be written") as caught:
        RunFolder.create(tmp_path / "file" / "run", "")
    assert "\n" not in str(caught.value)
    with pytest.raises(RunFolderError, match="cannot be written"):
        RunFolder.create(tmp_path / "file", "")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(RunFolderError, match="Permission denied"):
        RunFolder.create(tmp_path / "locked", "")


def test_a_result_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder.create(tmp_path, "")
    folder.write_result({"score": 1.0, "unmeasured": float("nan"), "rows": ({"a": None},)})
    assert json.loads(folder.result.read_text()) == {"score": 1.0, "unmeasured": None, "rows": [{"a": None}]}

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("esper.runtime.run_folder.os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        folder.write_result({"score": 2.0})
    assert json.loads(folder.result.read_text())["score"] == 1.0
    assert not list(tmp_path.glob(".*.tmp"))


def test_status_carries_extras_and_refuses_unknown_states(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "")
    folder.status("running", iteration=3)
    assert status(folder)["state"] == "running"
    assert status(folder)["iteration"] == 3
    with pytest.raises(ValueError, match="asleep"):
        folder.status("asleep")


def test_status_follows_the_run_to_its_end(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "")
    with run_status(folder):
        assert status(folder)["state"] == RunState.RUNNING
    assert status(folder)["state"] == RunState.FINISHED


def test_a_failed_run_keeps_its_traceback_and_the_error_goes_on(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "")
    with pytest.raises(ZeroDivisionError), run_status(folder):
        raise ZeroDivisionError("division by zero")
    assert status(folder)["state"] == RunState.FAILED
    assert "ZeroDivisionError: division by zero" in str(status(folder)["traceback"])


def test_an_interrupted_run_is_preempted_not_failed(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "")
    with pytest.raises(KeyboardInterrupt), run_status(folder):
        raise KeyboardInterrupt
    assert status(folder)["state"] == RunState.PREEMPTED
    assert "traceback" not in status(folder)


@pytest.mark.parametrize("error", [PeerLost("gone"), Preempted(15)], ids=["lost a peer", "asked to stop"])
def test_what_the_rank_that_failed_reported_is_kept_by_the_others(tmp_path: Path, error: BaseException) -> None:
    """torchrun asks them to stop."""
    folder = RunFolder.create(tmp_path / "run", "")

    def first() -> None:
        with run_status(folder):
            with pytest.raises(ZeroDivisionError), run_status(folder, rank=1):
                raise ZeroDivisionError
            raise error

    with pytest.raises(type(error)):
        first()
    assert (status(folder)["state"], status(folder)["rank"]) == ("failed", 1)


def test_an_error_is_not_hidden_by_a_status_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder.create(tmp_path, "")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    def run() -> None:
        with run_status(folder):
            monkeypatch.setattr(runs, "write_atomic", full)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        run()
    assert any("No space left" in note for note in caught.value.__notes__)


@pytest.mark.parametrize(("state", "told"), [(RunState.RUNNING, ["SIGTERM"]), (RunState.FINISHED, [])])
def test_a_run_that_is_stopped_tells_by_which_signal_unless_it_had_finished(
    tmp_path: Path, state: RunState, told: list[str]
) -> None:
    folder, heard = RunFolder(tmp_path), list[str]()
    folder.status(state)
    with pytest.raises(Preempted), stop_told(folder, heard.append):
        raise Preempted(15)
    assert heard == told


# --------------------------------------------------------------------------------------------- before a run has begun


@pytest.mark.parametrize("error", [Preempted(15), Preempted(2), KeyboardInterrupt(), ValueError("no mapping can")])
def test_a_folder_in_which_no_run_has_begun_is_gone_however_it_ends(tmp_path: Path, error: BaseException) -> None:
    folder = RunFolder(tmp_path / "run")

    def end() -> None:
        with folder.lock():
            assert folder.lock_file.exists()
            raise error

    with pytest.raises(type(error)):
        end()
    assert not folder.path.exists()


def test_a_folder_that_holds_a_run_or_anything_else_stays(tmp_path: Path) -> None:
    begun, noted = RunFolder(tmp_path / "begun"), RunFolder(tmp_path / "noted")
    with begun.lock():
        begun.status(RunState.RUNNING)
    with noted.lock():
        (noted.path / "output.log").write_text("")
    assert begun.status_file.exists()
    assert (noted.path / "output.log").exists()


def test_who_waits_for_a_folder_that_is_removed_meanwhile_gets_one_of_its_own(tmp_path: Path) -> None:
    """The two never hold locks at once: one on the removed file, another on the new one."""
    folder, entered, waiting = RunFolder(tmp_path / "run"), threading.Event(), threading.Event()

    def wait() -> None:
        waiting.set()
        with RunFolder(folder.path).lock():
            entered.set()
            RunFolder(folder.path).status(RunState.RUNNING)

    other = threading.Thread(target=wait)
    with folder.lock():
        other.start()
        waiting.wait()
        assert not entered.wait(0.15)
    other.join()
    assert folder.lock_file.exists()
    assert folder.status_file.exists()


def test_a_waiting_process_that_gives_up_leaves_the_folder_to_the_one_that_works_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("esper.runtime.run_folder.LOCK_SECONDS", 0.0)
    folder = RunFolder(tmp_path / "run")
    with folder.lock():
        with pytest.raises(RunFolderError, match="another process writes"), RunFolder(folder.path).lock():
            pass
        assert folder.lock_file.exists()
