"""``--help``: a line for every key with its value, and for every file that the command takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import CommandLine

from esper.config import CONF_DIR, compose, to_plain
from esper.config.identity import flat
from esper.launch.entries import EVALUATE, TRAIN, Entry

Shown = Callable[..., list[str]]


@pytest.fixture
def shown(esper: CommandLine) -> Shown:
    """Lines of the help that the command line prints."""

    def call(*words: str, entry: Entry = TRAIN) -> list[str]:
        code, error, jobs = esper("--help", *words, entry=entry)
        assert (code, error, jobs) == (0, "", [])
        return esper.out.splitlines()

    return call


def line(lines: list[str], start: str) -> str:
    [found] = [each for each in lines if each.startswith(f"  {start}")]
    return found


def test_every_key_has_a_line_with_its_value_and_its_meaning(shown: Shown) -> None:
    lines = shown("+preset=digits", "trainer.num_iterations=7")
    for key in flat(to_plain(compose("+preset=digits"))):
        name = next((name for name in ("instances.families", "evaluation.schedule") if key.startswith(name)), key)
        assert len(line(lines, f"{name}=").split("  ")) > 2, key
    assert "  trainer.num_iterations=7  " in line(lines, "trainer.num_iterations=")
    assert "  name=...  " in line(lines, "name="), "it is made for each command"
    assert "after its pooling" in line(lines, "host.place_rows=")


@pytest.mark.parametrize("group", ["preset", "task", "debug", "sweep"])
def test_every_file_of_a_group_has_a_line_with_what_it_is(shown: Shown, group: str) -> None:
    lines = shown()
    for path in (CONF_DIR / group).glob("*.yaml"):
        sign = "" if group == "task" else "+"
        assert len(line(lines, f"{sign}{group}={path.stem} ").split("  ")) > 2


def test_files_of_ones_own_are_listed_too(shown: Shown, tmp_path: Path) -> None:
    (tmp_path / "preset").mkdir()
    (tmp_path / "preset" / "mine.yaml").write_text("# @package _global_\n# What I study.\nseed: 5\n")
    assert line(shown(f"--config-dir={tmp_path}"), "+preset=mine").endswith("  What I study.")


def test_a_command_lists_no_group_that_it_refuses(shown: Shown, esper: CommandLine) -> None:
    lines = shown(entry=EVALUATE)
    assert line(lines, "num_hosts=64")
    assert [each for each in lines if each.endswith(":")] == ["hydra/launcher:", "run:", "wandb:"]
    for group in TRAIN.groups:
        assert not any(f"{group}=" in each for each in lines)
        assert esper(f"+{group}=digits", "checkpoint=x", entry=EVALUATE)[0] == 2
