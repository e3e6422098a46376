"""Seed modules in a user's network: created, freed, restyled, incubated, and finally made ordinary layers.

Axis legend: S = slots.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from esper.blueprints import blueprint_ids, build_blueprint
from esper.blueprints.residual import settle
from esper.grower.compiling import eager
from esper.grower.membership import Membership
from esper.grower.norms import total_norm
from esper.grower.place import Flow, Place
from esper.growth import SlotState, Stage
from esper.growth.actions import BlendAlgorithm
from esper.growth.blending import BlendedModule, Gate
from esper.growth.layouts import layout_of
from esper.hosts import reset_parameters
from esper.population.mapping.norms import normalises_input
from esper.runtime.rng import generator

GATE = "gate."
"""Prefix of the names of a gate's parameters."""


@dataclass(frozen=True, slots=True)
class Site:
    """Requirements of a place for its modules.

    Attributes:
        family: host family whose blueprints fit.
        channels: channels of the feature.
        like: a parameter of the place, or of the model if it has none, whose device and type modules have.
    """

    family: str
    channels: int
    like: Tensor


class SeedModules:
    """Body of one environment: the places of a network and their modules.

    Args:
        places: places in the order of slots.
        sites: requirements of each place.
        membership: seed parameters in the optimizer.
        num_host_parameters: number of parameters of the original network.
        seed: name of the random streams that initialise modules.

    Attributes:
        births: number of modules created so far.
    """

    def __init__(
        self,
        places: Sequence[Place],
        sites: Sequence[Site],
        membership: Membership,
        *,
        num_host_parameters: int,
        seed: int,
    ) -> None:
        self.places, self.sites, self.births = list(places), list(sites), 0
        self.membership, self._seed = membership, seed
        self._num_host_parameters = torch.tensor([num_host_parameters])

    def blended(self, slot: int) -> BlendedModule:
        """Return the module in a slot that has one."""
        module = self.places[slot].seed_module
        assert isinstance(module, BlendedModule)
        return module

    @property
    def flows(self) -> list[int]:
        """Present flow of each place."""
        return [place.flow for place in self.places]

    @property
    def compiled(self) -> bool:
        """True if the last training pass was compiled."""
        return any(place.tap is not None and place.tap.compiled for place in self.places)

    def have_run(self) -> set[int]:
        """Return the slots whose places have run, outside of compiled code, since this was last asked."""
        taps = [(slot, place.tap) for slot, place in enumerate(self.places) if place.tap is not None]
        ran = {slot for slot, tap in taps if tap.ran}
        for _, tap in taps:
            tap.ran = False
        return ran

    def bodies(self) -> list[list[nn.Parameter]]:
        """Return the parameters of each slot's module without its gate."""
        return [
            [] if place.seed_module is None else list(self.blended(slot).body.parameters())
            for slot, place in enumerate(self.places)
        ]

    def germinate(self, environment: int, slot: int, blueprint: int, algorithm: BlendAlgorithm) -> None:
        """Create a module, initialised from a stream named by seed, slot and number of earlier modules."""
        body = self._build(slot, blueprint)
        reset_parameters(body, generator("module", self._seed, slot, self.births))
        self.births += 1
        self.put(slot, body, algorithm)
        for name, parameter in self.blended(slot).named_parameters():
            self.membership.join(slot, name, parameter)

    def renew(self, slot: int, blueprint: int, algorithm: BlendAlgorithm) -> None:
        """Put a new module into an empty slot, without initialising it or adding it to the optimizer: a saved state
        follows.
        """
        self.put(slot, self._build(slot, blueprint), algorithm)

    def _build(self, slot: int, blueprint: int) -> nn.Module:
        site = self.sites[slot]
        body = build_blueprint(site.family, blueprint_ids()[blueprint], site.channels)
        return body.to(device=site.like.device, dtype=site.like.dtype)

    def put(self, slot: int, body: nn.Module, algorithm: BlendAlgorithm) -> None:
        """Put a module into a slot, at alpha 0."""
        like, place = self.sites[slot].like, self.places[slot]
        gate = self._gate(slot) if algorithm is BlendAlgorithm.GATE else None
        module = BlendedModule(body, algorithm, gate, 0.0)
        module.alpha = module.alpha.to(device=like.device, dtype=torch.promote_types(like.dtype, torch.float32))
        place.seed_module, place.normalises = module.train(place.training), normalises_input(body)

    def _gate(self, slot: int) -> Gate:
        site = self.sites[slot]
        gate = Gate(site.channels, layout_of(site.family))
        return gate.to(device=site.like.device, dtype=site.like.dtype)

    def remove(self, environment: int, slot: int) -> None:
        """Free the module in a slot, its gate and their optimizer state."""
        self.membership.leave(slot)
        self.places[slot].seed_module, self.places[slot].flow = None, Flow.OFF

    def restyle(self, environment: int, slot: int, algorithm: BlendAlgorithm) -> None:
        """Change the blend algorithm of a module; create or free a gate as needed."""
        module = self.blended(slot)
        if module.gate is not None and algorithm is not BlendAlgorithm.GATE:
            self.membership.leave(slot, GATE)
            module.gate = None
        if module.gate is None and algorithm is BlendAlgorithm.GATE:
            module.gate = self._gate(slot).train(module.training)
            for name, parameter in module.gate.named_parameters():
                self.membership.join(slot, GATE + name, parameter)
        module.algorithm = algorithm

    def num_host_parameters(self) -> Tensor:
        """Return the number of trained parameters of the original network, ``int64 [1]``."""
        return self._num_host_parameters

    def num_parameters(self) -> Tensor:
        """Return the number of trained parameters of each module, ``int64 [1, S]``, its gate included."""
        return torch.tensor([[sum(p.numel() for p in self._parameters(slot)) for slot in range(len(self.places))]])

    def finite(self) -> Tensor:
        """Return whether all parameters of each module are finite, ``bool [1, S]``."""
        slots = range(len(self.places))
        return torch.tensor([[all(bool(p.isfinite().all()) for p in self._parameters(slot)) for slot in slots]])

    def _parameters(self, slot: int) -> Iterator[nn.Parameter]:
        module = self.places[slot].seed_module
        return iter(()) if module is None else module.parameters()

    @torch.no_grad()
    def set_up(self, state: SlotState, *, straight: bool, isolate_until_fossilized: bool) -> None:
        """Set the flows of the next epoch's forward passes from the lifecycle.

        Args:
            state: state of one environment, after the tick.
            straight: train developing modules straight-through in the host's own pass.
            isolate_until_fossilized: keep gradients of blended modules out of the host until they are FOSSILIZED.
        """
        developing, present = state.developing[0].tolist(), state.present[0].tolist()
        for slot, place in enumerate(self.places):
            if not present[slot]:
                place.flow = Flow.OFF
                continue
            alpha = float(state.alpha[0, slot])
            self.blended(slot).alpha.fill_(alpha)
            place.full = alpha == 1.0
            unsettled = int(state.stage[0, slot]) != Stage.FOSSILIZED
            if developing[slot]:
                place.flow = Flow.STRAIGHT if straight else Flow.OFF
            else:
                place.flow = Flow.ISOLATED if isolate_until_fossilized and unsettled else Flow.JOINT

    @contextmanager
    def flowing(self, flows: Sequence[int]) -> Iterator[None]:
        """Use other flows within the block, without measurements and compilation."""
        before = self.flows
        taps = [place.tap for place in self.places if place.tap is not None]
        try:
            for tap in taps:
                tap.open = False
            for place, flow in zip(self.places, flows, strict=True):
                place.flow = flow
            with eager():
                yield
        finally:
            for tap in taps:
                tap.open = True
            for place, flow in zip(self.places, before, strict=True):
                place.flow = flow

    def configuration(self, alpha: Sequence[float], developing: Sequence[bool], *, preview: bool) -> list[Flow]:
        """Return the flows of a configuration; modules at alpha 0 are off.

        Args:
            alpha: alpha of each slot, its present one or 0; with ``preview``, not 0 for a developing module that is on.
            developing: true for each slot with a developing module.
            preview: let developing modules be on, at alpha 1.
        """
        on = [Flow.PREVIEW if apart else Flow.JOINT for apart in developing]
        off = [not value or (apart and not preview) for value, apart in zip(alpha, developing, strict=True)]
        return [Flow.OFF if away else flow for flow, away in zip(on, off, strict=True)]

    def incubate(self, slot: int, loss: Callable[[], Tensor], scale: float) -> Tensor:
        """Add one module's gradients of a loss to its ``.grad``, except gradients that are not finite.

        Returns:
            ``bool []``, true if they were not finite.

        Raises:
            ValueError: the loss does not run the place.
        """
        flows = [Flow.INCUBATED if number == slot else place.flow for number, place in enumerate(self.places)]
        parameters = list(self._parameters(slot))
        with self.flowing(flows), torch.no_grad():
            value = loss()
            if not isinstance(value, Tensor) or not value.requires_grad:
                raise ValueError(
                    "incubate: loss must return the loss of a pass through the model, as a tensor with a graph"
                )
            torch.set_grad_enabled(True)
            gradients = torch.autograd.grad(value if scale == 1.0 else value * scale, parameters, allow_unused=True)
        average = self.membership.replicas.average
        found = [(p, average(g)) for p, g in zip(parameters, gradients, strict=True) if g is not None]
        broken = ~(total_norm([gradient for _, gradient in found]) < math.inf)  # true for NaN too
        ask = broken.device.type == "cpu"  # elsewhere the answer would wait for the device
        for parameter, gradient in found:
            sound = gradient if ask and not broken else gradient.masked_fill(broken, 0.0)
            parameter.grad = sound if parameter.grad is None else parameter.grad.add_(sound)
        return broken

    def rest(self, slots: Sequence[int]) -> None:
        """Have the optimizer leave some modules as they are in its next step."""
        for slot in slots:
            for parameter in self._parameters(slot):
                parameter.grad = None

    def settle(self, slot: int) -> None:
        """Make a kept module an ordinary layer by multiplying its alpha into its scale where possible."""
        place = self.places[slot]
        place.seed_module = settle(self.blended(slot))
        place.flow, place.full = Flow.JOINT, False
