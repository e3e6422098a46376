"""Growing by Lightning's hooks is growing by hand."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from nets import QUICK, SLOTS, Script, born, grower, score_of
from torch import Tensor
from torch.nn import functional as F

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:pytorch_lightning"),
]

Pair = tuple[Tensor, Tensor]


@pytest.fixture(scope="module")
def loops() -> ModuleType:
    import in_lightning

    return in_lightning


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_fit_is_the_loop_by_hand(loops: ModuleType, accumulate: int) -> None:
    """The same weights, reports and gradient norms, through all stages, with accumulated gradients too."""
    growing = loops.callback(loops.GROWING, rules=QUICK)
    found = loops.fit(loops.Module(), [growing], accumulate_grad_batches=accumulate)

    module = loops.Module()
    model = module.net
    optimizer = module.configure_optimizers()
    own = grower(model, optimizer, Script(loops.GROWING), num_epochs=loops.EPOCHS)
    torch.manual_seed(1)
    for _ in range(loops.EPOCHS):
        for step, (x, y) in enumerate(loops.loader()):
            if step % accumulate == 0:
                optimizer.zero_grad()
            (F.cross_entropy(model(x), y) / accumulate).backward()
            own.incubate(lambda x=x, y=y: F.cross_entropy(model(x), y), 1 / accumulate)
            if step % accumulate == accumulate - 1:
                optimizer.step()
        report = own.end_epoch(lambda: score_of(model))
    own.finish()
    assert growing.report == report
    assert report.slots["stem"].gradient_norm is not None
    assert loops.same(found.net.state_dict(), model.state_dict())
    assert growing.grower is not None
    assert list(growing.grower.sheet()["kept"]) == ["stem"]


def test_while_modules_develop_a_fit_is_bit_equal_to_one_without_the_callback(loops: ModuleType) -> None:
    bare = loops.fit(loops.Module(), epochs=3)
    growing = loops.callback(loops.DEVELOPING, rules=loops.NEVER_BLENDS)
    assert loops.same(loops.host(bare.net), loops.host(loops.fit(loops.Module(), [growing], epochs=3).net))
    assert growing.grower is not None
    assert growing.grower.sheet()["removed"] == list(SLOTS)


def test_clipping_comes_after_incubation_and_counts_what_develops(loops: ModuleType) -> None:
    bare = loops.fit(loops.Module(), epochs=1, gradient_clip_val=0.01)
    module = loops.fit(
        loops.Module(), [loops.callback(loops.DEVELOPING, rules=loops.NEVER_BLENDS)], epochs=1, gradient_clip_val=0.01
    )
    assert module.norms
    assert module.norms == pytest.approx([0.01] * len(module.norms), rel=1e-3)
    assert not loops.same(loops.host(bare.net), loops.host(module.net))


def test_bfloat16_reaches_incubation(loops: ModuleType) -> None:
    seen: list[torch.dtype] = []

    def loss(module: Any, pair: Pair) -> Tensor:
        logits = module.net(pair[0])
        seen.append(logits.dtype)
        return F.cross_entropy(logits, pair[1])

    growing = loops.GrowerCallback(
        slots=["net.stem"],
        controller=Script({0: born(0)}),
        loss=loss,
        evaluate=lambda module: score_of(module.net),
    )
    loops.fit(loops.Module(), [growing], epochs=2, precision="bf16-mixed")
    assert set(seen) == {torch.bfloat16}
    assert len(seen) == 1 + 2 * loops.BATCHES


@pytest.mark.parametrize("accumulate", [1, 2])
def test_float16_under_a_loss_scaler_changes_nothing_of_the_host(loops: ModuleType, accumulate: int) -> None:
    """Skipped steps, which come first, included; what develops learns from gradients that were unscaled."""

    first = 2.0 ** (21 - accumulate)

    def fit(*callbacks: Any) -> Any:
        scaler = torch.amp.GradScaler("cpu", init_scale=first)
        plugin = loops.lightning.plugins.MixedPrecision("16-mixed", device="cpu", scaler=scaler)
        module = loops.Module()
        loops.fit(module, callbacks, epochs=8, plugins=[plugin], accumulate_grad_batches=accumulate)
        return module.net, scaler.get_scale()

    growing = loops.callback(loops.DEVELOPING, rules=loops.NEVER_BLENDS)
    (bare, scale), (network, own_scale) = fit(), fit(growing)
    assert scale == own_scale
    assert 2.0**10 < scale < first
    assert loops.same(loops.host(bare), loops.host(network))
    for slot in growing.report.slots.values():
        assert slot.gradient_norm is not None
        assert 0 < slot.gradient_norm < 100


def test_what_the_callback_cannot_follow(loops: ModuleType) -> None:
    def lbfgs(module: Any) -> None:
        module.optimizer = torch.optim.LBFGS

    def manual(module: Any) -> None:
        module.automatic_optimization = False

    for change, options, message in (
        (lbfgs, {}, "optimizer: LBFGS evaluates the loss several times"),
        (manual, {}, "automatic_optimization=False"),
        (lambda module: None, {"epochs": -1}, "max_epochs=-1"),
    ):
        module = loops.Module()
        change(module)
        with pytest.raises(ValueError, match=message):
            loops.fit(module, [loops.callback({})], **options)


def saving(loops: ModuleType, folder: Path, **options: Any) -> Any:
    return loops.lightning.callbacks.ModelCheckpoint(folder, "{epoch}", save_top_k=-1, **options)


def test_resumed_after_any_epoch_a_fit_is_bit_equal_to_one_that_did_not_stop(loops: ModuleType, tmp_path: Path) -> None:
    """While modules develop, are blended, and are kept."""
    growing = loops.callback(loops.GROWING, rules=QUICK)
    whole = loops.fit(
        loops.Module(dropout=0.0),
        [growing, saving(loops, tmp_path, save_on_train_epoch_end=True)],
        enable_checkpointing=True,
    )
    for epoch in (0, 2, 5, 7):
        again = loops.callback(loops.GROWING, rules=QUICK)
        checkpoint = tmp_path / f"epoch={epoch}.ckpt"
        resumed = loops.fit(loops.Module(dropout=0.0), [again], resume=checkpoint)
        assert loops.same(resumed.net.state_dict(), whole.net.state_dict())
        assert again.report == growing.report
        assert again.grower.sheet() == growing.grower.sheet()
        assert not resumed.net._load_state_dict_pre_hooks
    with pytest.raises(ValueError, match=r"ckpt_path=.*epoch=8.ckpt': its growth is over"):
        loops.fit(loops.Module(), [loops.callback(loops.GROWING, rules=QUICK)], resume=tmp_path / "epoch=8.ckpt")


def test_a_checkpoint_of_the_middle_of_an_epoch_is_refused(loops: ModuleType, tmp_path: Path) -> None:
    growing, steps = loops.callback(loops.GROWING), saving(loops, tmp_path, every_n_train_steps=3)
    loops.fit(loops.Module(), [growing, steps], epochs=2, enable_checkpointing=True)
    with pytest.raises(
        ValueError, match=r"ckpt_path=.*: it is of the middle of an epoch.*save_on_train_epoch_end"
    ) as it:
        loops.fit(loops.Module(), [loops.callback(loops.GROWING)], epochs=2, resume=tmp_path / "epoch=0.ckpt")
    assert "\n" not in str(it.value)


def test_a_checkpoint_without_growth_is_refused(loops: ModuleType, tmp_path: Path) -> None:
    trainer = loops.lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False, default_root_dir=tmp_path
    )
    module = loops.Module()
    trainer.fit(module, loops.loader())
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    again = loops.lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        callbacks=[loops.callback({})],
    )
    with pytest.raises(ValueError, match=r"ckpt_path='.*a.ckpt': it has no state of a GrowerCallback"):
        again.fit(module, loops.loader(), ckpt_path=str(tmp_path / "a.ckpt"))
