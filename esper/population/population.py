"""A population of growing hosts: stacked parameters, optimizer state, and the position of every module.

Axis legend: E = environments, S = slots, P = parameters.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from esper.blueprints import BLUEPRINTS, blueprint_ids, build_blueprint
from esper.growth.actions import BlendAlgorithm
from esper.growth.blending import BlendedModule, Gate
from esper.growth.state import SlotState
from esper.hosts import SegmentedHost, reset_parameters
from esper.population.forward import USERS_HOST, Network
from esper.population.layout import Columns, ParameterLayout, flatten_parameters, settle_buffers
from esper.population.mapping import Mapping, Program
from esper.population.plan import Directory
from esper.population.scaling import LossScales
from esper.population.stack import Stack
from esper.runtime.state import State
from esper.runtime.user_code import blame, is_ours


class Population:
    """E hosts of one shape, each with its own seed modules, as stacked arrays.

    Memory of seed modules is proportional to the live ones: a stack per (slot, blueprint) holds one row for each
    environment that has such a module.

    Args:
        host: prototype of the hosts, of whose parameters only the shapes are used.
        slot_ids: places of the host used as slots, in canonical order.
        num_envs: E.
        mapping: implementation that runs all hosts as one program.
        device, dtype: device and type of all parameters.
        autocast_dtype: type of products and convolutions (:mod:`esper.runtime.precision`); ``None`` for ``dtype``.

    Attributes:
        state: state of the slots, of which only blueprints and algorithms are read; in a growth environment, its state.
        scales: loss scales, with fp16 only.
    """

    def __init__(
        self,
        host: SegmentedHost,
        slot_ids: Sequence[str],
        num_envs: int,
        mapping: Mapping,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        autocast_dtype: torch.dtype | None = None,
    ) -> None:
        self.host = host
        self.slot_ids = tuple(slot_ids)
        self.num_envs = num_envs
        self.mapping = mapping
        self.device = torch.device(device)
        self.dtype = dtype
        self.autocast_dtype = autocast_dtype
        fp16 = autocast_dtype is torch.float16
        self.scales = LossScales(num_envs, len(self.slot_ids), self.device) if fp16 else None
        self.places = [host.place(slot_id) for slot_id in self.slot_ids]
        settle_buffers(host.segments, self.device)
        whole = nn.Sequential(*host.segments)
        self.sections = _split(host, self.slot_ids, mapping)
        self.columns = Columns.of(whole, [section.module for section in self.sections])
        self.hosts = Stack(Program(whole, ParameterLayout.of(whole)), self.device, dtype)
        self.hosts.append(range(num_envs), torch.zeros(num_envs, self.hosts.program.layout.size))
        self.modules: dict[tuple[int, int], Stack] = {}
        self.gates: dict[int, Stack] = {}
        self.state = SlotState.empty(num_envs, len(self.slot_ids))
        self._rows = slice(None)
        self._programs: dict[tuple[str, tuple[str, int]], Program] = {}

    @property
    def blueprint(self) -> Tensor:
        """Blueprint in each slot, ``int64 [E, S]``, -1 for none."""
        return self.state.blueprint[self._rows]

    @property
    def algorithm(self) -> Tensor:
        """Blend algorithm in each slot, ``int64 [E, S]``."""
        return self.state.algorithm[self._rows]

    @property
    def network(self) -> Network:
        """All inputs of a forward pass except features."""
        return Network(
            mapping=self.mapping,
            sections=self.sections,
            columns=self.columns,
            modules=self.modules,
            gates=self.gates,
            autocast_dtype=self.autocast_dtype,
        )

    def cast(self, x: Tensor) -> Tensor:
        """Convert inputs to the precision of the parameters; tokens stay integers."""
        return x.to(self.dtype) if x.is_floating_point() else x

    def stacks(self) -> list[Stack]:
        """Return all owners of parameters: the hosts first, then seed modules, then gates."""
        return list(self.owners().values())

    def owners(self) -> dict[tuple[int, ...], Stack]:
        """Return all owners of parameters by name: ``()`` for the hosts, (slot, blueprint) for seed modules, (slot,)
        for gates.
        """
        owners: dict[tuple[int, ...], Stack] = {(): self.hosts}
        return owners | self.modules | {(slot,): stack for slot, stack in self.gates.items()}

    def parts(self) -> list[Population]:
        """Return the groups that run at once: everything, or every environment as a population of one that shares its
        parameters.
        """
        if not self.mapping.one_by_one or self.num_envs == 1:
            return [self]
        return [self._alone(environment) for environment in range(self.num_envs)]

    def _alone(self, environment: int) -> Population:
        part = copy.copy(self)
        part.num_envs, part._rows = 1, slice(environment, environment + 1)
        part.hosts = self.hosts.alone(environment)
        part.modules = {
            key: stack.alone(environment) for key, stack in self.modules.items() if environment in stack.environments
        }
        part.gates = {
            slot: stack.alone(environment) for slot, stack in self.gates.items() if environment in stack.environments
        }
        return part

    def directory(self) -> Directory:
        """Position of each environment's modules in the stacks."""
        member, gate = torch.full_like(self.blueprint, -1), torch.full_like(self.blueprint, -1)
        for (slot, _), stack in self.modules.items():
            member[stack.environments, slot] = torch.arange(len(stack))
        for slot, stack in self.gates.items():
            gate[stack.environments, slot] = torch.arange(len(stack))
        return Directory(blueprint=self.blueprint, algorithm=self.algorithm, member=member, gate=gate)

    def reset(self, environments: Sequence[int], values: Tensor, live: Tensor) -> None:
        """Give some environments a new host and empty slots.

        Args:
            environments: indices of the environments.
            values: ``[n, P]`` host parameters.
            live: ``bool [n, P]``, the weights that exist.
        """
        for environment in environments:
            for slot in [slot for (slot, _), stack in self.modules.items() if environment in stack.environments]:
                self.remove(environment, slot)
        rows = torch.tensor(environments, dtype=torch.long).to(self.device, non_blocking=True)
        self.hosts.restart(rows, values, live)
        if self.scales is not None:
            self.scales.restart_hosts(rows)

    def state_dict(self) -> State:
        """Return every stack without the state of the slots; the key of a seed module is ``<slot>.<blueprint>``, of a
        gate ``<slot>``.
        """
        return {
            "hosts": self.hosts.state_dict(),
            "modules": {f"{slot}.{kind}": stack.state_dict() for (slot, kind), stack in self.modules.items()},
            "gates": {str(slot): stack.state_dict() for slot, stack in self.gates.items()},
            "scales": None if self.scales is None else self.scales.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        """Replace all hosts, modules and gates by saved ones, in the same order. The state of the slots is restored
        separately.
        """
        self.hosts.load_state_dict(state["hosts"])
        self.modules, self.gates = {}, {}
        for key, rows in state["modules"].items():
            slot, kind = map(int, key.split("."))
            program = self._program(blueprint_ids()[kind], slot)
            self.modules[slot, kind] = Stack(program, self.device, self.dtype)
            self.modules[slot, kind].load_state_dict(rows)
        for key, rows in state["gates"].items():
            self.gates[int(key)] = self._gate_stack(int(key))
            self.gates[int(key)].load_state_dict(rows)
        if self.scales is not None:
            self.scales.load_state_dict(state["scales"])

    def num_host_parameters(self) -> Tensor:
        """Return the number of host weights that exist and are trained, ``int64 [E]``."""
        return self.hosts.num_trained()

    def germinate(
        self, environment: int, slot: int, blueprint: int, algorithm: BlendAlgorithm, generator: torch.Generator
    ) -> None:
        """Put a new module into an empty slot, with parameters drawn from ``generator``.

        Raises:
            ValueError: the slot has a module.
        """
        if self._kind(environment, slot) is not None:
            raise ValueError(f"slot {self.slot_ids[slot]} of environment {environment} already has a module")
        name = blueprint_ids()[blueprint]
        try:
            program = self._program(name, slot)
            reset_parameters(program.module, generator)
        except (Exception, SystemExit) as error:  # of any kind: it may be a user's module
            blame(_called(name, self.places[slot].family), error)
            raise
        stack = self.modules.setdefault((slot, blueprint), Stack(program, self.device, self.dtype))
        stack.append([environment], flatten_parameters(program.module).unsqueeze(0))
        if self.scales is not None:
            self.scales.restart_module(environment, slot)
        self._set(environment, slot, blueprint, algorithm)
        if algorithm == BlendAlgorithm.GATE:
            self._add_gate(environment, slot)

    def remove(self, environment: int, slot: int) -> None:
        """Free the module in a slot, its gate and their optimizer state."""
        kind = self._kind(environment, slot)
        assert kind is not None, "only a module that is there can be freed"
        key = slot, kind
        self.modules[key].remove([environment])
        if not len(self.modules[key]):
            del self.modules[key]
        if self._gated(environment, slot):
            self._remove_gate(environment, slot)
        self._set(environment, slot, -1, BlendAlgorithm.ADD)

    def restyle(self, environment: int, slot: int, algorithm: BlendAlgorithm) -> None:
        """Change the blend algorithm of a module; create or free a gate as needed."""
        gated, gates = self._gated(environment, slot), algorithm == BlendAlgorithm.GATE
        if gated and not gates:
            self._remove_gate(environment, slot)
        if gates and not gated:
            self._add_gate(environment, slot)
        self._set(environment, slot, int(self.blueprint[environment, slot]), algorithm)

    def num_parameters(self) -> Tensor:
        """Return the number of trained parameters of each seed module, ``int64 [E, S]``, its gate included; 0 for an
        empty slot.
        """
        return self._per_slot(torch.zeros_like(self.blueprint), lambda stack: stack.program.layout.num_trained)

    def finite(self) -> Tensor:
        """Return whether all parameters of each seed module are finite, ``bool [E, S]``; true for an empty slot."""
        stacks = self.stacks()[1:]
        if not stacks:
            return torch.ones_like(self.blueprint, dtype=torch.bool)
        # One transfer for all, so that the device is waited for once.
        broken = torch.cat([~stack.values.detach().isfinite().all(dim=1) for stack in stacks]).long().cpu()
        rows = dict(zip(map(id, stacks), torch.split(broken, [len(stack) for stack in stacks]), strict=True))
        return self._per_slot(torch.zeros_like(self.blueprint), lambda stack: rows[id(stack)]) == 0

    def grown(self, environment: int, alpha: Sequence[float]) -> SegmentedHost:
        """Return one environment's network as a plain module: its host with its seed modules at the given alphas."""
        host = copy.deepcopy(self.host).to(device=self.device, dtype=self.dtype)
        _load(host.segments, self.hosts, environment)
        for slot in (self.blueprint[environment] >= 0).nonzero().flatten().tolist():
            stack = self.modules[slot, int(self.blueprint[environment, slot])]
            body = copy.deepcopy(stack.program.module).to(device=self.device, dtype=self.dtype)
            _load(body, stack, environment)
            algorithm = BlendAlgorithm(int(self.algorithm[environment, slot]))
            gate = None
            if algorithm == BlendAlgorithm.GATE:
                gate = self._gate(slot).to(device=self.device, dtype=self.dtype)
                _load(gate, self.gates[slot], environment)
            blended = BlendedModule(body, algorithm, gate, alpha[slot]).to(device=self.device, dtype=self.dtype)
            blended.alpha.fill_(alpha[slot])  # again, in the population's own precision
            host.attach(self.slot_ids[slot], blended)
        return host

    def _kind(self, environment: int, slot: int) -> int | None:
        """Return the blueprint of the module in a slot, ``None`` for an empty slot."""
        stacks = (
            kind for (at, kind), stack in self.modules.items() if at == slot and environment in stack.environments
        )
        return next(stacks, None)

    def _gated(self, environment: int, slot: int) -> bool:
        return slot in self.gates and environment in self.gates[slot].environments

    def _set(self, environment: int, slot: int, blueprint: int, algorithm: BlendAlgorithm) -> None:
        """Record a module in the state, unless the state's owner has done so."""
        for name, value in (("blueprint", blueprint), ("algorithm", int(algorithm))):
            column: Tensor = getattr(self.state, name)
            if column[environment, slot] != value:
                column = column.clone()  # what was read earlier must not change
                column[environment, slot] = value
                setattr(self.state, name, column)

    def _program(self, blueprint_id: str, slot: int) -> Program:
        family, channels = site = self.places[slot].site
        key = blueprint_id, site
        if key not in self._programs:
            module = build_blueprint(family, blueprint_id, channels)
            settle_buffers(module, self.device)
            users = None if is_ours(BLUEPRINTS[family][blueprint_id]) else _called(blueprint_id, family)
            self._programs[key] = replace(self.mapping.prepare(module), users=users)
        return self._programs[key]

    def _gate(self, slot: int) -> Gate:
        return Gate(self.places[slot].channels, self.places[slot].layout)

    def _add_gate(self, environment: int, slot: int) -> None:
        gate = self._gate(slot)
        if slot not in self.gates:
            self.gates[slot] = self._gate_stack(slot)
        self.gates[slot].append([environment], flatten_parameters(gate).unsqueeze(0))

    def _gate_stack(self, slot: int) -> Stack:
        return Stack(self.mapping.prepare(self._gate(slot)), self.device, self.dtype)

    def _remove_gate(self, environment: int, slot: int) -> None:
        self.gates[slot].remove([environment])
        if not len(self.gates[slot]):
            del self.gates[slot]

    def _per_slot(self, total: Tensor, measure: Callable[[Stack], Tensor | int]) -> Tensor:
        """Sum a measure over the stacks of each (environment, slot)."""
        for (slot, _), stack in self.modules.items():
            total[stack.environments, slot] += measure(stack)
        for slot, stack in self.gates.items():
            total[stack.environments, slot] += measure(stack)
        return total


def _split(host: SegmentedHost, slot_ids: Sequence[str], mapping: Mapping) -> list[Program]:
    """Divide the host at its slots; places that are not slots are inside a section."""
    sections: list[Program] = []
    pending: list[nn.Module] = []
    for position, segment in enumerate(host.segments):
        pending.append(segment)
        if position < len(host.places) and host.places[position].slot_id not in slot_ids:
            continue
        section = mapping.prepare(pending[0] if len(pending) == 1 else nn.Sequential(*pending))
        sections.append(replace(mapping.settle(section), users=USERS_HOST if host.family == "custom" else None))
        pending = []
    return sections


def _called(blueprint_id: str, family: str) -> str:
    """Return the name of a blueprint as its user knows it."""
    return f"plugins: blueprint {blueprint_id!r} of {family} hosts"


def _load(module: nn.Module, stack: Stack, environment: int) -> None:
    values = stack.program.layout.unflatten(stack.values.detach()[stack.row(environment)])
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(values[name])
