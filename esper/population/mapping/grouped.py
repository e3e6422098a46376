"""The grouped mapping: R copies of a CNN become one CNN with R times the channels and grouped convolutions.

Features are ``[B, H, W, R, C]`` (or ``[B, R, F]`` once flattened), which a channels-last kernel with ``R*C`` channels
reads without a copy. Inside a module they are ``[B, R*C, H, W]`` and ``[B, R*F]``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.population.layout import ParameterLayout
from esper.population.mapping.base import Index, Program
from esper.population.mapping.norms import safe_norm_input
from esper.population.mapping.stacked import StackedFeatures, dense
from esper.population.mapping.tracing import (
    Forms,
    Parameters,
    Step,
    Values,
    check_flatten,
    check_zero_padding,
    compile_steps,
    elementwise,
    row_linear,
    run_steps,
)


@dataclass(frozen=True, slots=True)
class Shared:
    """One input ``[B, C, ...]`` that all rows see, kept single until a convolution expands it."""

    x: Tensor
    num_rows: int


class GroupedMapping(StackedFeatures):
    """Mapping that runs all rows as channel groups of one network."""

    name = "grouped"
    row_axis = -2

    def prepare(self, module: nn.Module) -> Program:
        return Program(module, ParameterLayout.of(module), compile_steps(module, FORMS))

    def pack(self, x: Tensor) -> Tensor:
        return (x.permute(1, 3, 4, 0, 2) if x.dim() == 5 else x.transpose(0, 1)).contiguous()

    def share(self, x: Tensor, num_rows: int) -> Shared:  # type: ignore[override]
        return Shared(x, num_rows)

    def unpack(self, features: Tensor) -> Tensor:
        return features.permute(3, 0, 4, 1, 2) if features.dim() == 5 else features.transpose(0, 1)

    def select(self, features: Tensor | Shared, rows: Index) -> Tensor | Shared:  # type: ignore[override]
        if isinstance(features, Shared):
            return Shared(features.x, len(rows))
        return super().select(features, rows)

    def evaluate(self, program: Program, parameters: Tensor, features: Tensor | Shared) -> Tensor:
        num_rows = parameters.shape[0]
        named = program.layout.unflatten(parameters)
        return _leave(run_steps(program.compiled, _enter(features), named, num_rows), num_rows)


def _enter(features: Tensor | Shared) -> Tensor | Shared:
    """Convert a feature to the form that grouped kernels read: ``[B, R*C, H, W]`` or ``[B, R*F]``."""
    if isinstance(features, Shared):
        return features
    if features.requires_grad and features.dim() == 5:
        features = dense(features)  # pooling passes on a gradient that is expanded over the map
    merged = features.flatten(-2)
    return merged.permute(0, 3, 1, 2) if merged.dim() == 4 else merged


def _leave(result: Tensor | Shared, num_rows: int) -> Tensor:
    x: Tensor = _fan_out(result)
    if x.dim() == 4:
        x = x.permute(0, 2, 3, 1)
    return x.reshape(*x.shape[:-1], num_rows, -1)


def _fan_out(x: Any) -> Any:
    """Copy a shared input once per row, for layers that need it stacked."""
    return x.x.repeat(1, x.num_rows, *([1] * (x.x.dim() - 2))) if isinstance(x, Shared) else x


def _conv(name: str, layer: nn.Conv2d, argument: Step) -> Step:
    check_zero_padding("grouped", name, layer)

    def step(values: Values, parameters: Parameters, num_rows: int) -> Tensor:
        x = argument(values, parameters, num_rows)
        weight = parameters[f"{name}.weight"].flatten(0, 1)
        bias = parameters[f"{name}.bias"].flatten() if layer.bias is not None else None
        groups = layer.groups * num_rows
        if isinstance(x, Shared) and layer.groups == 1:
            # All rows read the same channels: one dense convolution with R times the filters.
            x, groups = x.x, 1
        x = _fan_out(x).contiguous(memory_format=torch.channels_last)
        return F.conv2d(x, weight, bias, layer.stride, layer.padding, layer.dilation, groups)

    return step


def _group_norm(name: str, layer: nn.GroupNorm, argument: Step) -> Step:
    def step(values: Values, parameters: Parameters, num_rows: int) -> Tensor:
        weight = parameters[f"{name}.weight"].flatten() if layer.affine else None
        bias = parameters[f"{name}.bias"].flatten() if layer.affine else None
        x = safe_norm_input(_fan_out(argument(values, parameters, num_rows)))
        return F.group_norm(x, layer.num_groups * num_rows, weight, bias, layer.eps)

    return step


def _linear(name: str, layer: nn.Linear, argument: Step) -> Step:
    def step(values: Values, parameters: Parameters, num_rows: int) -> Tensor:
        x = _fan_out(argument(values, parameters, num_rows))
        rows = x.view(x.shape[0], num_rows, layer.in_features).transpose(0, 1)  # (R, B, F)
        return row_linear(name, layer, rows, parameters).transpose(0, 1).reshape(x.shape[0], -1)

    return step


def _flatten(name: str, layer: nn.Flatten, argument: Step) -> Step:
    check_flatten("grouped", name, layer)
    return elementwise(lambda x: x.flatten(1), [argument], _fan_out)


def _pool(name: str, layer: nn.Module, argument: Step) -> Step:
    return elementwise(layer, [argument], _fan_out)


FORMS = Forms(
    mapping="grouped",
    layers={
        nn.Conv2d: _conv,
        nn.GroupNorm: _group_norm,
        nn.Linear: _linear,
        nn.Flatten: _flatten,
        nn.AvgPool2d: _pool,
        nn.MaxPool2d: _pool,
        nn.AdaptiveAvgPool2d: _pool,
    },
    # [R, C, 1, 1] broadcasts against [B, R*C, H, W] as [1, R*C, 1, 1].
    parameter=lambda parameter: parameter.flatten(0, 1).unsqueeze(0),
    spatial_mean=lambda x: x.mean((2, 3), keepdim=True),
    operand=_fan_out,
)
