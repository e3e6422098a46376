"""Checks of a user's network as a host, which run it before anything starts.

Many hosts are trained side by side, compared with twins that must compute the same bits, and run from any place on. See
:mod:`esper.runtime.contracts` for the checks of any module; the checks here concern its segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from esper.runtime.contracts import (
    after_a_step,
    check_forward,
    check_input_left,
    check_samples,
    distance,
    gradients,
    run,
)
from esper.runtime.rng import global_streams

if TYPE_CHECKING:
    from esper.hosts.custom import CustomHost


def logits_shape(x: Tensor, num_classes: int) -> list[int]:
    """Return the shape of the logits for images ``[B, C, H, W]`` or tokens ``int64 [B, T]``."""
    return [len(x), num_classes] if x.is_floating_point() else [*x.shape, num_classes]


def check_host(
    what: str, host: CustomHost, module: nn.Module, others: Sequence[nn.Module], sample: Tensor, ends: Sequence[str]
) -> None:
    """Refuse a host that does not compute the same as its module, or cannot be trained side by side with others.

    Args:
        what: key and name of the module, for messages.
        host: host made from the module, whose parameters it shares.
        module: the module as built, in the mode in which hosts will run; it has passed
            :func:`~esper.runtime.contracts.check_forward`.
        others: modules that its builder makes from other random streams.
        sample: ``[B, C, H, W]`` or ``int64 [B, T]``, B at least 2.
        ends: names of the submodules after which the host was divided.

    Raises:
        ValueError: in one line, with a number and the remedy.
    """
    if not any(parameter.requires_grad for parameter in host.segments.parameters()):
        raise ValueError(f"{what}: no parameter is trained (requires_grad); leave at least its last layer to train")
    for name, parameter in module.named_parameters():
        if not parameter.isfinite().all():  # though what comes out is
            raise ValueError(f"{what}: parameter {name!r} is not finite at birth; start it from numbers")
    _check_segments(what, host, sample, ends)
    _check_same(f"{what}: divided after {', '.join(ends)}, it computes another result", host, module, sample)
    _check_trained(what, module, sample, host.num_classes)
    for other in others:
        host.take(other)
        _check_same(
            f"{what}: a host with the parameters and buffers of another build computes another result than that build; "
            "keep what the builder draws in parameters or buffers",
            host,
            other,
            sample,
        )


def _check_segments(what: str, host: CustomHost, sample: Tensor, ends: Sequence[str]) -> None:
    """Refuse a segment that changes the feature at the place before it."""
    feature = sample
    for number, segment in enumerate(host.segments):
        given = feature.clone()
        with torch.no_grad(), global_streams():
            result = run(what, segment, feature)
        check_input_left(f"{what}: what follows {ends[number - 1]!r}" if number else what, given, feature)
        feature = result


def _check_same(what: str, host: CustomHost, module: nn.Module, sample: Tensor) -> None:
    with torch.no_grad(), global_streams():
        apart = distance(run(what, host, sample), run(what, module, sample))
    if apart:
        raise ValueError(f"{what} (outputs differ by up to {apart:.3g})")


def _check_trained(what: str, module: nn.Module, sample: Tensor, num_classes: int) -> None:
    """Check the module after one training step, when parameters that are zero at birth no longer hide their effect."""
    moved = after_a_step(what, module, gradients(what, module, sample))
    check_forward(what, moved, sample)
    check_samples(what, moved, sample, partial(logits_shape, num_classes=num_classes))
