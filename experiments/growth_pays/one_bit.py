"""A rule that reads one bit: whether the last slot is starved."""

from __future__ import annotations

from torch import Tensor

from esper.blueprints import blueprint_ids
from esper.controllers import Stateless, germinate, on_slot, waiting
from esper.controllers.probe_rule import observed_probes
from esper.envs.records import EnvView
from esper.growth.actions import OP_FOSSILIZE, OP_GERMINATE, Op

STARVED = 0.7
"""Share of dead channels from which on the last slot counts as starved."""
MODULE = blueprint_ids().index("conv_heavy")


class OneBit(Stateless):
    """The rule that grows ``conv_heavy`` in the first epoch, in the last slot if that is starved and otherwise in the
    one before it, and keeps it as soon as that is legal.

    Args:
        reads: look at the last slot; without it, every host counts as not starved there.
    """

    def __init__(self, reads: bool) -> None:
        self.name = "one_bit" if reads else "no_bit"
        self._reads = reads

    def act(self, view: EnvView) -> Tensor:
        masks, dead = view.observation.masks, observed_probes(view)["dead_channels"]
        last = dead.shape[1] - 1
        actions = waiting(view.state.num_envs)
        for env, share in enumerate(dead[:, last].tolist()):
            slot = last if self._reads and share >= STARVED else last - 1
            ripe = masks.slot[env, OP_FOSSILIZE].nonzero().flatten().tolist()
            if ripe:
                actions[env] = on_slot(Op.FOSSILIZE, ripe[0])
            elif masks.slot[env, OP_GERMINATE, slot] and not view.state.present[env].any():
                actions[env] = germinate(slot, MODULE)
        return actions
