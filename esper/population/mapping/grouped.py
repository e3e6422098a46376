"""Rows as channel groups: R copies of a CNN become one CNN with R times the channels and grouped convolutions.

Features are ``[B, H, W, R, C]`` (or ``[B, R, F]`` once flattened), which is what a channels-last kernel with ``R*C``
channels reads without a copy. A module is traced once with ``torch.fx`` and each of its layers is replaced by its
grouped form; a layer without one is refused by name.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from esper.population.layout import ParameterLayout
from esper.population.mapping.base import Index, Program
from esper.population.mapping.norms import safe_norm_input
from esper.population.mapping.stacked import StackedFeatures

# Layers, functions and methods that treat all channels alike need no change.
CHANNELWISE_LAYERS = (
    nn.ReLU,
    nn.GELU,
    nn.SiLU,
    nn.Sigmoid,
    nn.Tanh,
    nn.Identity,
    nn.AvgPool2d,
    nn.MaxPool2d,
    nn.AdaptiveAvgPool2d,
)
CHANNELWISE_FUNCTIONS = frozenset(
    {
        operator.add,
        operator.sub,
        operator.mul,
        torch.add,
        torch.sub,
        torch.mul,
        torch.relu,
        torch.sigmoid,
        torch.tanh,
        F.relu,
    }
)
CHANNELWISE_METHODS = frozenset({"relu", "sigmoid", "tanh"})

Values = dict[str, Any]
Parameters = dict[str, Tensor]
Step = Callable[[Values, Parameters, int], Any]


@dataclass(frozen=True, slots=True)
class Shared:
    """One input ``[B, C, ...]`` that all rows see, kept single until a convolution fans it out."""

    x: Tensor
    num_rows: int


class GroupedMapping(StackedFeatures):
    """Runs all rows as channel groups of one network."""

    name = "grouped"
    row_axis = -2

    def prepare(self, module: nn.Module) -> Program:
        return Program(module, ParameterLayout.of(module), _compile(module))

    def pack(self, x: Tensor) -> Tensor:
        return (x.permute(1, 3, 4, 0, 2) if x.dim() == 5 else x.transpose(0, 1)).contiguous()

    def share(self, x: Tensor, num_rows: int) -> Shared:
        return Shared(x, num_rows)

    def unpack(self, features: Tensor) -> Tensor:
        return features.permute(3, 0, 4, 1, 2) if features.dim() == 5 else features.transpose(0, 1)

    def select(self, features: Tensor | Shared, rows: Index) -> Tensor | Shared:  # type: ignore[override]
        if isinstance(features, Shared):
            return Shared(features.x, len(rows))
        return super().select(features, rows)

    def call(self, program: Program, parameters: Tensor, features: Tensor | Shared) -> Tensor:
        num_rows = parameters.shape[0]
        named = program.layout.unflatten(parameters)
        values: Values = {}
        result: Any = None
        for name, step in program.compiled:
            values[name] = result = step(values, named, num_rows) if name != "input" else _enter(features)
        return _leave(result, num_rows)


def _enter(features: Tensor | Shared) -> Tensor | Shared:
    """Open a feature as what grouped kernels read: ``[B, R*C, H, W]`` or ``[B, R*F]``."""
    if isinstance(features, Shared):
        return features
    merged = features.flatten(-2)
    return merged.permute(0, 3, 1, 2) if merged.dim() == 4 else merged


def _leave(result: Tensor | Shared, num_rows: int) -> Tensor:
    x: Tensor = _fan_out(result)
    if x.dim() == 4:
        x = x.permute(0, 2, 3, 1)
    return x.reshape(*x.shape[:-1], num_rows, -1)


def _fan_out(x: Any) -> Any:
    """A shared input as one copy per row, for layers that need it stacked."""
    return x.x.repeat(1, x.num_rows, *([1] * (x.x.dim() - 2))) if isinstance(x, Shared) else x


def _compile(module: nn.Module) -> list[tuple[str, Step]]:
    """Trace a module into named steps on grouped values; the last step is the result."""
    steps: list[tuple[str, Step]] = []
    renamed: dict[fx.Node, str] = {}
    graph = fx.Tracer().trace(module)
    layers = dict(module.named_modules())
    for node in graph.nodes:
        if node.op == "placeholder":
            renamed[node] = "input"
            steps.append(("input", _unreachable))
        elif node.op == "output":
            steps.append(("output", _fetch(node.args[0], renamed)))
        else:
            renamed[node] = node.name
            steps.append((node.name, _step(node, layers, renamed)))
    return steps


def _unreachable(values: Values, named: Parameters, num_rows: int) -> Any:
    raise AssertionError("the input is given by the caller")


def _fetch(argument: Any, renamed: dict[fx.Node, str]) -> Step:
    """A step that reads one traced argument: the value of an earlier node, or a constant."""
    if isinstance(argument, fx.Node):
        source = renamed[argument]
        return lambda values, named, num_rows: values[source]
    return lambda values, named, num_rows: argument


def _step(node: fx.Node, layers: dict[str, nn.Module], renamed: dict[fx.Node, str]) -> Step:
    if node.op == "get_attr":
        return _parameter(str(node.target))
    arguments = [_fetch(argument, renamed) for argument in node.args]
    if node.op == "call_module":
        return _layer(str(node.target), layers[str(node.target)], arguments[0])
    if node.op == "call_function" and node.target in CHANNELWISE_FUNCTIONS and not node.kwargs:
        return _channelwise(node.target, arguments)
    if node.op == "call_method" and node.target in CHANNELWISE_METHODS:
        return _channelwise(getattr(torch, str(node.target)), arguments)
    if node.op == "call_method" and node.target == "mean" and tuple(node.args[1]) == (2, 3):  # type: ignore[arg-type]
        return _spatial_mean(arguments[0])
    raise ValueError(
        f"the grouped mapping has no grouped form of {node.target!r}; use env.mapping=vmap or env.mapping=loop, "
        f"or build the module from {', '.join(layer.__name__ for layer in (*GROUPED_LAYERS, *CHANNELWISE_LAYERS))}"
    )


def _parameter(name: str) -> Step:
    """A parameter ``[R, C, 1, 1]`` used directly becomes ``[R*C, 1, 1]``, which broadcasts against the feature."""
    return lambda values, named, num_rows: named[name].flatten(0, 1)


def _channelwise(function: Callable[..., Tensor], arguments: Sequence[Step]) -> Step:
    def step(values: Values, named: Parameters, num_rows: int) -> Tensor:
        return function(*(_fan_out(argument(values, named, num_rows)) for argument in arguments))

    return step


def _spatial_mean(argument: Step) -> Step:
    def step(values: Values, named: Parameters, num_rows: int) -> Tensor:
        x: Tensor = _fan_out(argument(values, named, num_rows))
        return x.mean((2, 3), keepdim=True)

    return step


def _layer(name: str, layer: nn.Module, argument: Step) -> Step:
    if isinstance(layer, CHANNELWISE_LAYERS):
        return _channelwise(layer, [argument])
    for kind, grouped in GROUPED_LAYERS.items():
        if isinstance(layer, kind):
            return grouped(name, layer, argument)
    raise ValueError(
        f"the grouped mapping has no grouped form of layer {name!r} ({type(layer).__name__}); "
        "use env.mapping=vmap or env.mapping=loop"
    )


def _conv(name: str, layer: nn.Conv2d, argument: Step) -> Step:
    if layer.padding_mode != "zeros":
        raise ValueError(f"the grouped mapping pads with zeros only, layer {name!r} asks for {layer.padding_mode!r}")

    def step(values: Values, named: Parameters, num_rows: int) -> Tensor:
        x = argument(values, named, num_rows)
        weight = named[f"{name}.weight"].flatten(0, 1)
        bias = named[f"{name}.bias"].flatten() if layer.bias is not None else None
        groups = layer.groups * num_rows
        if isinstance(x, Shared) and layer.groups == 1:
            # All rows read the same channels: one dense convolution with R times the filters.
            x, groups = x.x, 1
        x = _fan_out(x).contiguous(memory_format=torch.channels_last)
        return F.conv2d(x, weight, bias, layer.stride, layer.padding, layer.dilation, groups)

    return step


def _group_norm(name: str, layer: nn.GroupNorm, argument: Step) -> Step:
    def step(values: Values, named: Parameters, num_rows: int) -> Tensor:
        weight = named[f"{name}.weight"].flatten() if layer.affine else None
        bias = named[f"{name}.bias"].flatten() if layer.affine else None
        x = safe_norm_input(_fan_out(argument(values, named, num_rows)))
        return F.group_norm(x, layer.num_groups * num_rows, weight, bias, layer.eps)

    return step


def _linear(name: str, layer: nn.Linear, argument: Step) -> Step:
    def step(values: Values, named: Parameters, num_rows: int) -> Tensor:
        x = _fan_out(argument(values, named, num_rows))
        rows = x.view(x.shape[0], num_rows, layer.in_features).transpose(0, 1)  # (R, B, F)
        out = torch.bmm(rows, named[f"{name}.weight"].transpose(1, 2))  # (R, B, O)
        if layer.bias is not None:
            # A product with ones, not a broadcast: its backward then sums each row by itself, in an order that does
            # not depend on where the row is in the stack.
            out = out + torch.bmm(rows.new_ones(*rows.shape[:2], 1), named[f"{name}.bias"].unsqueeze(1))
        return out.transpose(0, 1).reshape(x.shape[0], -1)

    return step


def _flatten(name: str, layer: nn.Flatten, argument: Step) -> Step:
    if (layer.start_dim, layer.end_dim) != (1, -1):
        raise ValueError(f"the grouped mapping flattens from axis 1 to the last only, layer {name!r} does not")
    return _channelwise(lambda x: x.flatten(1), [argument])


GROUPED_LAYERS: dict[type[nn.Module], Callable[..., Step]] = {
    nn.Conv2d: _conv,
    nn.GroupNorm: _group_norm,
    nn.Linear: _linear,
    nn.Flatten: _flatten,
}
