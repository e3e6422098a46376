"""Checks of a user's blueprint, which run it before anything starts.

A test applies them to the built-in blueprints.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import product

import torch
from torch import Tensor, nn

from esper.blueprints import cnn, noop, transformer, vectors
from esper.blueprints.registry import BLUEPRINTS, Builder
from esper.growth.actions import BlendAlgorithm
from esper.growth.blending import BlendedModule, Gate
from esper.growth.layouts import Layout, layout_of
from esper.hosts.init import reset_parameters
from esper.runtime.contracts import (
    after_a_step,
    check_alike,
    check_forward,
    check_kinds,
    check_samples,
    check_shape,
    differ,
    distance,
    gradients,
    named,
    place_of,
    plain,
    run,
    same,
    unlike,
)
from esper.runtime.rng import generator, global_streams
from esper.runtime.user_code import of_the_user

ALPHA = 0.5
PROBE_SIZE = 4
NUM_SAMPLES = 3
"""Number of samples in the features of the checks."""

_OURS: tuple[Builder, ...] = (
    *cnn.BUILDERS.values(),
    *transformer.BUILDERS.values(),
    *vectors.BUILDERS.values(),
    noop.build,
)

Shape = tuple[int, ...]


def users_blueprints(family: str) -> dict[str, Builder]:
    """Return the blueprints of a host family that are not built in, by id."""
    known = BLUEPRINTS[family].items()
    return {name: builder for name, builder in known if not any(builder is ours for ours in _OURS)}


def check_blueprints(
    sites: Mapping[tuple[str, int], Collection[Shape]],
    names: Collection[str] | None = None,
    *,
    causal: bool = False,
    batches: Sequence[int] = (),
) -> None:
    """Refuse users' blueprints that a run may grow and that could not be measured or trained there.

    Args:
        sites: family and width of the places, and the shapes of a sample's features there, ``[C, H, W]`` or ``[T, C]``.
        names: blueprints that the run may grow, ``None`` for all.
        causal: require that no token sees a later one.
        batches: sizes of the batches that the run will pass through it.

    Raises:
        ValueError: in one line that names the blueprint and its source file.
    """
    for (family, channels), shapes in sites.items():
        for name, builder in users_blueprints(family).items():
            if names is None or name in names:
                check_blueprint(family, name, builder, channels, shapes, causal=causal, batches=batches)


def check_blueprint(
    family: str,
    name: str,
    builder: Builder,
    channels: int,
    shapes: Collection[Shape] = (),
    *,
    causal: bool = False,
    batches: Sequence[int] = (),
) -> None:
    """Check one blueprint at places of one width; skip a width that its builder refuses.

    It must draw all of its parameters from the given generator, be the identity at birth and yet have a gradient, under
    every blend, and after training satisfy :func:`esper.runtime.contracts.check_forward` and ``check_samples``.
    Arguments and errors as for :func:`check_blueprints`.
    """
    what, layout = f"plugins: blueprint {name!r} of {family} hosts ({place_of(builder)})", layout_of(family)
    module = _newborn(what, builder, channels)
    if module is None:
        return
    x = torch.randn(layout.probe(channels, PROBE_SIZE), generator=generator("contract", "feature"))
    _check_kept(what, check_forward(what, module, x), x)
    for algorithm in BlendAlgorithm:
        _check_birth(f"{what} under {algorithm.name}", module, algorithm, x, channels, layout)
    for shape, count in product(shapes, (NUM_SAMPLES, *batches)):
        feature = torch.randn((count, *shape), generator=generator("contract", "feature"))
        with torch.no_grad(), global_streams():
            out = run(what, module, feature)
        _check_kept(what, out, feature)
        _check_identity(f"{what} on {list(feature.shape)}", out, feature)
    if any(True for _ in module.parameters()):
        module = after_a_step(what, module, gradients(what, module, x))
        check_forward(what, module, x)
        check_samples(what, module, x, _kept)
        if causal:
            _check_causal(what, module, x)


def _kept(x: Tensor) -> torch.Size:
    return x.shape


def _check_kept(what: str, out: Tensor, x: Tensor) -> None:
    """Refuse an output whose shape or type differs from the input's."""
    check_shape(what, out, x, _kept)
    if out.dtype != x.dtype:
        raise ValueError(f"{what}: it must return {plain(x.dtype)} as it is given, got {plain(out.dtype)}")


def _check_identity(what: str, out: Tensor, x: Tensor) -> None:
    apart = distance(x, out)
    if apart:
        raise ValueError(
            f"{what}: at birth it changes its input by up to {apart:.3g}: let it add something times a scale that "
            "starts at zero (esper.blueprints.residual.Residual)"
        )


def _newborn(what: str, builder: Builder, channels: int) -> nn.Module | None:
    """Build a module at birth and check that global random numbers do not affect it; return ``None`` for a refused
    width.
    """
    modules = []
    for seed in (0, 1):
        with global_streams(seed):
            with of_the_user(f"{what}: it cannot be built for {channels} channels"):
                try:
                    module = builder(channels)
                except ValueError:
                    return None
            if not isinstance(module, nn.Module):
                raise ValueError(f"{what}: it must be a torch.nn.Module, not a {type(module).__name__}")
            check_kinds(what, module)
            with of_the_user(f"{what}: its parameters cannot be drawn"):
                reset_parameters(module, generator("contract", "module"))
        modules.append(module)
    first, other = modules
    check_alike(what, first, other)
    for kind, remedy in (("parameter", "draw it from the generator of initialise(generator)"), ("buffer", "draw none")):
        for name, tensor in named(first, kind).items():
            if not same(tensor, named(other, kind)[name]):
                raise ValueError(
                    f"{what}: {kind} {name!r} of two modules born from one stream differs by up to "
                    f"{distance(tensor, named(other, kind)[name]):.3g}: {remedy}"
                )
    return first


def _check_birth(
    what: str, module: nn.Module, algorithm: BlendAlgorithm, x: Tensor, channels: int, layout: Layout
) -> None:
    """Refuse a module that changes the network at birth, or that could never learn."""
    gate = Gate(channels, layout) if algorithm is BlendAlgorithm.GATE else None
    blended = BlendedModule(module, algorithm, gate, ALPHA)
    with torch.no_grad(), global_streams():
        _check_identity(what, run(what, blended, x), x)
    if not any(True for _ in module.parameters()):
        return
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ValueError(f"{what}: no parameter is trained (requires_grad), so it never learns")
    gradients(what, module, x, within=blended)


def _check_causal(what: str, module: nn.Module, x: Tensor) -> None:
    """Refuse a module in which tokens ``x [B, T, C]`` see later ones, because the host would see the tokens it
    predicts.
    """
    later = x.clone()
    later[:, -1] = unlike(x[:, -1])
    with torch.no_grad(), global_streams():
        out, other = run(what, module, x)[:, :-1], run(what, module, later)[:, :-1]
    if differ(out, other):
        raise ValueError(
            f"{what}: the output for a token changes by up to {distance(out, other):.3g} when a later one changes: "
            "mask the later ones, as esper.hosts.attention.CausalAttention does"
        )
