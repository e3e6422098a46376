"""Bad inputs and faults, as a user meets them: each ends in one line that helps, and nothing is lost.

Each row of the tables in ``cases_*.py`` is a line of bash, carried out by real processes of one warm interpreter
(:mod:`tests.warm`).
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attacks import (
    cases_checkpoints,
    cases_command_line,
    cases_configuration,
    cases_data,
    cases_devices,
    cases_evaluate,
    cases_folders,
    cases_hosts,
    cases_plugins,
    cases_report_and_watch,
    cases_shortages,
    cases_signals,
    cases_sweeps,
    cases_terminal,
)
from tests.attacks.attack import Attack, handled_badly
from tests.attacks.commands import carry_out, commands
from tests.warm import WarmPython

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are handed over by way of Linux's pidfd"),
]

AREAS = (
    cases_command_line,
    cases_configuration,
    cases_sweeps,
    cases_folders,
    cases_checkpoints,
    cases_data,
    cases_hosts,
    cases_plugins,
    cases_devices,
    cases_terminal,
    cases_signals,
    cases_shortages,
    cases_evaluate,
    cases_report_and_watch,
)
ATTACKS = [
    pytest.param(attack, id=f"{area.__name__.rpartition('cases_')[2]}-{attack.name}".replace(" ", "_"))
    for area in AREAS
    for attack in area.ATTACKS
]


@pytest.fixture(scope="module")
def environment(warm_python: WarmPython) -> Iterator[dict[str, str]]:
    with tempfile.TemporaryDirectory(prefix="esper-") as scratch:
        yield commands(warm_python, Path(scratch))


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_is_handled_well(attack: Attack, environment: dict[str, str], tmp_path: Path) -> None:
    outcome = carry_out(attack, environment, tmp_path)
    complaints = handled_badly(attack, outcome)
    assert not complaints, f"{attack.bash}\n{outcome.out[-2000:]}\n{outcome.err[-3000:]}"


def test_names_tell_attacks_apart() -> None:
    names = [parameter.id for parameter in ATTACKS]
    assert len(names) == len(set(names))
