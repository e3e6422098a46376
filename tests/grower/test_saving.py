"""A Grower that is saved and restored continues as if uninterrupted, from every stage."""

from __future__ import annotations

import copy
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import give_opinions
from nets import QUICK, SLOTS, Net, Script, born, faded, grower, kept, loss_of, net, restyled, score_of, train_epoch

import esper
from esper.blueprints import blueprint_ids
from esper.config import to_plain
from esper.config.growth import ObservationConfig, SlotsConfig
from esper.config.learning import PolicyConfig
from esper.config.root import Config
from esper.controllers import PlannedGermination, Schedule
from esper.experiment.acting import build_policy
from esper.experiment.checkpoint import save_checkpoint
from esper.growth.actions import OP_FOSSILIZE, OP_GERMINATE, Style
from esper.runtime.options import BodyName
from tests.tiers import few, slowly

EPOCHS, STEPS = 12, 2
RULES = replace(QUICK, min_training_epochs=1)
SCRIPT = {0: born(0, Style.GATED_GATE), 1: born(1), 6: restyled(1, Style.GATED_GATE), 7: faded(0), 9: kept(1)}


def checkpoint(path: Path, num_slots: int, body: BodyName) -> Path:
    """Make a checkpoint of a policy with clear preferences."""
    widths = {"encoder_dim": 16, "lstm_dim": 16, "head_dim": 16, "blueprint_head_dims": [16], "value_dim": 16}
    config = Config(
        policy=PolicyConfig(body=body, **widths),
        slots=SlotsConfig(num_slots=num_slots, min_training_epochs=1),
        observation=ObservationConfig(slot_probes=["dead_channels", "effective_rank"]),
    )
    policy, normaliser = build_policy(config, num_slots)
    give_opinions(policy, 300.0)
    with torch.no_grad():
        policy.heads.networks["op"][-1].bias[[OP_GERMINATE, OP_FOSSILIZE]] += 1e3
    save_checkpoint(path, policy=policy, normaliser=normaliser, iteration=1, config=to_plain(config))
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Make checkpoints: of a policy for these two slots, and of one that was trained on three and takes any number."""
    folder = tmp_path_factory.mktemp("trained")
    return {
        "learned": checkpoint(folder / "learned.pt", 2, BodyName.flat),
        "shared": checkpoint(folder / "shared.pt", 3, BodyName.shared),
    }


def controllers(trained: dict[str, Path], name: str) -> Any:
    if name == "schedule":
        return Schedule([[PlannedGermination(0, 1, blueprint_ids().index("norm")), PlannedGermination(2, 0, 1)]])
    return {"script": Script(SCRIPT), **trained}.get(name, name)


class Run:
    """Model, optimizer, scheduler and Grower, built from scratch."""

    def __init__(self, controller: Any, seed: int = 0) -> None:
        self.model: Net = net(seed)
        self.optimizer = torch.optim.Adam(self.model.parameters(), 0.01)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 0.02, total_steps=EPOCHS * STEPS)
        rules = None if isinstance(controller, Path) else RULES
        self.grower = grower(self.model, self.optimizer, controller, rules=rules, num_epochs=EPOCHS)

    def epoch(self, number: int) -> Any:
        return train_epoch(self.model, self.optimizer, self.scheduler, number, self.grower, steps=STEPS)

    def save(self) -> BytesIO:
        file = BytesIO()
        parts = (self.grower, self.model, self.optimizer, self.scheduler)
        torch.save([*(part.state_dict() for part in parts), torch.get_rng_state()], file)
        file.seek(0)
        return file

    def load(self, file: BytesIO) -> None:
        *states, stream = torch.load(file, weights_only=True)
        for part, state in zip((self.grower, self.model, self.optimizer, self.scheduler), states, strict=True):
            part.load_state_dict(state)
        torch.set_rng_state(stream)


@pytest.mark.parametrize(
    "name", ["script", "learned", *(slowly(name) for name in ("shared", "heuristic", "schedule", "random"))]
)
@few(1)
def test_saved_and_continued_in_every_epoch_is_bit_equal_to_not_stopping(trained: dict[str, Path], name: str) -> None:
    torch.manual_seed(3)
    whole = Run(controllers(trained, name))
    torch.manual_seed(7)
    files, reports, stages = [], [], set()
    for epoch in range(EPOCHS):
        files.append(whole.save())
        reports.append(whole.epoch(epoch))
        stages |= {(each.stage.name, each.fading) for each in reports[-1].slots.values()}
    for start, file in enumerate(files):
        if name != "script" and start % 5 != 2:
            continue
        again = Run(controllers(trained, name), seed=start)
        again.load(file)
        file.seek(0)
        assert repr(again.grower.state_dict()) == repr(torch.load(file, weights_only=True)[0])
        for epoch in range(start, min(start + 2, EPOCHS)):
            assert again.epoch(epoch) == reports[epoch]
        if start == EPOCHS - 2 or name != "script":
            for epoch in range(start + 2, EPOCHS):
                again.epoch(epoch)
            for key, value in whole.model.state_dict().items():
                assert torch.equal(again.model.state_dict()[key], value)
            assert again.grower.sheet() == whole.grower.sheet()
    if name == "script":
        assert {("TRAINING", False), ("HOLDING", True), ("HOLDING", False), ("CULLED", False)} <= stages
        assert ("FOSSILIZED", False) in stages
    assert any(stage == "TRAINING" for stage, _ in stages)


@pytest.mark.parametrize("steps", [1, 2])
def test_what_was_measured_before_a_save_within_an_epoch_counts_after_it(steps: int) -> None:
    def built() -> tuple[Net, torch.optim.Optimizer, esper.Grower]:
        model = net(norm=False, dropout=0.0)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        return model, optimizer, grower(model, optimizer, Script(SCRIPT), rules=RULES)

    def train(model: Net, optimizer: torch.optim.Optimizer, growing: esper.Grower, numbers: range) -> None:
        for step in numbers:
            loss = loss_of(model, step)
            optimizer.zero_grad()
            loss().backward()
            growing.incubate(loss)
            optimizer.step()

    parts, again = built(), built()
    train(*parts, range(steps))
    for part, saved in zip(again[::-1], parts[::-1], strict=True):
        part.load_state_dict(copy.deepcopy(saved.state_dict()))
    norms = []
    for model, optimizer, growing in (parts, again):
        train(model, optimizer, growing, range(steps, 2))
        norms.append(growing.end_epoch(lambda model=model: score_of(model)).slots["stem"].gradient_norm)  # type: ignore[misc]
    assert norms[0] == norms[1] is not None


@pytest.mark.parametrize("num_slots", [1, 2, 5, 8])
def test_a_policy_trained_on_three_slots_grows_any_number_of_them(trained: dict[str, Path], num_slots: int) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Conv2d(1 if not number else 4, 4, 3, padding=1) for number in range(8)))
    x = torch.randn(4, 1, 6, 6)

    def loss() -> torch.Tensor:
        return model(x).square().mean()

    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    growing = esper.Grower(
        model,
        optimizer,
        slots=[str(number) for number in range(num_slots)],
        controller=trained["shared"],
        num_epochs=4,
        first_loss=loss,
    )
    for _ in range(2):
        loss().backward()
        growing.incubate(loss)
        optimizer.step()
        report = growing.end_epoch(lambda: esper.Score(50.0, float(loss().detach()), 0.5))
    assert len(report.slots) == num_slots
    assert {each.stage.name for each in report.slots.values()} - {"DORMANT"}


def test_a_controller_that_decided_in_another_network_starts_anew(trained: dict[str, Path]) -> None:
    plan = controllers(trained, "schedule")
    assert [Run(plan).grower.view().last_action.op for _ in range(2)] == ["GERMINATE", "GERMINATE"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "x"}, "state: it is not of a Grower"),
        ({"version": 2}, "state: it has version 2, this Esper reads 1: update Esper"),
        ({"slots": ["stem", "head"]}, r"state: it is of other slots \(\['stem', 'head'\]\), this Grower has"),
        ({"model": "x"}, "state: it is of another model"),
        ({"num_epochs": 3}, "state: it is of num_epochs=3, this Grower has 12: use the same"),
        ({"controller": "never"}, "state: it is of controller='never', this Grower has '.*': use the same"),
    ],
)
def test_a_state_that_belongs_elsewhere_is_refused_and_nothing_changes(change: dict[str, Any], message: str) -> None:
    run = Run(Script(SCRIPT))
    before = run.grower.state_dict()
    with pytest.raises(ValueError, match=message):
        run.grower.load_state_dict({**before, **change})
    assert list(run.model.stem.esper.state_dict()) == [
        *("alpha", "body.scale", "body.body.0.weight", "body.body.1.weight", "body.body.1.bias"),
        *("gate.weight", "gate.bias"),
    ]


def test_a_state_of_another_trained_controller_is_refused(trained: dict[str, Path], tmp_path: Path) -> None:
    state = Run(trained["learned"]).grower.state_dict()
    record = torch.load(trained["learned"], weights_only=True)
    next(iter(record["policy"].values())).add_(1e-3)
    torch.save(record, tmp_path / "other.pt")
    other = Run(tmp_path / "other.pt").grower
    with pytest.raises(ValueError, match="state: it is of another trained controller"):
        other.load_state_dict(state)
    other.load_state_dict({name: value for name, value in state.items() if name != "policy"})


def test_a_state_of_a_wider_model_is_refused() -> None:
    run, other = Run("never"), torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 5))
    x = torch.randn(4, 8)
    growing = esper.Grower(
        other,
        torch.optim.SGD(other.parameters(), 0.1),
        slots=["0"],
        controller="never",
        num_epochs=EPOCHS,
        first_loss=lambda: other(x).sum(),
    )
    with pytest.raises(ValueError, match="state: it is of other slots"):
        run.grower.load_state_dict(growing.state_dict())
    assert run.grower.sheet()["slots"] == list(SLOTS)
