"""Make the controller that Esper ships of a finished run.

``python -m experiments.ship outputs/<run> digits_pays +preset=digits_pays seed=1``: the folder, the name, and the words
of the run, which are compared with the configuration in its checkpoint.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from esper.config import compose, to_plain
from esper.config.identity import NOT_OF_A_RUN, differences
from esper.experiment.checkpoint import load_checkpoint
from esper.experiment.shipped import FOLDER, ship
from esper.runtime.run_folder import RunFolder
from esper.runtime.terminal import secure

NOT_OF_TRAINING = (*NOT_OF_A_RUN, "evaluation")
"""Keys of a configuration without effect on the policy."""
MEASURES = ("episode_return", "val_accuracy", "test_accuracy", "added_parameters", "num_fossilized")


def origin(run: Path, words: Sequence[str]) -> dict[str, Any]:
    """Return the provenance of a finished run: its command, commit, seed, date and closing table.

    Args:
        run: its folder.
        words: arguments of ``python -m esper.train`` that it was started with.

    Raises:
        ValueError: the run has no result, or the words are of another configuration.
    """
    folder = RunFolder(run)
    if not folder.result.exists():
        raise ValueError(f"{run} has no result.json: ship a finished run, or resume this one")
    saved = load_checkpoint(folder.last_checkpoint)["config"]
    if others := differences(saved, to_plain(compose(*words)), NOT_OF_TRAINING):
        raise ValueError(f"{run} was not started with {' '.join(words) or 'no words'}: it has {'; '.join(others)}")
    result = json.loads(folder.result.read_text(encoding="utf-8"))
    return {
        "command": " ".join(["python -m esper.train", *words]),
        "commit": result["git_sha"],
        "seed": result["seed"],
        "date": json.loads(folder.status_file.read_text(encoding="utf-8"))["updated"][:10],
        "versions": result["versions"],
        "num_hosts": result["controllers"][0]["num_hosts"],
        "evaluation": {row["name"]: {name: row[name] for name in MEASURES} for row in result["controllers"]},
        "return_differences": result["return_differences"],
    }


def main() -> None:
    """Parse the command line and write the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="folder of a finished run")
    parser.add_argument("name", help="name of the controller")
    parser.add_argument("words", nargs="*", help="arguments of python -m esper.train that the run was started with")
    arguments = parser.parse_args()
    told = origin(arguments.run, arguments.words)
    path = ship(RunFolder(arguments.run).last_checkpoint, arguments.name, told, FOLDER)
    print(f"{path}: {path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    secure()
    sys.exit(main())
