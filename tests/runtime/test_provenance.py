"""A result says where it comes from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from processes import run

from esper.runtime import provenance
from esper.runtime.provenance import environment_info


def test_environment_info_is_plain_json_and_names_the_essentials() -> None:
    info = json.loads(json.dumps(environment_info()))
    assert info["versions"]["torch"]
    assert info["num_cpus"] >= 1
    assert info["num_threads"] >= 1
    assert info["device"] == "cpu"
    assert (info["git_sha"] is None) == (info["git_dirty"] is None)


def test_the_commit_is_that_of_the_package_and_not_of_a_checkout_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        return run(["git", "-C", str(tmp_path), *identity, *arguments], check=True).stdout.strip()

    git("init", "-q")
    (tmp_path / "other.py").write_text("")
    git("add", "other.py")
    git("commit", "-q", "-m", "somebody else's")
    module = tmp_path / "own.py"
    module.write_text("")
    monkeypatch.setattr(provenance, "__file__", str(module))
    assert environment_info()["git_sha"] is None  # installed inside their checkout, not tracked by it
    git("add", "own.py")
    git("commit", "-q", "-m", "tracked")
    info = environment_info()
    assert (info["git_sha"], info["git_dirty"]) == (git("rev-parse", "HEAD"), False)
    (tmp_path / "other.py").write_text("changed")
    assert environment_info()["git_dirty"] is True
