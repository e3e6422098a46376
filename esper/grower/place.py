"""A place: a wrapper around a submodule of a user's network that may hold a seed module.

A :class:`Place` replaces the submodule and contains it. Everything reachable under the submodule's name still is:
parameters, buffers and children keep their names, attributes and methods are the submodule's. The only new name is
``esper``, the seed module; where an earlier Grower has left a module of that name, ``esper2`` and so on.

Axis legend: B = samples, C = channels, H, W = space, T = tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum
from functools import wraps
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from esper.grower.compiling import at_limit, limit_error
from esper.population.mapping.norms import safe_norm_input
from esper.population.mapping.straight_through import straight_through

SEED = "esper"
"""Name of the seed module among the children of its place."""

_SHARED = (
    "_parameters",
    "_buffers",
    "_non_persistent_buffers_set",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)
"""Dictionaries of a module that a place shares with the submodule it contains."""

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


class Flow(IntEnum):
    """Output of a place for the feature x that its submodule returns."""

    OFF = 0
    """x itself."""
    JOINT = 1
    """x blended with the seed module; gradients go everywhere."""
    ISOLATED = 2
    """x blended with the seed module; the seed module's gradient does not reach the host."""
    STRAIGHT = 3
    """x, whose gradient also trains the seed module as if it were applied at alpha 1."""
    INCUBATED = 4
    """The seed module at alpha 1 on the detached feature, where the graph begins."""
    PREVIEW = 5
    """The seed module at alpha 1."""


class Tap:
    """Recorder of the feature at a place in the last training pass, and of the loss gradient for it.

    It is not part of the model's state: a copy starts empty.

    Attributes:
        open: record training passes.
        ran: true once the place has run outside of compiled code; reset by whoever asks.
        copies: record a copy of the feature, for places behind which it is changed in place.
        compiled: true if a recorded training pass was compiled.
        apart: true if the compiled graph of the present pass was cut at this place.
    """

    def __init__(self) -> None:
        self.open, self.ran, self.copies, self.compiled, self.apart = True, False, False, False, False
        self._feature: Tensor | None = None
        self._gradient: Tensor | None = None
        self._version = 0

    def see(self, x: Any) -> None:
        """Record a feature if this is a training pass of the host."""
        if self.open and torch.is_grad_enabled() and isinstance(x, Tensor) and x.requires_grad:
            self._feature, self._gradient = x.detach(), None
            if self.copies:
                self._feature = self._feature.clone()
            self._version = self._feature._version
            x.register_hook(self._take)  # type: ignore[no-untyped-call]

    def see_uncompiled(self, x: Any) -> None:
        """Record a feature outside of compiled code.

        Raises:
            RuntimeError: the limit of recompilations led there.
        """
        self.ran = True
        if self.compiled and self.open and torch.is_grad_enabled():
            self.apart = False
            if at_limit(Place.forward.__code__):
                raise limit_error()
        self.see(x)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def see_compiled(self, x: Any) -> None:
        """Record the feature of a compiled network, outside of its graph, which is cut here."""
        self.compiled = self.apart = True
        self.see(x)

    def _take(self, gradient: Tensor) -> None:
        self._gradient = gradient

    def read(self) -> tuple[Tensor, Tensor] | None:
        """Return the last feature and its gradient; ``None`` if there are none, or the feature was changed in place.

        In that case copies are recorded from then on.
        """
        if self._feature is None or self._gradient is None:
            return None
        if self._feature._version != self._version:
            self.copies = True
            return None
        return self._feature, self._gradient.detach()

    def __reduce__(self) -> tuple[type[Tap], tuple[()]]:
        return Tap, ()


class Place(nn.Module):
    """A wrapper of a submodule, with room for a seed module after it.

    Args:
        inner: the submodule. It returns the feature that grows, or a tuple that begins with it.

    Attributes:
        flow: output of the place, a :class:`Flow`.
        full: the seed module is at alpha 1. Compiled code does not look, so that alpha compiles nothing.
        normalises: the seed module begins with a norm that needs a :func:`safe_norm_input`.
        tap: recorder of the feature; ``None`` once measurements have ended.
        seed_name: name of the seed module among the children.
    """

    flow: int
    full: bool
    normalises: bool
    tap: Tap | None
    seed_name: str = SEED
    _inner: nn.Module

    def __init__(self, inner: nn.Module) -> None:
        object.__setattr__(self, "_inner", inner)
        training = inner.training
        super().__init__()
        inner.training = training
        for name in _SHARED:
            self.__dict__[name] = inner.__dict__[name]
        self.__dict__["_modules"] = dict(inner._modules)
        self.__dict__["flow"] = int(Flow.OFF)
        self.__dict__["full"] = self.__dict__["normalises"] = False
        self.__dict__["tap"] = Tap()
        if SEED in inner._modules:
            self.__dict__["seed_name"] = next(
                name for name in (f"{SEED}{number}" for number in count(2)) if name not in inner._modules
            )

    @property
    def inner(self) -> nn.Module:
        """The wrapped submodule."""
        return self._inner

    @property
    def seed_module(self) -> nn.Module | None:
        """The seed module, ``None`` if there is none."""
        return self._modules.get(self.seed_name)

    @seed_module.setter
    def seed_module(self, module: nn.Module | None) -> None:
        self._modules.pop(self.seed_name, None)
        if module is not None:
            self._modules[self.seed_name] = module

    @property
    def hooked(self) -> bool:
        """True if hooks were registered on the place: they see the grown feature."""
        return any(self.__dict__[kind] for kind in _HOOKS)

    @property
    def training(self) -> bool:
        """Mode of the submodule."""
        return self._inner.training

    @training.setter
    def training(self, mode: bool) -> None:
        self._inner.training = mode

    @property
    def _version(self) -> int:  # type: ignore[override]
        return self._inner._version

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the submodule, and apply the seed module to its feature."""
        result = self._inner(*args, **kwargs)
        if self.tap is None and self.flow == Flow.OFF:
            return result
        x = result[0] if isinstance(result, tuple) else result
        if self.tap is not None:
            (self.tap.see_compiled if torch.compiler.is_compiling() else self.tap.see_uncompiled)(x)
        if self.flow == Flow.OFF:
            return result
        grown = self._grown(x)
        if not isinstance(result, tuple):
            return grown
        rest = (grown, *result[1:])
        return type(result)(*rest) if hasattr(result, "_fields") else rest

    def _grown(self, x: Tensor) -> Tensor:
        module, tap = self._modules[self.seed_name], self.tap
        assert module is not None
        if tap is not None and tap.open and tap.apart and not torch.compiler.is_compiling():
            raise limit_error()
        flow = self.flow
        if flow == Flow.INCUBATED:
            torch.set_grad_enabled(True)
        given = x if flow in (Flow.JOINT, Flow.PREVIEW) else x.detach()
        if self.normalises:
            given = safe_norm_input(given)
        blended = flow in (Flow.JOINT, Flow.ISOLATED) and (torch.compiler.is_compiling() or not self.full)
        grown: Tensor = module(given).to(x.dtype) if blended else module(given, 1.0)
        if flow == Flow.STRAIGHT:
            return straight_through(x, grown)
        return x + (grown - given) if flow == Flow.ISOLATED else grown

    def train(self, mode: bool = True) -> Place:
        """Set the mode of submodule and seed module."""
        self._inner.train(mode)
        if (module := self.seed_module) is not None:
            module.train(mode)
        return self

    def _apply(self, fn: Any, recurse: bool = True) -> Place:
        self._inner._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if recurse and (module := self.seed_module) is not None:
            module._apply(fn)  # type: ignore[no-untyped-call]
        return self

    def _save_to_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._inner._save_to_state_dict(*args, **kwargs)

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        unexpected: list[str] = []
        self._inner._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected, error_msgs
        )
        own = f"{prefix}{self.seed_name}."
        unexpected_keys += [key for key in unexpected if self.seed_module is None or not key.startswith(own)]

    def add_module(self, name: str, module: nn.Module | None) -> None:
        """Add a child to the submodule."""
        self._inner.add_module(name, module)
        self._modules[name] = module

    def __getattr__(self, name: str) -> Any:
        if name in self.__dict__.get("_modules", ()):
            return self._modules[name]
        inner = self.__dict__["_inner"]
        value = getattr(inner, name)
        if not torch.compiler.is_compiling() and callable(value) and getattr(value, "__self__", None) is inner:
            return self._followed(value)
        return value

    def _followed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method of the submodule that may change its children."""

        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = method(*args, **kwargs)
            self._follow()
            return self if result is self._inner else result

        call.__dict__["__self__"] = self
        return call

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "flow":
            self.__dict__[name] = int(value)  # a number, whose value alone compiled code depends on
        elif name == "tap":
            self.__dict__[name] = value
        elif name in ("training", "seed_module"):
            object.__setattr__(self, name, value)
        elif name in self.__dict__:
            super().__setattr__(name, value)
        else:
            setattr(self._inner, name, value)
            self._follow()

    def __delattr__(self, name: str) -> None:
        delattr(self._inner, name)
        self._follow()

    def _follow(self) -> None:
        """Update the children to those of the submodule."""
        children, module = dict(self._inner._modules), self.seed_module
        if module is not None:
            children[self.seed_name] = module
        if [*children] != [*self._modules] or any(children[name] is not self._modules[name] for name in children):
            self._modules.clear()
            self._modules.update(children)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._inner)  # type: ignore[call-overload, no-any-return]

    def __len__(self) -> int:
        return len(self._inner)  # type: ignore[arg-type]

    def __getitem__(self, key: Any) -> Any:
        return self._inner[key]  # type: ignore[index]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._inner[key] = value  # type: ignore[operator]
        self._follow()

    def __delitem__(self, key: Any) -> None:
        del self._inner[key]  # type: ignore[operator]
        self._follow()

    def __contains__(self, key: object) -> bool:
        return key in self._inner  # type: ignore[operator]

    def __bool__(self) -> bool:
        return bool(self._inner)


def contained(module: nn.Module) -> nn.Module:
    """Return the submodule within a place, or within a place in a place; any other module is itself."""
    while isinstance(module, Place):
        module = module.inner
    return module


def put(model: nn.Module, path: str, module: nn.Module) -> None:
    """Replace a submodule of a model under all names that it has there, within places too."""
    before = model.get_submodule(path)
    for parent in list(model.modules()):
        owner: nn.Module | None = parent
        while owner is not None:
            for name in [name for name, child in owner._modules.items() if child is before]:
                owner._modules[name] = module
            owner = owner.inner if isinstance(owner, Place) else None
