"""Checks of users' modules, by running them and never by the names of their classes.

Every check takes plain modules and raises ``ValueError`` in one line: ``what`` was checked (key and name), the
observation, and the remedy.

Axis legend: B = samples; ``...`` stands for the axes of one sample.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from esper.runtime.rng import derive_seed, generator, global_streams
from esper.runtime.user_code import of_the_user

Build = Callable[[int], nn.Module]
"""Function that makes a module with random numbers seeded by its argument."""

STEP = 0.02
"""Change of each parameter in the training step before the second check, because zeros at birth hide what follows
them.
"""

SAME_BATCH, OTHER_BATCH = 1e-5, 1e-3
"""Tolerances on outputs of one sample, relative to the largest, between batches of equal and of different size."""

_CAUSES: tuple[tuple[type[nn.Module], Callable[[Any], bool], str], ...] = (
    (
        nn.modules.batchnorm._BatchNorm,
        lambda layer: layer.training or layer.running_mean is None,
        "use GroupNorm or LayerNorm",
    ),
    (
        nn.modules.instancenorm._InstanceNorm,
        lambda layer: layer.training and layer.track_running_stats,
        "use GroupNorm with one group per channel",
    ),
    (nn.modules.dropout._DropoutNd, lambda layer: layer.training and layer.p > 0, "leave it out"),
    (nn.MultiheadAttention, lambda layer: layer.training and layer.dropout > 0, "give it dropout=0"),
    (nn.RNNBase, lambda layer: layer.training and layer.dropout > 0, "give it dropout=0"),
    (nn.utils.parametrizations._SpectralNorm, lambda norm: bool(norm.training), "use weight_norm"),
    (nn.RReLU, lambda layer: bool(layer.training), "use LeakyReLU"),
)
"""Layers that often cause a failed check, with condition and advice; used in messages only, never to refuse a
module.
"""


def known_cause(module: nn.Module) -> tuple[str, nn.Module, str] | None:
    """Find a layer whose result depends on other samples, random numbers or earlier passes: return name, layer and
    advice.
    """
    for name, layer in module.named_modules():
        for kind, active, advice in _CAUSES:
            if isinstance(layer, kind) and active(layer):
                return name, layer, advice
    return None


def place_of(function: Callable[..., Any]) -> str:
    """Return the source position of a function or a class, ``file.py:12``, or its name if that is unknown."""
    inner = inspect.unwrap(getattr(function, "func", function))  # of a partial
    code = getattr(vars(inner).get("__init__") if isinstance(inner, type) else inner, "__code__", None)
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}" if code else getattr(inner, "__name__", repr(inner))


# ---------------------------------------------------------------------------------------------------------- the builder


class Builds(NamedTuple):
    """Modules of one builder: the first, others from other random streams, and the buffers in which they differ."""

    module: nn.Module
    others: tuple[nn.Module, ...]
    drawn: tuple[str, ...]


def check_builds(what: str, build: Build) -> Builds:
    """Refuse a builder whose modules depend on more than their random stream, or differ in shape."""
    first, again, *others = (build(derive_seed("contract", stream)) for stream in (0, 0, 1, 2))
    for other in (first, again, *others):
        check_kinds(what, other)
    for other in (again, *others):
        check_alike(what, first, other)
    for name, parameter in named(first, "parameter").items():
        if any(named(other, "parameter")[name] is parameter for other in (again, *others)):
            raise ValueError(f"{what}: two builds share parameter {name!r}: let every call make a new one")
    for kind in ("parameter", "buffer"):
        news = named(again, kind)
        for name, tensor in named(first, kind).items():
            if not same(tensor, news[name]):
                raise ValueError(
                    f"{what}: two builds from one random stream differ in {kind} {name!r} by up to "
                    f"{distance(tensor, news[name]):.3g}: let it draw from the global generators of torch, numpy or "
                    "random, which are seeded around it"
                )
    buffers = named(first, "buffer")
    drawn = tuple(
        name
        for name, tensor in buffers.items()
        if any(not same(tensor, named(other, "buffer")[name]) for other in others)
    )
    return Builds(first, tuple(others), drawn)


def check_kinds(what: str, module: nn.Module) -> None:
    """Refuse lazy parameters, and parameters of another type than float32."""
    for kind in ("parameter", "buffer"):
        for name, tensor in named(module, kind).items():
            if nn.parameter.is_lazy(tensor):
                raise ValueError(
                    f"{what}: {kind} {name!r} has no shape before the first pass (a lazy layer); give it its shape"
                )
            if kind == "parameter" and tensor.dtype != torch.float32:
                raise ValueError(f"{what}: parameter {name!r} is {plain(tensor.dtype)}; make it float32, or a buffer")


def check_alike(what: str, first: nn.Module, other: nn.Module) -> None:
    """Refuse two builds that differ in names, shapes or types."""
    for kind in ("parameter", "buffer"):
        mine, its = ({name: _form(tensor) for name, tensor in named(module, kind).items()} for module in (first, other))
        for name in sorted({*mine, *its}):
            if mine.get(name) != its.get(name):
                raise ValueError(
                    f"{what}: {kind} {name!r} is {mine.get(name, 'not there')} in one build and "
                    f"{its.get(name, 'not there')} in another; all builds must be alike but for their numbers"
                )


def _form(tensor: Tensor) -> str:
    trained = "" if tensor.requires_grad or not isinstance(tensor, nn.Parameter) else " frozen"
    return f"{plain(tensor.dtype)} {list(tensor.shape)}{trained}"


def plain(dtype: torch.dtype) -> str:
    """Return the name of a type without the prefix ``torch.``."""
    return str(dtype).removeprefix("torch.")


def named(module: nn.Module, kind: str) -> dict[str, Tensor]:
    """Return parameters or buffers by name."""
    return dict(module.named_parameters() if kind == "parameter" else module.named_buffers())


# ----------------------------------------------------------------------------------------------------- one forward pass


def check_forward(what: str, module: nn.Module, x: Tensor) -> Tensor:
    """Refuse a forward pass that is not a pure function of its input and the module's parameters and buffers.

    Two passes on one input must be equal to the bit, draw no random numbers, be finite, and leave input, parameters and
    buffers unchanged. A pass with gradients must agree too, up to rounding, so that training and measurement use the
    same function.

    Args:
        what: key and name of the module, for messages.
        module: module in the mode in which it will run.
        x: ``[B, ...]``, finite.

    Returns:
        Its output, detached.
    """
    given, before = x.clone(), copied(module)
    with torch.no_grad(), global_streams() as streams:
        first = run(what, module, x)
        drawn, kept = streams.moved(), first.clone()
        _check_left(what, module, before, given, x)
        second = run(what, module, x)
    if drawn:
        raise ValueError(
            f"{what}: its forward pass draws random numbers of {' and '.join(drawn)}, two passes on one input differ "
            f"by up to {distance(kept, second):.3g}: leave them out{_because(module)}"
        )
    if not same(kept, second):
        raise ValueError(
            f"{what}: two forward passes on one input differ by up to {distance(kept, second):.3g}: let the input and "
            f"the parameters alone decide (no counter, clock or generator){_because(module)}"
        )
    if not kept.isfinite().all():
        raise ValueError(
            f"{what}: {int((~kept.isfinite()).sum())} of {kept.numel()} output numbers are not finite"
            f"{_not_finite(module)}"
        )
    with torch.enable_grad(), global_streams() as streams:
        trained = run(what, module, x).detach()
        drawn = streams.moved()
        _check_left(what, module, before, given, x)
    if drawn or differ(kept, trained):
        does = f"draws random numbers of {' and '.join(drawn)}" if drawn else "computes another result"
        raise ValueError(
            f"{what}: its forward pass {does} while gradients are on, outputs differ by up to "
            f"{distance(kept, trained):.3g}: let it do the same whether it is trained or measured{_because(module)}"
        )
    return kept


def run(what: str, module: Callable[[Tensor], Any], x: Tensor) -> Tensor:
    """Run one pass; refuse a module that raises an exception or does not return a tensor."""
    with of_the_user(f"{what}: it does not run on {list(x.shape)}"):
        out = module(x)
    if not isinstance(out, Tensor):
        raise ValueError(f"{what}: it must return one tensor, not a {type(out).__name__}")
    return out


def copied(module: nn.Module) -> dict[str, Tensor]:
    """Copy all parameters and buffers, by name."""
    tensors = named(module, "parameter") | named(module, "buffer")
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def _check_left(what: str, module: nn.Module, before: Mapping[str, Tensor], given: Tensor, x: Tensor) -> None:
    check_input_left(what, given, x)
    after = copied(module)
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if old is None or new is None or not same(old, new):
            by = f" by up to {distance(old, new):.3g}" if old is not None and new is not None else ""
            raise ValueError(
                f"{what}: its forward pass changes {name!r}{by}: keep no state, many hosts share one module"
                f"{_because(module)}"
            )


def check_input_left(what: str, given: Tensor, x: Tensor) -> None:
    """Refuse a module that has changed its input."""
    if not same(given, x):
        raise ValueError(
            f"{what}: it changes its input in place, by up to {distance(given, x):.3g}: work on a copy (x = x - 1 "
            "instead of x.sub_(1), no inplace=True on what it is given)"
        )


def _because(module: nn.Module) -> str:
    cause = known_cause(module)
    if cause is not None:
        name, layer, advice = cause
        return f" (layer {name!r} is a {type(layer).__name__}: {advice})"
    return ""


def _not_finite(module: nn.Module) -> str:
    for kind in ("parameter", "buffer"):
        for name, tensor in named(module, kind).items():
            if not tensor.isfinite().all():
                return f", nor is its {kind} {name!r}"
    return ""


# ------------------------------------------------------------------------------------------------ samples and gradients


def check_samples(what: str, module: nn.Module, x: Tensor, shape: Callable[[Tensor], Sequence[int]]) -> None:
    """Refuse outputs of the wrong shape, and outputs of a sample that depend on other samples of its batch.

    Args:
        what, module: as for :func:`check_forward`.
        x: ``[B, ...]``, B at least 2.
        shape: expected shape of the output for an input.
    """
    swapped = x.clone()
    swapped[1:] = unlike(x[1:])
    with torch.no_grad(), global_streams():
        out = run(what, module, x)
        check_shape(what, out, x, shape)
        _check_apart(what, module, out[:1], run(what, module, swapped)[:1], SAME_BATCH, "when another one changes")
        for batch, size in ((x[:1], 1), (torch.cat([x, swapped[1:]]), len(x))):
            other = run(what, module, batch)
            check_shape(what, other, batch, shape)
            _check_apart(
                what, module, out[:size], other[:size], OTHER_BATCH, f"in a batch of {len(batch)} instead of {len(x)}"
            )


def check_shape(what: str, out: Tensor, x: Tensor, shape: Callable[[Tensor], Sequence[int]]) -> None:
    """Refuse an output ``[B, ...]`` whose shape is not the expected one."""
    if list(out.shape) != list(shape(x)):
        raise ValueError(f"{what}: on {list(x.shape)} it must return {list(shape(x))}, got {list(out.shape)}")


def _check_apart(what: str, module: nn.Module, out: Tensor, other: Tensor, tolerance: float, when: str) -> None:
    if differ(out, other, tolerance):
        raise ValueError(
            f"{what}: the output for a sample changes by up to {distance(out, other):.3g} {when}: let samples not "
            f"see each other{_because(module)}"
        )


def unlike(x: Tensor) -> Tensor:
    """Make different samples of the same kind: numbers mirrored within their range, token ids known to be valid."""
    if not x.is_floating_point():
        return torch.where(x > 0, x - 1, x.max().clamp(min=1))
    other = x.max() + x.min() - x
    return other if not same(other, x) else x / 2 + 0.125


def gradients(what: str, module: nn.Module, x: Tensor, within: nn.Module | None = None) -> dict[str, Tensor]:
    """Compute gradients of the trained parameters for a random direction of the output, by name.

    Args:
        what, module, x: as for :func:`check_forward`.
        within: module to run, which contains ``module``; by default ``module`` itself.

    Raises:
        ValueError: the backward pass fails, a gradient is not finite, or all are zero.
    """
    parameters = {name: value for name, value in module.named_parameters() if value.requires_grad}
    with torch.enable_grad(), global_streams():
        out = run(what, module if within is None else within, x)
        direction = torch.randn(out.shape, generator=generator("contract", "direction"))
        with of_the_user(f"{what}: its backward pass fails"):
            found = torch.autograd.grad((out * direction).sum(), list(parameters.values()), allow_unused=True)
    known = {name: value for name, value in zip(parameters, found, strict=True) if value is not None}
    for name, value in known.items():
        if not value.isfinite().all():
            raise ValueError(f"{what}: the gradient of parameter {name!r} at birth is not finite, so it never learns")
    if not any(value.any() for value in known.values()):
        count = sum(value.numel() for value in parameters.values())
        raise ValueError(
            f"{what}: the gradient of all {count} trained parameters at birth is 0, so it never learns (a zero before "
            "a ReLU or a norm gets no gradient)"
        )
    return known


def after_a_step(what: str, module: nn.Module, found: Mapping[str, Tensor]) -> nn.Module:
    """Copy the module after one step, in which each parameter moves by :data:`STEP` along its gradient's sign."""
    with of_the_user(f"{what}: it cannot be copied (copy.deepcopy)"):
        moved = copy.deepcopy(module)
    with torch.no_grad():
        for name, parameter in moved.named_parameters():
            if name in found:
                parameter.add_(found[name].sign(), alpha=-STEP)
    return moved


# -------------------------------------------------------------------------------------------------------------- numbers


def same(first: Tensor, second: Tensor) -> bool:
    """Return whether two tensors are equal to the bit, with NaN equal to itself."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    return bool(((first == second) | ((first != first) & (second != second))).all())


def differ(out: Tensor, other: Tensor, tolerance: float = SAME_BATCH) -> bool:
    """Return whether two outputs differ by more than ``tolerance`` times the largest absolute value of the first."""
    return distance(out, other) > tolerance * float(out.abs().max())


def distance(first: Tensor, second: Tensor) -> float:
    """Return the largest difference between two tensors; infinite if only one is finite or the shapes differ."""
    if first.shape != second.shape or not first.numel():
        return float("inf") if first.shape != second.shape else 0.0
    apart = (first.detach().double() - second.detach().double()).abs()
    return float(torch.where(first == second, 0.0, apart).nan_to_num(nan=float("inf")).max())
