"""Rewriting of a traced module for many rows: one walk over its graph, one table of layer forms per mapping.

A module is traced once with ``torch.fx``. Each of its nodes becomes a step on values that hold all rows; layers that
treat channels independently are used as they are, the others through the mapping's own form. A layer without a form is
refused by name.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

Values = dict[str, Any]
Parameters = dict[str, Tensor]
Step = Callable[[Values, Parameters, int], Any]
"""Function that computes a node from the values of earlier ones, the stacked parameters by name, and the number of
rows.
"""

LayerForm = Callable[[str, Any, Step], Step]
"""Function that makes a step from a layer's name, the layer, and the step that yields its input."""

INPUT = "input"

ELEMENTWISE_LAYERS = (nn.ReLU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.Identity)
ELEMENTWISE_FUNCTIONS = frozenset(
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
ELEMENTWISE_METHODS = frozenset({"relu", "sigmoid", "tanh"})

HINT = "use env.mapping=vmap or env.mapping=loop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Forms:
    """A mapping's stacked forms of the nodes in a graph.

    Attributes:
        mapping: name of the mapping, for messages.
        layers: form of each kind of layer that is not elementwise.
        parameter: stacks a parameter ``[R, ...]`` that is used directly, so that it broadcasts against features.
        spatial_mean: ``x.mean((2, 3), keepdim=True)`` of every row.
        operand: converts a value to the operand of an elementwise function.
    """

    mapping: str
    layers: Mapping[type[nn.Module], LayerForm]
    parameter: Callable[[Tensor], Tensor]
    spatial_mean: Callable[[Tensor], Tensor]
    operand: Callable[[Any], Any] = lambda value: value


def compile_steps(module: nn.Module, forms: Forms) -> list[tuple[str, Step]]:
    """Trace a module into named steps; the last one is the result.

    Raises:
        ValueError: a layer or function has no form; the message names it.
    """
    steps: list[tuple[str, Step]] = []
    names: dict[fx.Node, str] = {}
    layers, attributes = dict(module.named_modules()), dict(module.named_parameters())
    if len(list(module.named_parameters(remove_duplicate=False))) > len(attributes):
        raise ValueError(
            f"the {forms.mapping} mapping has no form of layers that share a parameter; use env.mapping=vmap"
        )
    for node in _trace(module, forms).nodes:
        if node.op == "placeholder":
            names[node] = INPUT
        elif node.op == "output":
            steps.append(("output", _fetch(node.args[0], names)))
        else:
            names[node] = node.name
            steps.append((node.name, _step(node, layers, attributes, names, forms)))
    return steps


class _Tracer(fx.Tracer):
    """Tracer that enters all modules except torch's own and those that have a form."""

    def __init__(self, forms: Forms) -> None:
        super().__init__()
        self._kinds = tuple(forms.layers)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, self._kinds) or super().is_leaf_module(m, module_qualified_name)


def _trace(module: nn.Module, forms: Forms) -> fx.Graph:
    try:
        return _Tracer(forms).trace(module)
    except (TypeError, fx.proxy.TraceError) as error:  # a loop over, or a branch on, a traced value
        raise ValueError(f"the {forms.mapping} mapping cannot trace {type(module).__name__}: {error}") from error


def run_steps(steps: Sequence[tuple[str, Step]], x: Any, parameters: Parameters, num_rows: int) -> Any:
    """Run compiled steps on an input and return the result."""
    values: Values = {INPUT: x}
    result: Any = x
    for name, step in steps:
        values[name] = result = step(values, parameters, num_rows)
    return result


def elementwise(function: Callable[..., Tensor], arguments: Sequence[Step], operand: Callable[[Any], Any]) -> Step:
    """Make a step that applies a function unchanged."""

    def step(values: Values, parameters: Parameters, num_rows: int) -> Tensor:
        operands = [operand(argument(values, parameters, num_rows)) for argument in arguments]
        if len({value.dim() for value in operands if isinstance(value, Tensor)}) > 1:
            # Broadcasting aligns the last axes: rows would meet channels or pixels, silently if the sizes agree.
            raise ValueError(
                "a parameter has fewer axes than the features it meets; write it with one for each of a sample's, such "
                f"as [C, 1, 1], or {HINT}"
            )
        return function(*operands)

    return step


def _fetch(argument: Any, names: dict[fx.Node, str]) -> Step:
    """Make a step that reads one traced argument: the value of an earlier node, or a constant."""
    if isinstance(argument, fx.Node):
        source = names[argument]
        return lambda values, parameters, num_rows: values[source]
    return lambda values, parameters, num_rows: argument


def _check_parameter(name: str, forms: Forms, parameters: dict[str, nn.Parameter]) -> None:
    """Refuse a value that is not a parameter, and a parameter that would not broadcast against the samples of all
    rows.
    """
    if name not in parameters:
        raise ValueError(f"the {forms.mapping} mapping has no form of {name!r}, which is no parameter; {HINT}")
    shape = tuple(parameters[name].shape)
    if not shape:
        raise ValueError(f"the {forms.mapping} mapping: {name!r} has no axis of channels; {HINT}")
    if len(shape) > 2 and shape[0] == 1 and max(shape) > 1:
        raise ValueError(f"the {forms.mapping} mapping: {name!r} {list(shape)} has an axis of samples; {HINT}")


def _step(
    node: fx.Node,
    layers: dict[str, nn.Module],
    attributes: dict[str, nn.Parameter],
    names: dict[fx.Node, str],
    forms: Forms,
) -> Step:
    target = str(node.target)
    if node.op == "get_attr":
        _check_parameter(target, forms, attributes)
        return lambda values, parameters, num_rows: forms.parameter(parameters[target])
    arguments = [_fetch(argument, names) for argument in node.args]
    if node.op == "call_module":
        return _layer(target, layers[target], arguments[0], forms)
    # Traced functions list even arguments left at their defaults.
    options = {key: value for key, value in node.kwargs.items() if (key, value) != ("inplace", False)}
    if node.op == "call_function" and node.target in ELEMENTWISE_FUNCTIONS and not options:
        return elementwise(node.target, arguments, forms.operand)
    if node.op == "call_method" and target in ELEMENTWISE_METHODS:
        return elementwise(getattr(torch, target), arguments, forms.operand)
    if (
        node.op == "call_method"
        and target == "mean"
        and node.args[1:] == ((2, 3),)
        and node.kwargs == {"keepdim": True}
    ):
        return elementwise(forms.spatial_mean, arguments[:1], forms.operand)
    what = getattr(node.target, "__name__", target)
    known = ", ".join(layer.__name__ for layer in (*forms.layers, *ELEMENTWISE_LAYERS))
    raise ValueError(
        f"the {forms.mapping} mapping has no form of {what!r}; use env.mapping=vmap or env.mapping=loop, "
        f"or build the module from {known}"
    )


def _layer(name: str, layer: nn.Module, argument: Step, forms: Forms) -> Step:
    if isinstance(layer, ELEMENTWISE_LAYERS):
        return elementwise(layer, [argument], forms.operand)
    for kind, form in forms.layers.items():
        if isinstance(layer, kind):
            return form(name, layer, argument)
    raise ValueError(
        f"the {forms.mapping} mapping has no form of layer {name!r} ({type(layer).__name__}); "
        "use env.mapping=vmap or env.mapping=loop"
    )


def check_zero_padding(mapping: str, name: str, layer: nn.Conv2d) -> None:
    """Refuse a convolution whose padding is not zeros."""
    if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        raise ValueError(
            f"the {mapping} mapping pads by a number of zeros only, layer {name!r} has padding={layer.padding!r}, "
            f"padding_mode={layer.padding_mode!r}"
        )


def check_flatten(mapping: str, name: str, layer: nn.Flatten) -> None:
    """Refuse a flattening that keeps more than the batch axis."""
    if (layer.start_dim, layer.end_dim) != (1, -1):
        raise ValueError(f"the {mapping} mapping flattens from axis 1 to the last only, layer {name!r} does not")


def row_linear(name: str, layer: nn.Linear, rows: Tensor, parameters: Parameters) -> Tensor:
    """Apply a linear layer to every row: ``[R, B, ..., F] -> [R, B, ..., O]``."""
    out = torch.bmm(rows.flatten(1, -2), parameters[f"{name}.weight"].transpose(1, 2))
    if layer.bias is not None:
        out = _RowBias.apply(out, parameters[f"{name}.bias"])  # type: ignore[no-untyped-call]
    result: Tensor = out.view(*rows.shape[:-1], -1)
    return result


class _RowBias(torch.autograd.Function):
    """Addition ``x [R, B, O] + bias [R, O]``, with the bias's gradient summed in float64.

    A float32 sum takes its samples in an order that depends on the row's position in the stack; in float64 the
    difference disappears in rounding, so that a row's bits do not depend on its position.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        return x + bias.unsqueeze(1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, gradient.sum(1, dtype=torch.float64).to(gradient.dtype)
