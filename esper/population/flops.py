"""Cost of training: multiply-adds of hosts and modules, from their shapes alone.

Axis legend: E = environments, S = slots, B = blueprints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from esper.blueprints import blueprint_ids, build_blueprint
from esper.growth.stages import Incubation
from esper.hosts import SegmentedHost

FORWARD_AND_BACKWARD = 3
"""Cost of a training pass in forward passes: forward, gradient of inputs and gradient of weights cost about the
same.
"""

FORWARD_AND_THROUGH = 2
"""Cost of a pass through frozen weights in forward passes: forward, and gradient of inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiplyAdds:
    """Multiply-adds of one forward pass per sample, in convolutions and matrix products.

    A sample is an image or a sequence of tokens; attention counts as if no token were masked. Norms, activations and
    other elementwise work are not counted, so a module of nothing else costs 0. Masked weights of an impaired host
    count, because they are computed.

    Attributes:
        host: multiply-adds of the whole host.
        suffix: ``int64 [S]``, multiply-adds of the host from each slot on.
        module: ``int64 [S, B]``, multiply-adds of each blueprint at each slot; 0 where it does not fit.
    """

    host: int
    suffix: Tensor
    module: Tensor

    @property
    def host_step(self) -> int:
        """Multiply-adds of one training step of the host alone, per sample."""
        return FORWARD_AND_BACKWARD * self.host


@torch.no_grad()
def count_multiply_adds(
    host: SegmentedHost, slot_ids: Sequence[str], compatible: Tensor, sample: Tensor
) -> MultiplyAdds:
    """Count multiply-adds by running one sample through host and blueprints.

    Args:
        host: prototype, on the CPU.
        slot_ids: slot ids in canonical order.
        compatible: ``bool [S, B]``, blueprints that fit each slot.
        sample: input of a host, ``[1, ...]``.
    """
    arriving = [host.forward_to(slot_id, sample) for slot_id in slot_ids]
    suffix = [
        _counted(lambda slot_id=slot_id, h=h: host.forward_from(slot_id, h))  # type: ignore[misc]
        for slot_id, h in zip(slot_ids, arriving, strict=True)
    ]
    module = torch.zeros(compatible.shape, dtype=torch.int64)
    known: dict[tuple[int, str, torch.Size], int] = {}
    for slot, blueprint in compatible.nonzero().tolist():
        feature, place = arriving[slot], host.place(slot_ids[slot])
        key = blueprint, place.family, feature.shape
        if key not in known:
            body = build_blueprint(place.family, blueprint_ids()[blueprint], place.channels)
            known[key] = _counted(lambda body=body, feature=feature: body(feature))  # type: ignore[misc]
        module[slot, blueprint] = known[key]
    return MultiplyAdds(host=_counted(lambda: host(sample)), suffix=torch.tensor(suffix), module=module)


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count of floating-point operations by PyTorch's own formulas.

    PyTorch's ``FlopCounterMode`` counts the same, and imports the compiler, which takes as long as importing torch.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else PyTorch wraps the method below, for which it imports the compiler

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        formula = flop_registry.get(getattr(func, "overloadpacket", func))
        if formula is None and hasattr(func, "decompose"):
            with self:
                made_of = func.decompose(*args, **named)
            if made_of is not NotImplemented:
                return made_of
        result = func(*args, **named)
        if formula is not None:
            self.total += int(formula(*args, **named, out_val=result))
        return result


def count_operations(run: Callable[[], object]) -> int:
    """Count the floating-point operations of convolutions and matrix products in a call, backward passes included."""
    with _Operations() as operations, sdpa_kernel(SDPBackend.MATH):  # fused kernels are not counted on every device
        run()
    return int(operations.total)


def _counted(run: Callable[[], Tensor]) -> int:
    return count_operations(run) // 2  # a multiply-add is two operations


def incubation_share(num_steps: int, every: int) -> float:
    """Return the share of the training steps in which developing modules learn: the first step and every k-th after."""
    return len(range(0, num_steps, every)) / num_steps


def training_multiply_adds(
    costs: MultiplyAdds,
    blueprint: Tensor,
    acting: Tensor,
    developing: Tensor,
    incubation: Incubation,
    share: float = 1.0,
) -> Tensor:
    """Compute multiply-adds of one training step per sample, forward and backward, averaged over the steps of an epoch.

    With F(.) the forward pass of a part, 3 F for trained parts and 2 F for parts that gradients only pass through:

    * the host and its acting modules: 3 F(host) + sum 3 F(module);
    * ``auxiliary``: for each developing module one pass from its slot on with everything else frozen:
      3 F(module) + 2 F(host from there on) + sum over the acting modules behind it of 2 F(module);
    * ``straight_through``: each developing module runs in the main pass: 3 F(module).

    What developing modules cost is multiplied by their share of the steps. Blending itself, gates and validation are
    not counted.

    Args:
        costs: multiply-adds of the host and of all blueprints.
        blueprint: ``int64 [E, S]``, -1 for none.
        acting: ``bool [E, S]``, modules that affect the host (alpha above 0).
        developing: ``bool [E, S]``, modules in isolation.
        incubation: training method of developing modules.
        share: share of the steps in which developing modules learn (:func:`incubation_share`).

    Returns:
        ``float64 [E]``.
    """
    module = costs.module.gather(1, blueprint.clamp(min=0).T).T.double() * (blueprint >= 0)  # (E, S)
    felt = module * acting
    learning = FORWARD_AND_BACKWARD * (module * developing).sum(dim=1)
    if incubation == Incubation.auxiliary:
        behind = felt.sum(dim=1, keepdim=True) - felt.cumsum(dim=1)
        learning = learning + FORWARD_AND_THROUGH * ((costs.suffix + behind) * developing).sum(dim=1)
    return costs.host_step + FORWARD_AND_BACKWARD * felt.sum(dim=1) + share * learning
