"""What training costs: multiply-adds of hosts and modules, by their shapes alone.

Axis legend: E = environments, S = slots, B = blueprints.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from esper.blueprints import blueprint_ids, build_blueprint
from esper.hosts import SegmentedHost

FORWARD_AND_BACKWARD = 3
"""A pass that trains: forward, the gradient for its inputs and the one for its weights cost about the same."""

FORWARD_AND_THROUGH = 2
"""A pass through frozen weights: forward, and the gradient for its inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiplyAdds:
    """Multiply-adds of one forward pass per sample, in convolutions and matrix products.

    A sample is an image or a sequence of tokens; attention counts as if no token were hidden from another. Norms,
    activations and other elementwise work are not counted, so a module of nothing else costs 0. Masked weights of a
    faulty host count: they are computed with.

    Attributes:
        host: of the whole host.
        suffix: ``int64 [S]``, of the host from each slot on.
        module: ``int64 [S, B]``, of each blueprint at each slot; 0 where it does not fit.
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
    """Run one sample through everything once, and count.

    Args:
        host: prototype, on the CPU.
        slot_ids: in canonical order.
        compatible: ``bool [S, B]``, blueprints that fit each slot.
        sample: what a host reads, ``[1, ...]``.
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


def _counted(run: Callable[[], Tensor]) -> int:
    counter = FlopCounterMode(display=False)
    with counter, sdpa_kernel(SDPBackend.MATH):  # fused kernels are not counted on every device
        run()
    return counter.get_total_flops() // 2  # it counts a multiply-add as two operations


def training_multiply_adds(
    costs: MultiplyAdds, blueprint: Tensor, acting: Tensor, developing: Tensor, incubation: str
) -> Tensor:
    """Multiply-adds of one training step per sample, forward and backward.

    With F(.) the forward pass of a part, 3 F for what is trained and 2 F for what gradients only pass through:

    * the host and its acting modules: 3 F(host) + sum 3 F(module);
    * ``auxiliary``: for each developing module one pass from its slot on with everything else frozen:
      3 F(module) + 2 F(host from there on) + sum over the acting modules behind it of 2 F(module);
    * ``straight_through``: each developing module runs in the main pass: 3 F(module).

    Blending itself, gates and validation are not counted.

    Args:
        costs: of the host and all blueprints.
        blueprint: ``int64 [E, S]``, -1 for none.
        acting: ``bool [E, S]``, modules that the host feels (alpha above 0).
        developing: ``bool [E, S]``, modules in isolation.
        incubation: ``auxiliary`` or ``straight_through``.

    Returns:
        ``float64 [E]``.
    """
    module = costs.module.gather(1, blueprint.clamp(min=0).T).T.double() * (blueprint >= 0)  # (E, S)
    felt = module * acting
    total = costs.host_step + FORWARD_AND_BACKWARD * (felt + module * developing).sum(dim=1)
    if incubation == "auxiliary":
        behind = felt.sum(dim=1, keepdim=True) - felt.cumsum(dim=1)
        total = total + FORWARD_AND_THROUGH * ((costs.suffix + behind) * developing).sum(dim=1)
    return total
