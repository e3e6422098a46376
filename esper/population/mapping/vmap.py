"""The vmap mapping, ``torch.func.vmap`` over rows: works for every module that vmap can batch, one kernel for all rows.

Features are one tensor ``[R, B, ...]``. Under AMP on a CPU, torch's autocast reaches matrix products inside vmap but
not convolutions: those stay in fp32 there, in this mapping alone.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.func import functional_call, vmap

from esper.population.layout import ParameterLayout
from esper.population.mapping.base import Program
from esper.population.mapping.stacked import StackedFeatures


class VmapMapping(StackedFeatures):
    """Mapping that runs ``functional_call`` under vmap over stacked parameters and features."""

    name = "vmap"

    def prepare(self, module: nn.Module) -> Program:
        def run(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
            result: Tensor = functional_call(module, parameters, (x,))
            return result

        return Program(module, ParameterLayout.of(module), vmap(run))

    def evaluate(self, program: Program, parameters: Tensor, features: Tensor) -> Tensor:
        result: Tensor = program.compiled(program.layout.unflatten(parameters), features)
        return result
