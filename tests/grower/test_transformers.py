"""Growing by the hooks of Hugging Face's Trainer is growing by hand."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from nets import QUICK, Script
from torch import Tensor, nn

import esper

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def loops() -> ModuleType:
    import in_transformers

    return in_transformers


@pytest.mark.parametrize("own_loss", [False, True])
def test_training_is_the_loop_by_hand(loops: ModuleType, tmp_path: Path, own_loss: bool) -> None:
    """Through all stages, with gradients of two batches accumulated and a last step of one."""

    def mean_loss(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        loss: Tensor = model(input_ids=inputs["input_ids"], labels=inputs["labels"]).loss
        return loss

    growing = loops.callback(loops.GROWING, rules=QUICK, loss=mean_loss if own_loss else None)
    found = loops.train(tmp_path, loops.gpt(0.0), [growing], gradient_accumulation_steps=2)

    model = loops.gpt(0.0)
    optimizer = loops.optimizer_of(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + 0.1 * step))
    tokens = torch.stack([sample["input_ids"] for sample in loops.samples()])
    own = esper.Grower(
        model,
        optimizer,
        slots=loops.SLOTS,
        controller=Script(loops.GROWING),
        num_epochs=loops.EPOCHS,
        first_loss=lambda: model(tokens[: loops.BATCH], labels=tokens[: loops.BATCH]).loss,
        rules=QUICK,
    )
    for _ in range(loops.EPOCHS):
        for step in tokens.split(2 * loops.BATCH):
            optimizer.zero_grad()
            parts = step.split(loops.BATCH)
            for part in parts:

                def share(part: Tensor = part, items: int = step.numel()) -> Tensor:
                    return model(part, labels=part, num_items_in_batch=items).loss

                model.train()
                share().backward()
                if own_loss:
                    own.incubate(lambda part=part: model(part, labels=part).loss, 1 / len(parts))
                else:
                    own.incubate(share)
            optimizer.step()
            schedule.step()
        report = own.end_epoch(lambda: loops.score(model))
    own.finish()
    assert growing.report is not None
    assert growing.report.score.loss == pytest.approx(report.score.loss, rel=1e-4)
    for path, slot in report.slots.items():
        assert growing.report.slots[path].stage == slot.stage
        assert growing.report.slots[path].gradient_norm == pytest.approx(slot.gradient_norm, rel=1e-3)
    assert report.slots[loops.SLOTS[0]].stage.name == "FOSSILIZED"
    grown, expected = found.state_dict(), model.state_dict()
    assert grown.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(grown[name], value, rtol=1e-3, atol=1e-5, msg=name)


@pytest.mark.parametrize("options", [{}, {"max_grad_norm": 0.01}, {"bf16": True}], ids=["plain", "clipped", "bf16"])
def test_while_modules_develop_training_is_bit_equal_to_that_without_the_callback(
    loops: ModuleType, tmp_path: Path, options: dict[str, Any]
) -> None:
    """Clipped as well: modules are incubated after that."""
    bare = loops.train(tmp_path, loops.gpt(), num_train_epochs=3, **options)
    growing = loops.callback(loops.DEVELOPING, rules=loops.NEVER_BLENDS)
    model = loops.train(tmp_path, loops.gpt(), [growing], num_train_epochs=3, **options)
    assert loops.same(loops.host(bare), loops.host(model))
    assert growing.report is not None
    for slot in growing.report.slots.values():
        assert slot.gradient_norm is not None
        assert slot.gradient_norm > 0


def test_what_the_callback_cannot_follow(loops: ModuleType, tmp_path: Path) -> None:
    model = loops.gpt()
    with pytest.raises(ValueError, match="optimizer: LBFGS evaluates the loss several times"):
        loops.train(tmp_path, model, [loops.callback({})], optimizer=torch.optim.LBFGS(model.parameters()))
    with pytest.raises(ValueError, match="loss: the model returns none; give GrowerCallback"):
        loops.train(tmp_path, loops.NoLoss(loops.gpt()), [loops.callback({}, slots=["inner.transformer.h.0"])])
    arguments, state = SimpleNamespace(load_best_model_at_end=True), SimpleNamespace(global_step=0)
    with pytest.raises(ValueError, match="load_best_model_at_end"):
        loops.callback({}).on_train_begin(arguments, state, None)


@pytest.mark.parametrize("optimizer", [None, "own"])
def test_resumed_after_any_epoch_training_is_bit_equal_to_one_that_did_not_stop(
    loops: ModuleType, tmp_path: Path, optimizer: str | None
) -> None:
    """While modules develop, are blended, and are kept."""
    growing = loops.callback(loops.GROWING, rules=QUICK)
    options = {"save_strategy": "epoch", "optimizer": optimizer, "gradient_accumulation_steps": 2}
    whole = loops.train(tmp_path, loops.gpt(), [growing], **options)
    steps = sorted(int(path.name.split("-")[1]) for path in tmp_path.glob("checkpoint-*"))
    assert len(steps) == loops.EPOCHS
    for step in (steps[0], steps[2], steps[4], steps[6]):
        again = loops.callback(loops.GROWING, rules=QUICK)
        checkpoint = tmp_path / f"checkpoint-{step}"
        resumed = loops.train(tmp_path, loops.gpt(), [again], resume=checkpoint, **options)
        assert loops.same(resumed.state_dict(), whole.state_dict())
        assert again.report == growing.report
        assert again.grower.sheet() == growing.grower.sheet()
    with pytest.raises(ValueError, match=r"resume_from_checkpoint=.*: its growth is over"):
        loops.train(tmp_path, loops.gpt(), [loops.callback({})], resume=tmp_path / f"checkpoint-{steps[-1]}", **options)


def test_checkpoints_from_which_growth_cannot_go_on(loops: ModuleType, tmp_path: Path) -> None:
    options = {"save_strategy": "steps", "save_steps": 3, "num_train_epochs": 2}
    loops.train(tmp_path, loops.gpt(), [loops.callback({})], **options)
    message = "resume_from_checkpoint=.*checkpoint-3': it is of the middle of an epoch.*save_strategy='epoch'"
    with pytest.raises(ValueError, match=message) as caught:
        loops.train(tmp_path, loops.gpt(), [loops.callback({})], resume=tmp_path / "checkpoint-3", **options)
    assert "\n" not in str(caught.value)
    (tmp_path / "checkpoint-3" / "esper.pt").unlink()
    with pytest.raises(ValueError, match=r"resume_from_checkpoint: there is no .*checkpoint-3/esper\.pt"):
        loops.train(tmp_path, loops.gpt(), [loops.callback({})], resume=tmp_path / "checkpoint-3", **options)


@pytest.mark.parametrize("clip", [0.0, 0.05])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_loss_scaler_changes_nothing(loops: ModuleType, tmp_path: Path, clip: float, accumulate: int) -> None:
    """In fp16, for scales at which nothing overflows or vanishes: they are powers of two."""
    found = []
    for scale in (2.0**6, 2.0**10):
        growing = loops.callback(loops.DEVELOPING, rules=loops.NEVER_BLENDS)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        options = {"num_train_epochs": 3, "max_grad_norm": clip, "gradient_accumulation_steps": accumulate}
        model = loops.train(tmp_path, loops.gpt(), [growing], scaler=scaler, **options)
        assert scaler.get_scale() == scale
        found.append((model, growing.report))
    bare = loops.train(tmp_path, loops.gpt(), scaler=torch.amp.GradScaler("cpu", init_scale=scale), **options)
    if accumulate == 1 or not clip:  # of accumulated batches all but the last are incubated before clipping
        assert loops.same(loops.host(bare), loops.host(model))
    for path, slot in found[0][1].slots.items():
        assert found[1][1].slots[path].gradient_norm == pytest.approx(slot.gradient_norm, rel=0.02)
        assert slot.gradient_health == 1.0
