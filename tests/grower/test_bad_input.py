"""Invalid arguments are refused in one line that names the argument and the remedy, without changing the model."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from nets import QUICK, SLOTS, Net, Script, born, grower, net, score_of, train_epoch
from torch import Tensor, nn

import esper
from esper.config import to_plain
from esper.config.growth import ObservationConfig, SlotsConfig
from esper.config.learning import RewardConfig
from esper.config.root import Config
from esper.controllers import Never
from esper.experiment.acting import build_policy
from esper.experiment.checkpoint import save_checkpoint
from esper.grower.place import Place
from esper.growth import Incubation

X = torch.zeros(())


class Odd(nn.Module):
    """Submodules that are none of a network's places."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.unused = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.tied = nn.Linear(6, 6)
        self.tied.weight = self.first.weight
        self.twice, self.cube, self.whole = nn.Linear(6, 6), nn.Unflatten(1, (1, 1, 2, 3)), nn.Flatten()
        self.narrow, self.back = nn.Linear(6, 2), nn.Linear(2, 6)
        self.pair = Pairs()

    def forward(self, x: Tensor) -> Tensor:
        x = self.tied(self.second(self.first(x)))
        x = self.back(self.narrow(self.twice(self.twice(x))))
        self.pair(x)
        return self.whole(self.cube(x))  # type: ignore[no-any-return]


class Pairs(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"x": x}


def refused(message: str, model: nn.Module | None = None, kind: type[Exception] = ValueError, **changes: Any) -> None:
    """Expect a Grower to be refused in one line with the model unchanged."""
    model = Odd() if model is None else model
    x = torch.randn(4, 6)
    given: dict[str, Any] = {
        "slots": ["first"],
        "controller": "never",
        "num_epochs": 3,
        "first_loss": lambda: model(x).square().mean(),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        **changes,
    }
    before = [(name, type(module)) for name, module in model.named_modules()]
    values = {name: value.clone() for name, value in model.state_dict().items()}
    hooks = dict(model._forward_pre_hooks)
    with pytest.raises(kind, match=message) as caught:
        esper.Grower(given.pop("hand_over", model), given.pop("optimizer"), **given)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
    assert [(name, type(module)) for name, module in model.named_modules()] == before
    assert all(torch.equal(values[name], value) for name, value in model.state_dict().items())
    assert dict(model._forward_pre_hooks) == hooks


@pytest.mark.parametrize(
    ("slots", "message"),
    [
        (["fist"], "slots: 'fist' is no submodule of the model; the nearest are first"),
        (["first", "first"], "slots: 'first' is named twice"),
        (["pair", "pair.x"], "slots: 'pair.x' is no submodule"),
        ([""], "slots: '' is the model itself"),
        ([], r"slots: it must be a list of paths of submodules, got \[\]"),
        ("first", "slots: it must be a list of paths of submodules, got 'first'"),
        (["first", "tied"], "slots: 'tied' shares parameters with 'first'"),
        (["twice"], "slots: 'twice' runs 2 times in a pass"),
        (["first", "unused"], "slots: 'unused' does not run in first_loss: leave it out"),
        (["second", "first"], r"slots: they run in another order, name them so: \['first', 'second'\]"),
        (["cube"], r"slots: 'cube' returns \[4, 1, 1, 2, 3\], which is none of \[B, C, H, W\], \[B, T, C\], \[B, C\]"),
        (["pair"], "slots: 'pair' returns a dict, which is none of"),
    ],
)
def test_paths(slots: Any, message: str) -> None:
    refused(message, slots=slots)


def test_a_place_inside_of_another() -> None:
    refused(
        r"slots: 'stem.0' is inside of 'stem'",
        net(),
        slots=["stem", "stem.0"],
        first_loss=lambda: torch.zeros(()),
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_epochs": 0}, "num_epochs=0 must be a whole number from 1 on"),
        ({"statistics_batches": 0}, "statistics_batches=0 must be a whole number from 1 on"),
        ({"incubation": "none"}, "incubation='none': choose one of auxiliary, straight_through"),
        ({"blueprints": ["mpl"]}, "blueprints: 'mpl' is unknown; choose from noop, conv_light"),
        ({"blueprints": ["conv_light"]}, r"slots: nothing that may grow fits 'first', \[B, C\] with C=6: .*norm, lora"),
        ({"first_loss": lambda: torch.zeros(())}, "slots: 'first' does not run in first_loss"),
        ({"controller": "heuristics"}, "controller: 'heuristics' is no checkpoint, run folder or name; the names are"),
        ({"controller": Path("nowhere")}, "controller: 'nowhere' is no checkpoint"),
        ({"num_epochs": True}, "num_epochs=True must be a whole number"),
        ({"blueprints": "norm"}, "blueprints: it must be a list of names, got 'norm'"),
    ],
)
def test_numbers_and_names(changes: dict[str, Any], message: str) -> None:
    refused(message, **changes)


def test_a_value_where_a_function_or_rules_are_needed() -> None:
    refused("first_loss: it must be a function that computes the loss, got a Tensor", None, TypeError, first_loss=X)
    refused(r"rules: give esper.usual_rules\(num_slots, ...\), got a dict", None, TypeError, rules={"max_seeds": 2})
    model, _, growing = running()
    with pytest.raises(TypeError, match="incubate: it must be a function that computes the loss, got a Tensor"):
        growing.incubate(X)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="evaluate: it must be a function that computes the score, got a Score"):
        growing.end_epoch(score_of(model))  # type: ignore[arg-type]


def test_a_step_of_another_optimizer_is_told_once() -> None:
    model, _, growing = running()
    other = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(UserWarning, match="optimizer: the Grower's made no step with gradients in epoch 1") as told:
        train_epoch(model, other, None, 0, growing)
    assert len(told) == 1
    train_epoch(model, other, None, 1, growing)


def test_numbers_of_a_score_become_plain() -> None:
    model, optimizer, growing = running("never")
    score = esper.Score(*(torch.tensor(value) for value in (50.0, 1.0, 0.5)))  # type: ignore[arg-type]
    train_epoch(model, optimizer, None, 0, growing, evaluate=lambda: score)
    assert json.loads(json.dumps(growing.sheet()))["epochs"][0]["score"] == asdict(esper.Score(50.0, 1.0, 0.5))


def test_what_decides_nothing() -> None:
    refused("controller: Never is a class: give an instance of it", kind=TypeError, controller=Never)
    refused("controller: 3 decides nothing: give 'heuristic'", kind=TypeError, controller=3)

    class Half:
        name = "half"

        def act(self, view: object) -> None: ...

    refused("controller: a Half has no reset", kind=TypeError, controller=Half())
    refused("controller: .* must return a FactoredAction or None, got a str", kind=TypeError, controller=lambda _: "x")


@pytest.mark.parametrize(
    ("loss", "kind", "message"),
    [
        (lambda value: value.detach(), ValueError, "first_loss: the loss has no graph"),
        (lambda value: value.item(), TypeError, "first_loss: it must return a tensor, got a float"),
        (lambda value: value[None].expand(3), ValueError, r"first_loss: it must return one number, got shape \[3\]"),
    ],
)
def test_first_losses(loss: Callable[[Tensor], Any], kind: type[Exception], message: str) -> None:
    model = Odd()
    refused(message, model, kind, first_loss=lambda: loss(model(torch.randn(4, 6)).square().mean()))


def test_optimizers() -> None:
    model = Odd()
    some = torch.optim.SGD(model.first.parameters(), lr=0.1)
    refused("optimizer: it has no group with the model's parameter 'second.weight' and 10 more", model, optimizer=some)
    refused("optimizer: LBFGS evaluates the loss several times", model, optimizer=torch.optim.LBFGS(model.parameters()))
    refused("optimizer: it must be a torch.optim.Optimizer, got a float", model, TypeError, optimizer=0.1)
    frozen = Odd().requires_grad_(False)
    refused("optimizer: it has none of the model's parameters", frozen, optimizer=some)


def test_models() -> None:
    refused("model: it must be a torch.nn.Module, got a str", kind=TypeError, hand_over="net")
    refused("model: a DataParallel cannot be grown: use Distributed", nn.DataParallel(Odd()))
    compiled = torch.compile(Odd(), backend="eager")
    refused("model: a OptimizedModule cannot be grown: hand over the model that was compiled", compiled)

    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    grower(model, optimizer, "never")
    with pytest.raises(ValueError, match="model: a Grower already grows 'stem': use that one, or call its finish"):
        grower(model, optimizer, "never")


@pytest.mark.filterwarnings("ignore:.*NO_SHARD")
def test_models_that_are_sharded(tmp_path: Path) -> None:
    """Whole or in part, by either of PyTorch's ways."""
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
        whole, part = Odd(), nn.Sequential(Odd())
        fully_shard(whole.pair, mesh=mesh)
        refused("model: a FSDPModule at 'pair' cannot be grown: grow it before it is sharded", whole)
        fully_shard(whole, mesh=mesh)
        refused("model: a FSDPModule cannot be grown", whole)
        part[0] = FullyShardedDataParallel(part[0], device_id=torch.device("cpu"))
        refused("model: a FullyShardedDataParallel at '0' cannot be grown: grow it before it is sharded", part)
    finally:
        dist.destroy_process_group()


def checkpoint(path: Path, num_slots: int, **parts: Any) -> Path:
    config = Config(**{"slots": SlotsConfig(num_slots=num_slots), **parts})
    policy, normaliser = build_policy(config, num_slots)
    save_checkpoint(path, policy=policy, normaliser=normaliser, iteration=1, config=to_plain(config))
    return path


def test_checkpoints(tmp_path: Path) -> None:
    two = checkpoint(tmp_path / "two.pt", 2)
    refused("controller: .*two.pt was trained for 2 slots, and slots names 1: name 2", controller=two)
    refused(
        r"controller: .* was trained on features \[B, C, H, W\], and 'first' returns \[B, C\]",
        slots=["first", "second"],
        controller=str(two),
    )
    (tmp_path / "junk.pt").write_text("junk")
    refused("controller: .*junk.pt is truncated or not a checkpoint", controller=tmp_path / "junk.pt")
    model = net()
    with pytest.warns(UserWarning, match="rules: .*two.pt was trained with .*min_training_epochs=5.*, not with "):
        grower(model, torch.optim.SGD(model.parameters(), lr=0.1), two, rules=QUICK)
    model = net()
    with pytest.warns(UserWarning, match="incubation: .*two.pt was trained with auxiliary, not with straight_through"):
        grower(model, torch.optim.SGD(model.parameters(), lr=0.1), two, rules=None, incubation="straight_through")
    slots = SlotsConfig(num_slots=2, incubate_every=3, incubation=Incubation.straight_through)
    rested = checkpoint(tmp_path / "rested.pt", 2, slots=slots)
    refused(
        "incubation: .*rested.pt was trained with slots.incubate_every=3, which a Grower follows only with auxiliary",
        slots=["first", "second"],
        controller=rested,
    )


def test_prices_of_size(tmp_path: Path) -> None:
    """Needed where one is observed, which then sees it; refused elsewhere."""
    plain = checkpoint(tmp_path / "plain.pt", 2)
    seen = ObservationConfig(price=True)
    priced = checkpoint(tmp_path / "priced.pt", 2, observation=seen, reward=RewardConfig(rent_weights=[4.0, 1.0]))

    def grown(controller: Any, **options: Any) -> Any:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        growing = grower(model, optimizer, controller, rules=None, **options)
        return growing.sheet()["rent_weight"]

    message = r"rent_weight: .*priced.pt observes the price of size: give the points .*, from 1 to 4 as in its training"
    with pytest.raises(ValueError, match=message) as caught:
        grown(priced)
    assert "\n" not in str(caught.value)
    assert grown(priced, rent_weight=2) == 2
    with pytest.warns(UserWarning, match="rent_weight: .* was trained with 1 to 4, not with 8"):
        grown(priced, rent_weight=8)
    for controller, name in ((plain, ".*plain.pt"), ("heuristic", "heuristic"), (lambda view: None, ".*lambda.*")):
        with pytest.raises(ValueError, match=f"rent_weight=2: {name} observes no price of size: leave it out"):
            grown(controller, rent_weight=2.0)
    own = Script({})
    assert grown(own, rent_weight=2) == 2
    assert own.seen[0].features[0, -1] == 0.25
    assert grown("never") is None
    for wrong in (-1.0, float("nan"), "2", True):
        refused("rent_weight=.* must be a number from 0 on", rent_weight=wrong)


def test_a_shipped_controller_takes_any_number_of_slots_with_maps() -> None:
    for slots in (["stem"], ["stem", "body.0"]):
        model = net()
        grown = grower(model, torch.optim.SGD(model.parameters(), lr=0.1), "digits_pays", slots=slots, rules=None)
        assert [*grown.view().slots] == slots
    message = r"controller: digits_pays was trained on features \[B, C, H, W\], and '{}' returns \[B, {}C\]"
    refused(message.format("first", ""), slots=["first", "second", "narrow"], controller="digits_pays")
    model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(3)))
    refused(
        message.format("0", "T, "),
        model,
        slots=["0", "1", "2"],
        controller="digits_pays",
        first_loss=lambda: model(torch.randn(4, 5, 6)).square().mean(),
    )
    refused(
        "controller: 'digits_pay' is no checkpoint.*names are heuristic, never, random, digits_pays",
        controller="digits_pay",
    )


def running(script: Any = None, **options: Any) -> tuple[Net, torch.optim.Optimizer, esper.Grower]:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, grower(model, optimizer, script or Script({0: born(0)}), **options)


def test_an_epoch_too_many_and_an_incubation_that_was_forgotten() -> None:
    model, optimizer, growing = running(num_epochs=1)
    with pytest.raises(RuntimeError, match=r"end_epoch: incubate\(\) was not called in epoch 1, and 'stem' has a"):
        growing.end_epoch(lambda: score_of(model))
    train_epoch(model, optimizer, None, 0, growing)
    with pytest.raises(RuntimeError, match="end_epoch: all num_epochs=1 epochs are over: call finish"):
        growing.end_epoch(lambda: score_of(model))


@pytest.mark.parametrize(
    ("score", "kind", "message"),
    [
        (0.5, TypeError, "evaluate: it must return an esper.Score, got a float: return esper.Score"),
        (esper.Score("x", 1.0, 0.5), TypeError, "evaluate: Score.points='x'.* must have three numbers: could not"),  # type: ignore[arg-type]
        (esper.Score(101.0, 1.0, 0.5), ValueError, "evaluate: points=101.0 must be from 0 to 100"),
        (esper.Score(float("nan"), 1.0, 0.5), ValueError, "evaluate: points=nan must be from 0 to 100"),
        (esper.Score(50.0, 1.0, 87.5), ValueError, "evaluate: accuracy=87.5 must be from 0 to 1"),
    ],
)
def test_what_is_no_score_leaves_the_epoch_open(score: Any, kind: type[Exception], message: str) -> None:
    model, optimizer, growing = running()
    with pytest.raises(kind, match=message):
        train_epoch(model, optimizer, None, 0, growing, evaluate=lambda: score)
    assert growing.end_epoch(lambda: score_of(model)).epoch == 1


def test_scores_of_a_copy_are_refused_once_modules_are_compared() -> None:
    """In a copy a module has no effect."""
    model, optimizer, growing = running("never")
    double = copy.deepcopy(model)
    train_epoch(model, optimizer, None, 0, growing, evaluate=lambda: score_of(double))
    model, optimizer, growing = running()
    with pytest.raises(ValueError, match="evaluate: it did not run the model that grows") as caught:
        train_epoch(model, optimizer, None, 0, growing, evaluate=lambda: score_of(copy.deepcopy(model)))
    assert "\n" not in str(caught.value)
    assert growing.end_epoch(lambda: score_of(model)).epoch == 1, "the epoch was left open"


def test_a_loss_that_is_not_finite_closes_the_epoch() -> None:
    model, optimizer, growing = running()
    nothing = esper.Score(float("nan"), float("nan"), float("nan"))
    with pytest.warns(UserWarning, match="evaluate: the loss of epoch 1 is not finite"):
        report = train_epoch(model, optimizer, None, 0, growing, evaluate=lambda: nothing)
    assert report.epoch == 1
    assert report.slots["stem"].preview is None, "not measured"
    assert train_epoch(model, optimizer, None, 1, growing).slots["stem"].preview is not None


def test_rules_are_the_usual_ones_but_for_what_is_given() -> None:
    _, _, growing = running("never", rules=None)
    assert growing.sheet()["rules"] == asdict(esper.usual_rules(2))
    assert esper.usual_rules(2, min_cull_age=4) == replace(esper.usual_rules(2), min_cull_age=4)
    with pytest.raises(TypeError, match="cull_age"):
        esper.usual_rules(2, cull_age=4)


def test_losses_of_incubation() -> None:
    _, _, growing = running()
    with pytest.raises(ValueError, match="incubate: loss must return the loss of a pass through the model"):
        growing.incubate(lambda: torch.zeros(()))


def test_a_function_s_impossible_action_counts_as_wait_and_is_told_once() -> None:
    answers = [
        esper.FactoredAction(op="FOSSILIZE", slot="stem"),
        esper.FactoredAction(op="GROW"),
        esper.FactoredAction(op="GERMINATE", slot="stem", blueprint="mlp"),
        None,
        esper.FactoredAction(op="GERMINATE", slot="body.0", blueprint="norm"),
    ]
    views = []

    def mine(view: esper.GrowthView) -> esper.FactoredAction | None:
        views.append(view)
        return answers[view.epoch]

    with pytest.warns(
        UserWarning, match="mine decided what is not possible after epoch 0 .FOSSILIZE at 'stem'."
    ) as told:
        model, optimizer, growing = running(mine, num_epochs=5)
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reports = [train_epoch(model, optimizer, None, epoch, growing, steps=1) for epoch in range(5)]
    assert [view.epoch for view in views] == [0, 1, 2, 3, 4]
    assert growing.sheet()["illegal_actions"] == 3
    assert reports[1].reason.startswith("not possible")
    assert reports[4].slots["body.0"].stage.name == "TRAINING"
    assert isinstance(model.body[0], Place)
    assert views[3].scores == tuple(report.score for report in reports[:3])
    assert list(SLOTS) == list(views[0].slots)
