"""Plugins that do not import, exit, or register blueprints that cannot be."""

from __future__ import annotations

from tests.attacks.attack import Attack, goes_on, refused

PLUGIN = """\
import sys

import torch
from torch import nn
from esper.blueprints import register_blueprint
from esper.blueprints.residual import Residual

kind = {kind!r}


class Module(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 1)
        self.scale = nn.Parameter(torch.zeros(channels, 1, 1))

    def initialise(self, generator):
        nn.init.zeros_(self.scale)

    def forward(self, x):
        added = self.scale * self.conv(x)
        if kind == "no_identity":
            return self.conv(x)
        if kind == "tuple":
            return (x + added,)
        if kind == "other_shape":
            return (x + added)[:, :, :-1]
        if kind == "not_finite":
            return x + added / 0
        if kind == "no_gradient":
            return x.clone()
        if kind == "raises":
            raise RuntimeError("of my own")
        if kind == "noise":
            return x + self.scale * torch.randn_like(x)
        return x + added


if kind == "import_exits":
    sys.exit(0)
if kind == "import_raises":
    raise RuntimeError("of my own")
if kind == "built_in":
    register_blueprint("cnn", "norm", Module)
elif kind == "no_family":
    register_blueprint("nope", "mine", Module)
elif kind == "nothing":
    register_blueprint("cnn", "mine", lambda channels: None)
else:
    register_blueprint("cnn", "mine", Module)
"""


def plugin(kind: str, says: str) -> Attack:
    """Expect a refusal of a kind of plugin."""
    command = "esper.train $tiny 'plugins=[mine]'"
    return refused(f"plugin of kind {kind}", command, f"plugins: .*{says}", files={"mine.py": PLUGIN.format(kind=kind)})


def words(name: str, words: str, says: str) -> Attack:
    """Expect a refusal of arguments about plugins and blueprints."""
    return refused(name, f"esper.train $tiny {words}", says)


ATTACKS = [
    plugin("import_exits", r"cannot import 'mine': it asks to exit with code 0 \(mine.py:\d+\)"),
    plugin("import_raises", r"cannot import 'mine': RuntimeError: of my own \(mine.py:\d+\)"),
    plugin("built_in", "there is a cnn blueprint 'norm' already"),
    plugin("no_family", "no blueprints for host family 'nope'; known families: cnn, transformer"),
    plugin("nothing", r"blueprint 'mine' of cnn hosts \(mine.py:\d+\): it must be a torch.nn.Module, not a NoneType"),
    plugin("no_identity", "blueprint 'mine' .* at birth it changes its input by up to"),
    plugin("tuple", "blueprint 'mine' .* it must return one tensor, not a tuple"),
    plugin("other_shape", r"blueprint 'mine' .* it must return \[2, 8, 4, 4\], got \[2, 8, 3, 4\]"),
    plugin("not_finite", "blueprint 'mine' .* not finite"),
    plugin("no_gradient", "blueprint 'mine' .* (gradient|backward)"),
    plugin("raises", r"blueprint 'mine' .* RuntimeError: of my own \(mine.py:\d+\)"),
    plugin("noise", "blueprint 'mine' .*random numbers"),
    refused(
        "plugin with a mistake",
        "esper.train $tiny 'plugins=[mine]'",
        r"SyntaxError: .* \(mine.py:1\)",
        files={"mine.py": "def (:\n"},
    ),
    words("plugin of no module", "'plugins=[nope]'", "plugins: cannot import 'nope': ModuleNotFoundError"),
    words("plugin that is no list", "plugins=nope", "plugins"),
    words(
        "blueprint misspelt", "slots.blueprints=[nrm]", "slots.blueprints: unknown 'nrm'.*; choose from conv_light, "
    ),
    words("no blueprints", "slots.blueprints=[]", "slots.blueprints must not be empty"),
    words("one blueprint twice", "slots.blueprints=[norm,norm]", "slots.blueprints names norm more than once"),
    words("slot of no place", "slots.ids=[r9c9] slots.num_slots=1", "slots.ids.*r9c9"),
    words("more slots than places", "slots.num_slots=9", "the host has 3: r0c0, r0c1, r0c2"),
    words("no slots", "slots.num_slots=0", "slots.num_slots must be at least 1, got 0"),
    goes_on(
        "plugin within reason", "esper.train $tiny 'plugins=[mine]'", files={"mine.py": PLUGIN.format(kind="fine")}
    ),
]
