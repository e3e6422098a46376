"""The matmul mapping: convolutions on tiny maps as matrix products, all rows in one batched product.

On a 4x4 map with 8 channels a convolution is a 128x128 matrix. Building it costs a product with a constant, and the
batched product then runs near the machine's peak whatever the number of rows, while a convolution kernel spends most of
its time on set-up. The gain is largest for seed modules, of which a blueprint may have one or two rows at a time. A
layer with a large matrix runs as a grouped convolution.

The layers of a transformer are batched products already.

Features are ``[R, B, C, H, W]``, ``[R, B, F]`` once flattened, or ``[R, B, T, C]``.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.hosts.attention import CausalAttention
from esper.hosts.transformer import Embedding, TiedHead
from esper.population.layout import ParameterLayout
from esper.population.mapping.base import Program
from esper.population.mapping.stacked import StackedFeatures
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

MAX_MATRIX = 1 << 16
"""Largest number of entries of one row's matrix; beyond it a convolution kernel is faster."""


class MatmulMapping(StackedFeatures):
    """Mapping that runs all rows as batched matrix products."""

    name = "matmul"

    def __init__(self, *, compiles: bool = False) -> None:
        super().__init__(compiles=compiles)
        if compiles:  # only then, because it imports the compiler, which takes as long as importing torch
            # Computed while a call is compiled, not in every call; torch.compile would look through lru_cache.
            torch.compiler.assume_constant_result(_taps)  # type: ignore[no-untyped-call]

    def prepare(self, module: nn.Module) -> Program:
        return Program(module, ParameterLayout.of(module), compile_steps(module, FORMS))

    def mixes_rows(self, features: Tensor) -> bool:
        return features.dim() == 5 and features[0, 0].numel() ** 2 > MAX_MATRIX  # some layer runs as a convolution

    def evaluate(self, program: Program, parameters: Tensor, features: Tensor) -> Tensor:
        named = program.layout.unflatten(parameters)
        result: Tensor = run_steps(program.compiled, features, named, parameters.shape[0])
        return result


def _taps(
    size: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    device: torch.device,
    dtype: torch.dtype,
) -> Tensor:
    """Return cached results of :func:`_compute_taps`."""
    return _compute_taps(size, kernel, stride, padding, dilation, device, dtype)


@lru_cache(maxsize=256)
def _compute_taps(
    size: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    device: torch.device,
    dtype: torch.dtype,
) -> Tensor:
    """Return which tap of a kernel joins which input pixel to which output pixel: 0 or 1 ``[taps, P * Q]``.

    It is the convolution of unit kernels with unit images.
    """
    height, width = size
    num_taps = kernel[0] * kernel[1]
    units = torch.eye(height * width).view(height * width, 1, height, width)
    taps = torch.eye(num_taps).view(num_taps, 1, *kernel)
    out = F.conv2d(units, taps, None, stride, padding, dilation)  # (P, taps, H', W')
    joined = out.flatten(2).transpose(0, 1).flatten(1)  # (taps, P * Q)
    return joined.to(device=device, dtype=dtype)


def _padding(layer: nn.Conv2d) -> tuple[int, int]:
    assert not isinstance(layer.padding, str), "refused on preparation"
    height, width = layer.padding
    return height, width


def _map_size(size: tuple[int, int], layer: nn.Conv2d) -> tuple[int, int]:
    """Return height and width after a convolution."""
    reach = [dilation * (kernel - 1) for dilation, kernel in zip(layer.dilation, layer.kernel_size, strict=True)]
    height, width = (
        (side + 2 * padding - span - 1) // stride + 1
        for side, padding, span, stride in zip(size, _padding(layer), reach, layer.stride, strict=True)
    )
    return height, width


def _conv(name: str, layer: nn.Conv2d, argument: Step) -> Step:
    check_zero_padding("matmul", name, layer)

    def step(values: Values, parameters: Parameters, num_rows: int) -> Tensor:
        x = argument(values, parameters, num_rows)
        weight = parameters[f"{name}.weight"]
        options = (layer.stride, _padding(layer), layer.dilation)
        if layer.kernel_size == layer.stride == (1, 1) and layer.padding == (0, 0) and layer.groups == 1:
            return _with_bias(_pointwise(x, weight), name, parameters)
        taps = _taps(tuple(x.shape[-2:]), layer.kernel_size, *options, x.device, x.dtype)
        if taps.shape[1] * weight[0].shape[0] * weight[0].shape[1] <= MAX_MATRIX:
            out = _as_product(x, weight, taps, _map_size(tuple(x.shape[-2:]), layer), layer.groups)
        else:
            out = _as_convolution(x, weight, layer, num_rows)
        return _with_bias(out, name, parameters)

    return step


def _with_bias(out: Tensor, name: str, parameters: Parameters) -> Tensor:
    bias = parameters.get(f"{name}.bias")
    return out if bias is None else out + bias[:, None, :, None, None]


def _pointwise(x: Tensor, weight: Tensor) -> Tensor:
    """Run a 1x1 convolution, whose matrix is the weight, with pixels as additional samples."""
    num_rows, batch, channels, height, width = x.shape
    pixels = x.transpose(1, 2).reshape(num_rows, channels, -1)
    out = torch.bmm(weight.flatten(2), pixels)
    return out.view(num_rows, -1, batch, height, width).transpose(1, 2)


def _as_product(x: Tensor, weight: Tensor, taps: Tensor, size: tuple[int, int], groups: int) -> Tensor:
    num_rows, batch, _, height, width = x.shape
    out_channels, in_group = weight.shape[1:3]
    pixels, outs = height * width, size[0] * size[1]
    kernels = weight.reshape(num_rows * groups, (out_channels // groups) * in_group, -1)
    joined = (kernels @ taps).view(num_rows * groups, out_channels // groups, in_group, pixels, outs)
    matrix = joined.permute(0, 2, 3, 1, 4).reshape(num_rows * groups, in_group * pixels, -1)
    if groups == 1:
        return torch.bmm(x.reshape(num_rows, batch, -1), matrix).view(num_rows, batch, out_channels, *size)
    grouped = x.reshape(num_rows, batch, groups, -1).transpose(1, 2).reshape(num_rows * groups, batch, -1)
    out = torch.bmm(grouped, matrix).view(num_rows, groups, batch, -1)
    return out.transpose(1, 2).reshape(num_rows, batch, out_channels, *size)


def _as_convolution(x: Tensor, weight: Tensor, layer: nn.Conv2d, num_rows: int) -> Tensor:
    merged = x.transpose(0, 1).flatten(1, 2)  # (B, R*C, H, W)
    groups = layer.groups * num_rows
    out = F.conv2d(merged, weight.flatten(0, 1), None, layer.stride, layer.padding, layer.dilation, groups)
    return out.view(out.shape[0], num_rows, -1, *out.shape[2:]).transpose(0, 1)


def _group_norm(name: str, layer: nn.GroupNorm, argument: Step) -> Step:
    def step(values: Values, parameters: Parameters, num_rows: int) -> Tensor:
        x = argument(values, parameters, num_rows)
        normal = F.group_norm(x.flatten(0, 1), layer.num_groups, eps=layer.eps).view(x.shape)
        if not layer.affine:
            return normal
        shape = (num_rows, 1, -1, *([1] * (x.dim() - 3)))
        return normal * parameters[f"{name}.weight"].view(shape) + parameters[f"{name}.bias"].view(shape)

    return step


def _linear(name: str, layer: nn.Linear, argument: Step) -> Step:
    return lambda values, parameters, num_rows: row_linear(
        name, layer, argument(values, parameters, num_rows), parameters
    )


def _flatten(name: str, layer: nn.Flatten, argument: Step) -> Step:
    check_flatten("matmul", name, layer)
    return elementwise(lambda x: x.flatten(2), [argument], FORMS.operand)


def _pool(name: str, layer: nn.Module, argument: Step) -> Step:
    def pool(x: Tensor) -> Tensor:
        # Channels-last, because max pooling of tiny maps in rows of channels is several times slower.
        out: Tensor = layer(x.flatten(0, 1).contiguous(memory_format=torch.channels_last))
        return out.reshape(*x.shape[:2], *out.shape[1:])

    return elementwise(pool, [argument], lambda x: x)


def _layer_norm(name: str, layer: nn.LayerNorm, argument: Step) -> Step:
    if layer.weight is None or layer.bias is None or len(layer.normalized_shape) != 1:
        raise ValueError(
            f"the matmul mapping normalises the last axis with weight and bias only, layer {name!r} not so"
        )

    def step(values: Values, parameters: Parameters, num_rows: int) -> Tensor:
        x = argument(values, parameters, num_rows)
        normal = F.layer_norm(x, layer.normalized_shape, eps=layer.eps)
        shape = (num_rows, *([1] * (x.dim() - 2)), -1)
        return normal * parameters[f"{name}.weight"].view(shape) + parameters[f"{name}.bias"].view(shape)

    return step


def _embedding(name: str, layer: Embedding, argument: Step) -> Step:
    def step(values: Values, parameters: Parameters, num_rows: int) -> Tensor:
        tokens, table = argument(values, parameters, num_rows), parameters[f"{name}.token"]
        first = table.shape[1] * torch.arange(num_rows, device=tokens.device)
        vectors = F.embedding(tokens + first.view(-1, 1, 1), table.flatten(0, 1))  # (R, B, T, C)
        return layer.scale * vectors + parameters[f"{name}.position"][:, None, : tokens.shape[2]]

    return step


def _tied_head(name: str, layer: nn.Module, argument: Step) -> Step:
    def step(values: Values, parameters: Parameters, num_rows: int) -> Tensor:
        x = argument(values, parameters, num_rows)
        return torch.bmm(x.flatten(1, 2), parameters[f"{name}.token"].transpose(1, 2)).view(*x.shape[:-1], -1)

    return step


def _attention(name: str, layer: nn.Module, argument: Step) -> Step:
    """Run attention, which has no parameters, with rows as additional samples."""
    return elementwise(lambda x: layer(x.flatten(0, 1)).unflatten(0, x.shape[:2]), [argument], FORMS.operand)


FORMS = Forms(
    mapping="matmul",
    layers={
        nn.Conv2d: _conv,
        nn.GroupNorm: _group_norm,
        nn.Linear: _linear,
        nn.Flatten: _flatten,
        nn.AvgPool2d: _pool,
        nn.MaxPool2d: _pool,
        nn.AdaptiveAvgPool2d: _pool,
        nn.LayerNorm: _layer_norm,
        Embedding: _embedding,
        TiedHead: _tied_head,
        CausalAttention: _attention,
    },
    # [R, C, 1, 1] broadcasts against [R, B, C, H, W] as [R, 1, C, 1, 1].
    parameter=lambda parameter: parameter.unsqueeze(1),
    spatial_mean=lambda x: x.mean((3, 4), keepdim=True),
)
