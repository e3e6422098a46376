"""Batch norm statistics for configurations that were never trained.

The running mean and variance of a batch norm belong to the trained network. A configuration with a module switched on
or off passes other features through it, for which these statistics are wrong.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from esper.grower.place import contained


class RecentBatches:
    """The last training batches of this epoch, with the modes of the model's modules at the time.

    A copy starts empty, because it belongs to another model.

    Args:
        model: observed if it has a batch norm with running statistics.
        count: number of batches to keep.
    """

    def __init__(self, model: nn.Module, count: int) -> None:
        self._model, self._open = model, True
        self._seen: deque[tuple[tuple[Any, ...], dict[str, Any]]] = deque(maxlen=count)
        self._modes: list[tuple[nn.Module, bool]] = []
        self._handle = model.register_forward_pre_hook(self, with_kwargs=True) if self._norms() else None

    def _norms(self) -> list[_BatchNorm]:
        modules = map(contained, self._model.modules())
        return [module for module in modules if isinstance(module, _BatchNorm) and module.running_mean is not None]

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record a batch; hook before the model's forward pass."""
        if self._open and model.training and torch.is_grad_enabled():
            if not self._modes:
                self._modes = [(module, module.training) for module in model.modules()]
            self._seen.append((args, kwargs))

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Ignore passes within the block, which are not training passes."""
        before, self._open = self._open, False
        try:
            yield
        finally:
            self._open = before

    def end_epoch(self) -> None:
        """Drop all batches, so that an epoch's measurements do not depend on earlier ones."""
        self._seen.clear()
        self._modes = []

    def reestimate(self) -> None:
        """Replace running statistics by those of the recorded batches, for the model in its present configuration.

        The caller restores buffers, random generators and modes. Does nothing without a batch norm, or before the first
        batch.
        """
        for module, mode in self._modes:
            module.training = mode
        moving = [(module, module.momentum) for module in self._norms() if module.training] if self._seen else []
        try:
            for module, _ in moving:
                module.reset_running_stats()
                module.momentum = None  # a plain mean over batches
            with torch.no_grad():
                for args, kwargs in self._seen if moving else ():
                    self._model(*args, **kwargs)
        finally:
            for module, momentum in moving:
                module.momentum = momentum

    def close(self) -> None:
        """Remove the hook from the model."""
        if self._handle is not None:
            self._handle.remove()
        self.end_epoch()

    def __reduce__(self) -> tuple[type[_Nothing], tuple[()]]:
        return _Nothing, ()


class _Nothing:
    """Replacement for the observer in a copy of a model."""

    def __call__(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Do nothing."""
