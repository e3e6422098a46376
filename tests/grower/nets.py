"""Small networks that grow, their data, and controllers that follow a script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from schema_defaults import growth_rules
from torch import Tensor, nn

import esper
from esper.controllers.base import Stateless, germinate, on_slot
from esper.envs.observations import Observation
from esper.envs.records import EnvView
from esper.growth import GrowthRules
from esper.growth.actions import AlphaCurve, AlphaSpeed, AlphaTarget, Blueprint, Head, Op, Style
from esper.runtime.rng import generator

SLOTS = ("stem", "body.0")
STEPS = 4
QUICK = growth_rules(
    max_developing=3,
    max_seeds=3,
    min_training_epochs=2,
    min_cull_age=1,
    embargo_epochs=1,
    min_gradient_health=0.0,
    explode_norm=1e9,
)


class Net(nn.Module):
    """A convolutional classifier with batch norm and dropout."""

    def __init__(self, *, norm: bool = True, dropout: float = 0.2) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 6, 3, stride=2, padding=1), self.normed(norm), nn.ReLU())
        self.body = nn.ModuleList([nn.Sequential(nn.Conv2d(6, 6, 3, padding=1), self.normed(norm), nn.ReLU())])
        self.dropout, self.head = nn.Dropout(dropout), nn.Linear(6, 5)

    @staticmethod
    def normed(norm: bool) -> nn.Module:
        return nn.BatchNorm2d(6) if norm else nn.GroupNorm(2, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in self.body:
            x = layer(x)
        out: Tensor = self.head(self.dropout(x).mean((2, 3)))
        return out


def net(seed: int = 0, dtype: torch.dtype = torch.float32, **options: Any) -> Net:
    torch.manual_seed(seed)
    return Net(**options).to(dtype)


def batch(step: int = 0, size: int = 12, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Images whose bright corner tells the class."""
    stream = generator("grower", step)
    y = torch.randint(5, (size,), generator=stream)
    x = torch.randn(size, 1, 8, 8, generator=stream, dtype=dtype)
    x[torch.arange(size), 0, y, y] += 3.0
    return x, y


def loss_of(model: nn.Module, step: int = 0) -> Callable[[], Tensor]:
    x, y = batch(step, dtype=next(model.parameters()).dtype)
    return lambda: F.cross_entropy(model(x), y)


def score_of(model: nn.Module, size: int = 60) -> esper.Score:
    x, y = batch(10_000, size, dtype=next(model.parameters()).dtype)
    return esper.classification_score(model, [(x, y)])


class Script(Stateless):
    """Rows by epoch; WAIT in the others."""

    name = "script"

    def __init__(self, rows: dict[int, Tensor]) -> None:
        self.rows = rows
        self.seen: list[Observation] = []

    def act(self, view: EnvView) -> Tensor:
        self.seen.append(view.observation)
        epoch = int(view.history.epoch)
        return self.rows.get(epoch, on_slot(Op.WAIT, 0)).unsqueeze(0)


def born(slot: int, style: Style = Style.LINEAR_ADD, blueprint: Blueprint = Blueprint.CONV_LIGHT) -> Tensor:
    row = germinate(slot, blueprint)
    row[Head.STYLE] = style
    return row


def restyled(slot: int, style: Style, target: AlphaTarget = AlphaTarget.MOST) -> Tensor:
    row = on_slot(Op.SET_ALPHA_TARGET, slot)
    row[Head.STYLE], row[Head.ALPHA_TARGET], row[Head.ALPHA_SPEED] = style, target, AlphaSpeed.FAST
    return row


def faded(slot: int) -> Tensor:
    row = on_slot(Op.CULL, slot)
    row[Head.ALPHA_SPEED], row[Head.ALPHA_CURVE] = AlphaSpeed.FAST, AlphaCurve.COSINE
    return row


def kept(slot: int) -> Tensor:
    return on_slot(Op.FOSSILIZE, slot)


def grower(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    controller: Any,
    *,
    slots: Sequence[str] = SLOTS,
    rules: GrowthRules | None = QUICK,
    num_epochs: int = 25,
    **options: Any,
) -> esper.Grower:
    return esper.Grower(
        model,
        optimizer,
        slots=slots,
        controller=controller,
        rules=rules,
        num_epochs=num_epochs,
        first_loss=loss_of(model),
        **options,
    )


def train_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: Any,
    epoch: int,
    growing: esper.Grower | None = None,
    *,
    steps: int = STEPS,
    evaluate: Callable[[], esper.Score] | None = None,
) -> Any:
    """Train some steps and, with a Grower, make its calls; return the result of :meth:`end_epoch`."""
    for step in range(steps):
        loss = loss_of(model, 100 * epoch + step)
        optimizer.zero_grad()
        loss().backward()
        if growing is not None:
            growing.incubate(loss)
        optimizer.step()
        if scheduler is not None and not isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            scheduler.step()
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        scheduler.step(1.0)
    return growing.end_epoch(evaluate or (lambda: score_of(model))) if growing is not None else None
