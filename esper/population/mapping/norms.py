"""Workaround for a crash: the channels-last backward of ``group_norm`` writes an input gradient even if it is not
requested.

With an input that needs no gradient and weights that do, torch's CPU kernel dereferences an undefined tensor and the
process dies. This is the case when the first layer normalises a detached feature. Marking the feature as requiring a
gradient does not help, because ``autograd.grad`` skips gradients that are not requested.
"""

from __future__ import annotations

import torch
from torch import Tensor, fx, nn


def safe_norm_input(x: Tensor) -> Tensor:
    """Convert an input whose gradient is not needed to the layout with a correct kernel."""
    return x if x.requires_grad or not torch.is_grad_enabled() else x.contiguous()


def normalises_input(module: nn.Module) -> bool:
    """Return whether some GroupNorm may read the module's input directly: it does, or it is inside a module that
    does.
    """
    layers = dict(module.named_modules())
    return any(
        node.op == "call_module"
        and any(isinstance(layer, nn.GroupNorm) for layer in layers[str(node.target)].modules())
        and any(isinstance(argument, fx.Node) and argument.op == "placeholder" for argument in node.args)
        for node in _Outline().trace(module).nodes
    )


class _Outline(fx.Tracer):
    """Tracer that enters only chains of layers, because other parts of a user's module may not be traceable."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not isinstance(m, nn.Sequential | fx.GraphModule)
