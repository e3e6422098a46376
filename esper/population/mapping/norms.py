"""Around a crash: the channels-last backward of ``group_norm`` writes an input gradient that nobody asked for.

With an input that needs no gradient and weights that do, torch's CPU kernel dereferences an undefined tensor and the
process dies. A detached feature that meets a normalisation first is exactly that case, and marking it as requiring a
gradient does not help: ``autograd.grad`` prunes what it was not asked for.
"""

from __future__ import annotations

import torch
from torch import Tensor, fx, nn


def safe_norm_input(x: Tensor) -> Tensor:
    """The same values in the layout whose kernel is sound, where the input's gradient will not be taken."""
    return x if x.requires_grad or not torch.is_grad_enabled() else x.contiguous()


def normalises_input(module: nn.Module) -> bool:
    """Whether some GroupNorm may read the module's input directly: it does, or it is inside a module that does."""
    layers = dict(module.named_modules())
    return any(
        node.op == "call_module"
        and any(isinstance(layer, nn.GroupNorm) for layer in layers[str(node.target)].modules())
        and any(isinstance(argument, fx.Node) and argument.op == "placeholder" for argument in node.args)
        for node in _Outline().trace(module).nodes
    )


class _Outline(fx.Tracer):
    """Looks into chains of layers only: what else a user's module does may not be traceable."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not isinstance(m, nn.Sequential | fx.GraphModule)
