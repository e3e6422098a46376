"""Measure what a learned controller uses: ``python -m experiments.uses.reproduce``, from the repository's root.

Play the shipped controller of ``digits_pays``, or another one, on held-out hosts as it is and deprived of one thing at
a time, and write the table of README.md.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import esper
from esper.experiment.checkpoint import checkpoint_path, config_of, load_checkpoint
from esper.population import PROBE_NAMES
from esper.runtime.controller_names import LEARNED, NEVER
from esper.runtime.terminal import secure
from experiments.tables import between_markers, interval
from experiments.uses.ablations import ABLATIONS, GROUPS

SHIPPED = Path("esper/controllers/shipped/digits_pays.pt")
PAGE = Path(__file__).with_name("README.md")
HEAD = ("it reads", "return", "learned − it", "test %", "modules kept")
TEXTS = {
    LEARNED: "everything, as trained",
    "learned_forgetful": "no memory: the state of its LSTM is zero at every step",
    "frozen_probes": "slot probes as before the first epoch",
    **{f"swapped_{group}": f"{group.replace('_', ' ')} of another host" for group in GROUPS},
    NEVER: "(never grows)",
}
"""Rows of the table by name of controller, in their order."""


def playable(probes: Collection[str]) -> list[str]:
    """Return the ablations of a controller that observes some slot probes, or none of them."""
    lost = {f"swapped_{name}" for name in PROBE_NAMES if name not in probes}
    if not probes:
        lost |= {"frozen_probes", "swapped_probes"}
    return [name for name in ABLATIONS if name not in lost]


def rows(result: Mapping[str, Any]) -> list[str]:
    """Format an evaluation as the rows of a Markdown table."""
    found = {controller["name"]: controller for controller in result["controllers"]}
    return ["| " + " | ".join(_cells(TEXTS[name], found[name])) + " |" for name in TEXTS if name in found]


def _cells(text: str, controller: Mapping[str, Any]) -> Sequence[str]:
    learned = controller["name"] == LEARNED
    return (
        text,
        interval(controller["episode_return"], "+.1f"),
        "" if learned else interval(controller["return_difference"], "+.1f"),
        interval(controller["test_accuracy"], ".1f", 100),
        f"{controller['num_fossilized']:.2f}",
    )


def main() -> None:
    """Play, and write the table."""
    parser = argparse.ArgumentParser(prog="python -m experiments.uses.reproduce", description=__doc__)
    parser.add_argument("--checkpoint", type=Path, default=SHIPPED, help=f"controller (default {SHIPPED})")
    parser.add_argument("--hosts", type=int, default=64, help="held-out hosts (default 64)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    path = checkpoint_path(str(options.checkpoint))
    config = config_of(load_checkpoint(path), path)
    with tempfile.TemporaryDirectory() as folder:
        evaluated = esper.run_evaluation(
            options.checkpoint,
            Path(folder) / "uses",
            num_hosts=options.hosts,
            controllers=[LEARNED, *playable(config.observation.slot_probes), NEVER],
            plugins=["experiments.uses.ablations"],
            sampled=False,
            console="off",
        )
        result = json.loads(evaluated.result.read_text(encoding="utf-8"))
    lines = [f"| {' | '.join(HEAD)} |", "|---|" + "---|" * (len(HEAD) - 1), *rows(result)]
    print("\n".join(lines))
    if (options.checkpoint, options.hosts) == (SHIPPED, 64):
        facts = f"Commit `{str(result['git_sha'])[:9]}`, {options.hosts} held-out hosts, 95 % intervals over hosts."
        text = between_markers(PAGE.read_text(encoding="utf-8"), "table", "\n".join(lines))
        PAGE.write_text(between_markers(text, "facts", facts), encoding="utf-8")


if __name__ == "__main__":
    secure()
    main()
