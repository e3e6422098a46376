"""Configuration files of the user's own, with mistakes."""

from __future__ import annotations

from tests.attacks.attack import Attack, goes_on, refused

HEAD = "# @package _global_\ndefaults:\n  - smoke\n  - _self_\n"


def preset(name: str, content: str | bytes, says: str) -> Attack:
    """Expect a refusal of a preset in a user's folder."""
    return refused(
        name,
        "esper.train --config-dir conf +preset=mine",
        f"preset/mine.yaml.*{says}",
        files={"conf/preset/mine.yaml": content},
    )


ATTACKS = [
    preset("preset with text for a number", f"{HEAD}ppo:\n  lr: fast\n", "ppo.lr must be a number, got 'fast'"),
    preset("preset with an unknown key", f"{HEAD}ppo:\n  lrr: 1\n", "unknown key 'ppo.lrr'.*; keys of ppo: lr, "),
    preset("preset with an unknown section", f"{HEAD}pop:\n  lr: 1\n", "unknown key 'pop'.*; keys and sections: "),
    preset("preset with an unknown choice", f"{HEAD}amp: fp17\n", "amp: unknown 'fp17'.*; choose from off, bf16, fp16"),
    preset("preset with a section for a value", f"{HEAD}seed:\n  a: 1\n", "seed"),
    preset("preset with a value for a section", f"{HEAD}ppo: 3\n", "ppo"),
    preset("preset with a bracket left open", f"{HEAD}ppo:\n  lr: [\n", r"line \d+: "),
    preset("preset with a tab", f"{HEAD}ppo:\n\tlr: 1\n", r"line \d+: "),
    preset("preset with one key twice", f"{HEAD}seed: 1\nseed: 2\n", "seed"),
    preset("preset that is a list", "- a\n", "a configuration file has keys and values, not a list"),
    preset("preset that is no text", b"\xff\xfe", "is not UTF-8 text"),
    preset("preset upon one that is not there", "# @package _global_\ndefaults:\n  - nope\n", "nope"),
    refused(
        "values of a preset out of range",
        "esper.train --config-dir conf +preset=mine",
        "trainer.num_envs must be at least 1, got 0",
        files={"conf/preset/mine.yaml": f"{HEAD}trainer:\n  num_envs: 0\n"},
    ),
    refused(
        "another configuration altogether",
        "esper.train --config-path /tmp",
        "--config-path=/tmp would take the place of Esper's own configuration: .*--config-dir=<folder>",
    ),
    goes_on(
        "preset within reason",
        "esper.train --config-dir conf $tiny +more=mine",
        files={"conf/more/mine.yaml": "# @package _global_\nseed: 5\n"},
    ),
]
