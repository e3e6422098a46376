"""A user's own networks that cannot be hosts, and those that can."""

from __future__ import annotations

from tests.attacks.attack import Attack, fails, goes_on, refused

NET = """\
import random

import numpy
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.stem = nn.Conv2d(1, 4, 3, stride=2, padding=1)
        self.body = nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.LazyLinear(10) if kind == "lazy" else nn.Linear(4, 10)
        if kind == "batch_norm":
            self.body = nn.Sequential(self.body, nn.BatchNorm2d(4))
        if kind == "dropout":
            self.body = nn.Sequential(self.body, nn.Dropout(0.5))
        if kind == "spectral":
            self.body = nn.utils.parametrizations.spectral_norm(self.body)
        if kind == "nan_weights":
            self.head.weight.data.fill_(float("nan"))
        if kind == "frozen":
            self.requires_grad_(False)

    def forward(self, x):
        kind = self.kind
        if kind == "in_place":
            x.sub_(0.1)
        x = torch.relu(self.stem(x))
        if kind == "functional_dropout":
            x = F.dropout(x, 0.5)
        if kind == "noise":
            x = x + torch.randn_like(x)
        if kind == "numpy_noise":
            x = x + numpy.random.rand()
        if kind == "not_finite":
            x = x / 0
        if kind == "other_samples":
            x = x - x.mean(0, keepdim=True)
        if kind == "exits":
            raise SystemExit(3)
        if kind == "raises":
            raise RuntimeError("of my own\\nin two lines")
        if kind == "too_large":
            torch.empty(10**14)
        x = self.head(torch.relu(self.body(x)).mean((2, 3)))
        return {"two": (x, x), "few": x[:, :7], "classes": x.argmax(1)}.get(kind, x)


def build(kind="fine"):
    if kind == "builder_raises":
        raise ValueError("no data here")
    if kind == "builder_exits":
        raise SystemExit(0)
    if kind == "nothing":
        return None
    net = Net(kind)
    if kind == "varies":
        net.body = nn.Conv2d(4, 4, random.choice([1, 3]), padding="same")
    if kind == "numpy_weights":
        net.head.weight.data = torch.tensor(numpy.random.randn(10, 4)).float()
    return net
"""
OWN = {"net.py": NET}


def network(kind: str, says: str) -> Attack:
    """Expect a refusal of one of the networks above."""
    name = f"network of kind {kind}"
    return refused(name, f"esper.train $own '+host.arguments={{kind: {kind}}}'", f"host.target: .*{says}", files=OWN)


def words(name: str, words: str, says: str) -> Attack:
    """Expect a refusal of arguments about the network."""
    return refused(name, f"esper.train $own {words}", says, files=OWN)


ATTACKS = [
    network("lazy", "'head.weight' has no shape before the first pass"),
    network("nan_weights", "not finite, nor is its parameter 'head.weight'"),
    network("batch_norm", "layer 'body.1' is a BatchNorm2d: use GroupNorm or LayerNorm"),
    network("dropout", "layer 'body.1' is a Dropout: leave it out"),
    network("spectral", "keep no state, many hosts share one module"),
    network("frozen", r"no parameter is trained \(requires_grad\)"),
    network("in_place", "changes its input in place"),
    network("functional_dropout", "draws random numbers of torch"),
    network("noise", "draws random numbers of torch"),
    network("numpy_noise", "draws random numbers of numpy"),
    network("not_finite", "not finite"),
    network("other_samples", "the output for a sample changes .* when another one changes"),
    network("exits", r"it asks to exit with code 3 \(net.py:\d+\)"),
    network("raises", r"RuntimeError: of my own \(net.py:\d+\)"),
    network("two", "it must return one tensor, not a tuple"),
    network("few", r"must return \[2, 10\], got \[2, 7\]"),
    network("classes", r"must return \[2, 10\], got \[2\]"),
    network("builder_raises", r"ValueError: no data here \(net.py:\d+\)"),
    network("builder_exits", r"it asks to exit with code 0 \(net.py:\d+\)"),
    network("nothing", "returns a NoneType, not a torch.nn.Module"),
    network("varies", "all builds must be alike but for their numbers"),
    words("network of no module", "host.target=nope:build", "host.target: cannot import 'nope'"),
    words("network without function", "host.target=net", "host.target must be package.module:function, got 'net'"),
    words(
        "network of no function", "host.target=net:nope", "host.target: net has no function 'nope'; it has Net, build"
    ),
    words("network without a name", "host.target=", "host.target must be package.module:function, got ''"),
    words("network beside", "host.target=.net:build", "host.target must name the package from its top"),
    words(
        "slot of no layer", "host.slots=[nope] slots.num_slots=1", "has no submodule 'nope'; it has stem, body, head"
    ),
    words("slots of no layers", "host.slots=[]", "host.slots must not be empty"),
    words("one layer twice", "host.slots=[stem,stem]", "host.slots names stem more than once"),
    words("fewer layers than slots", "host.slots=[stem]", "slots.num_slots=2 asks for more places than there are"),
    words("slot where nothing is a map", "host.slots=[head] slots.num_slots=1", r"the output of 'head' is \[2, 10\]"),
    words(
        "argument of no parameter",
        "'+host.arguments={nope: 1}'",
        r"host.arguments=.* does not run: TypeError: .*'nope'",
    ),
    words("network of images for text", "task=textbook", r"does not run on \[2, 128\]"),
    words("fault of built-in hosts", "'+instances.families={starved_0: 1}'", "custom hosts have no 'starved'"),
    words("mapping that does not know a layer", "env.mapping=grouped", "env.mapping.*grouped.*'mean'"),
    words("mapping that does not know a layer either", "env.mapping=matmul", "env.mapping.*matmul.*'mean'"),
    fails(
        "network of 400 terabytes",
        "esper.train $own '+host.arguments={kind: too_large}'",
        "out of memory .*400000000000000 bytes",
        files=OWN,
    ),
    goes_on("network within reason", "esper.train $own", files=OWN),
    goes_on("weights drawn by numpy", "esper.train $own '+host.arguments={kind: numpy_weights}'", files=OWN),
]
