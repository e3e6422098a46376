"""Custom hosts: a user's module, divided after the submodules at which it may grow.

The module's own ``forward`` is traced with ``torch.fx`` down to those submodules and no further: the inside of these
and all other submodules is unrestricted. The graph is then divided after each of them, which requires that everything
afterwards depends on that one feature: a skip connection around a place would bypass the grown module.

Axis legend: B = samples, C = channels, H, W = space, T = tokens, K = classes.
"""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from esper.hosts.base import Place, SegmentedHost
from esper.hosts.contract import check_host, logits_shape
from esper.runtime.contracts import Build, check_builds, check_forward, check_shape, same
from esper.runtime.rng import global_streams
from esper.runtime.user_code import UsersCodeError, of_the_user


class CustomHost(SegmentedHost):
    """A user's module as a host in segments.

    Args:
        build: function that makes the module, called for every new host.
        segments, places, num_classes: arguments of :class:`~esper.hosts.base.SegmentedHost`.
        names: names of the segments' parameters in the module, in their order; some may be buffers there.
        shared: buffers that are equal in every build, by name.
    """

    family = "custom"

    def __init__(
        self,
        build: Build,
        segments: Sequence[nn.Module],
        places: Sequence[Place],
        num_classes: int,
        names: Sequence[str],
        shared: Mapping[str, Tensor],
    ) -> None:
        super().__init__(segments, places, num_classes)
        self._build = build
        self._names = tuple(names)
        self._shared = {name: tensor.clone() for name, tensor in shared.items()}

    def fresh(self, generator: torch.Generator) -> nn.Module:
        """Build a new module with random numbers drawn from ``generator``."""
        return self._build(int(torch.randint(2**62, (), generator=generator)))

    def reset(self, generator: torch.Generator) -> None:
        """Copy parameters and buffers from a :meth:`fresh` module."""
        self.take(self.fresh(generator))

    @torch.no_grad()
    def take(self, module: nn.Module) -> None:
        """Copy parameters and buffers from a module made by the builder.

        Raises:
            UsersCodeError: its parameters or buffers differ in names, shapes or types from those of this host's module.
        """
        tensors = dict(module.named_parameters()) | dict(module.named_buffers())
        for name, parameter in zip(self._names, self.segments.parameters(), strict=True):
            if name not in tensors or tensors[name].shape != parameter.shape:
                raise UsersCodeError(f"host.target: {name!r} is not in every build, or not in one shape")
            parameter.copy_(tensors[name])
        for name, tensor in self._shared.items():
            if name not in tensors or not same(tensors[name], tensor):
                raise UsersCodeError(f"host.target: buffer {name!r} is not the same in every build, nor in none")


def build_custom(
    *, target: str, arguments: Mapping[str, Any], slots: Sequence[str], sample: Tensor, num_classes: int
) -> CustomHost:
    """Build a :class:`CustomHost` from the module that ``target`` builds.

    Args:
        target: ``package.module:function``.
        arguments: keyword arguments of that function.
        slots: submodules after which to grow, by their names in ``named_modules()``. The first to run is place
            ``r0c0``, the next ``r0c1``, and so on.
        sample: an input of the host, ``[2, C, H, W]`` or ``int64 [2, T]``.
        num_classes: K. The module must return ``[B, K]`` for images, ``[B, T, K]`` for tokens.

    Raises:
        ValueError: the module cannot be a host; the message names the cause and its place.
    """
    if sample.is_floating_point():
        sample = sample.nan_to_num()  # errors of the data are not the module's
    what, build = f"host.target: {target}", partial(_build, _find(target), target, arguments)
    module, others, drawn = check_builds(what, build)
    shared = {name: buffer for name, buffer in module.named_buffers() if name not in drawn}
    _check_slots(module, slots)
    check_shape(what, check_forward(what, module, sample), sample, partial(logits_shape, num_classes=num_classes))
    origins = {id(parameter): name for name, parameter in module.named_parameters()}
    origins |= _carry(what, module, drawn)
    graph = _trace(module, slots)
    nodes = [node for node in graph.nodes if node.op == "call_module" and _own(node) in slots]
    _check_calls(nodes, slots)
    segments = _cut(module, graph, nodes)
    places = _places(segments, nodes, sample)
    names = [origins[id(value)] for value in nn.ModuleList(segments).parameters()]
    host = CustomHost(build, segments, places, num_classes, names, shared)
    check_host(what, host, module, others, sample, [_own(node) for node in nodes])
    return host


def _build(function: Callable[..., Any], target: str, arguments: Mapping[str, Any], seed: int) -> nn.Module:
    """Call the builder once with the random stream of a seed."""
    with global_streams(seed), _of_the_user(f"{target}(**host.arguments={dict(arguments)}) does not run"):
        module = function(**copy.deepcopy(dict(arguments)))
    if not isinstance(module, nn.Module):
        raise UsersCodeError(f"host.target: {target} returns a {type(module).__name__}, not a torch.nn.Module")
    return module


def _carry(what: str, module: nn.Module, drawn: Sequence[str]) -> dict[int, str]:
    """Turn buffers that the builder draws at random into frozen parameters, so that every host has its own; return
    names by id.

    Raises:
        ValueError: such a buffer is not float32.
    """
    buffers = dict(module.named_buffers())
    carried = {}
    for name in drawn:
        if buffers[name].dtype != torch.float32:
            raise ValueError(
                f"{what}: buffer {name!r} ({buffers[name].dtype}) is drawn in the builder; only float32 can differ "
                "between hosts: draw it from a generator of its own with a fixed seed, or store it as float32"
            )
        carried[id(buffers[name])] = nn.Parameter(buffers[name].clone(), requires_grad=False), name
    for owner in module.modules():
        for name, buffer in list(owner.named_buffers(recurse=False, remove_duplicate=False)):
            if id(buffer) in carried:
                delattr(owner, name)
                owner.register_parameter(name, carried[id(buffer)][0])
    return {id(parameter): name for parameter, name in carried.values()}


def _find(target: str) -> Callable[..., Any]:
    module_name, _, function_name = target.partition(":")
    if not module_name or not function_name:
        raise ValueError(f"host.target must be package.module:function, got {target!r}")
    if module_name.startswith("."):
        raise ValueError(f"host.target must name the package from its top, got {target!r}")
    with _of_the_user(f"cannot import {module_name!r}"):
        module = importlib.import_module(module_name)
    found = getattr(module, function_name, None)
    if not callable(found):
        there = [
            name
            for name, value in vars(module).items()
            if callable(value) and not name.startswith("_") and inspect.getmodule(value) is module
        ]
        raise ValueError(
            f"host.target: {module_name} has no function {function_name!r}; it has {', '.join(there) or 'none'}"
        )
    return cast(Callable[..., Any], found)


def _of_the_user(what: str) -> AbstractContextManager[None]:
    """Run the user's builder or module, and report its exceptions in one line with their place."""
    return of_the_user(f"host.target: {what}")


def _check_slots(module: nn.Module, slots: Sequence[str]) -> None:
    known = [name for name, _ in module.named_modules() if name]
    for name in slots:
        if name not in known:
            raise ValueError(f"host.slots: the module has no submodule {name!r}; it has {', '.join(known)}")
    inside = [(name, other) for name in slots for other in slots if name.startswith(f"{other}.")]
    if inside:
        raise ValueError(f"host.slots: {inside[0][0]!r} is inside {inside[0][1]!r}; name one of them")


class _Whole(nn.Module):
    """The user's module with one input; further arguments of its ``forward`` keep their defaults."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.whole = module

    def forward(self, x: Tensor) -> Any:
        return self.whole(x)


class _Tracer(fx.Tracer):
    """A tracer that enters only modules that contain a place."""

    def __init__(self, slots: Sequence[str]) -> None:
        super().__init__()
        self._slots = [f"whole.{name}" for name in slots]

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not any(name.startswith(f"{module_qualified_name}.") for name in self._slots)


def _trace(module: nn.Module, slots: Sequence[str]) -> fx.Graph:
    try:
        return _Tracer(slots).trace(_Whole(module))
    except (TypeError, RuntimeError, fx.proxy.TraceError) as error:
        raise ValueError(
            f"host.target: cannot trace the module down to {', '.join(slots)}: {error}; what depends on the values or "
            "the shape of a feature must be inside a submodule without places"
        ) from error


def _own(node: fx.Node) -> str:
    """Return the name of a called submodule in the user's module."""
    return str(node.target).removeprefix("whole.")


def _check_calls(nodes: Sequence[fx.Node], slots: Sequence[str]) -> None:
    called = [_own(node) for node in nodes]
    for name in slots:
        if called.count(name) != 1:
            raise ValueError(f"host.slots: {name!r} is called {called.count(name)} times in a forward pass, not once")


def _cut(module: nn.Module, graph: fx.Graph, ends: Sequence[fx.Node]) -> list[nn.Module]:
    """Divide the graph into one module up to and including each of the given nodes, and one for the rest."""
    order = list(graph.nodes)
    placeholder = next(node for node in order if node.op == "placeholder")
    varying = _depending_on(placeholder, order)
    segments: list[nn.Module] = []
    entry, begin = placeholder, order.index(placeholder) + 1
    for end in [*ends, order[-1]]:
        stop = order.index(end) + 1
        own = order[begin:stop]
        _check_crossing(own, entry, varying)
        segments.append(_segment(module, own, entry, end, varying))
        entry, begin = end, stop
    return segments


def _depending_on(placeholder: fx.Node, order: Sequence[fx.Node]) -> set[fx.Node]:
    varying = {placeholder}
    for node in order:
        if any(argument in varying for argument in node.all_input_nodes):
            varying.add(node)
    return varying


def _check_crossing(own: Sequence[fx.Node], entry: fx.Node, varying: set[fx.Node]) -> None:
    """Refuse a segment that reads anything from before its place other than the feature there."""
    there = {entry, *own}
    for node in own:
        for argument in node.all_input_nodes:
            if argument in varying and argument not in there:
                raise ValueError(
                    f"host.slots: cannot cut after {_own(entry)!r}: {node.name!r} behind it reads "
                    f"{argument.name!r} from before it (a skip connection, or a size taken earlier); choose a place "
                    "where one feature alone goes on, such as a whole residual block"
                )


def _segment(
    module: nn.Module, own: Sequence[fx.Node], entry: fx.Node, end: fx.Node, varying: set[fx.Node]
) -> nn.Module:
    """Make a segment of the graph a module that shares the user's submodules and parameters."""
    graph = fx.Graph()
    copies = {entry: graph.placeholder("x")}

    def copy(node: fx.Node) -> fx.Node:
        if node not in copies:
            assert node in own or node not in varying, "crossings are checked"
            copies[node] = graph.node_copy(node, copy)
        return copies[node]

    for node in own:
        if node in varying and node.op != "output":
            copy(node)
    result = end.args[0] if end.op == "output" else end
    assert isinstance(result, fx.Node), "the output is one tensor"
    graph.output(copy(result))
    return fx.GraphModule(_Whole(module), graph)


def _places(segments: Sequence[nn.Module], ends: Sequence[fx.Node], sample: Tensor) -> list[Place]:
    """Run a sample to find the shape of the feature at each place."""
    places, feature = [], sample
    with torch.no_grad():
        for column, (segment, end) in enumerate(zip(segments, ends, strict=False)):
            feature = segment(feature)
            what = f"host.slots: the output of {_own(end)!r}"
            if not isinstance(feature, Tensor):
                raise ValueError(f"{what} is a {type(feature).__name__}, not one tensor")
            if feature.dim() not in (3, 4) or len(feature) != len(sample) or not feature.is_floating_point():
                raise ValueError(
                    f"{what} is {list(feature.shape)}; a feature is [B, C, H, W] or [B, T, C] with B={len(sample)}"
                )
            family, axis = ("cnn", 1) if feature.dim() == 4 else ("transformer", 2)
            places.append(Place(f"r0c{column}", feature.shape[axis], family))
    return places
