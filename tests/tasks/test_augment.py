"""Augmentation: what it does to an image, whose it is, and that it depends on nothing but its own stream."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from esper.envs.instances import InstancePool
from esper.envs.loader import HostTraining, InstanceLoader
from esper.hosts import build_host
from esper.tasks import load_task
from esper.tasks.augment import Augmentation
from esper.tasks.batches import TrainingSamples, take_inputs

SIZE = 5


def image() -> Tensor:
    """One image whose pixels are all different, ``uint8 [1, 2, 5, 5]``, channels last."""
    pixels = torch.arange(2 * SIZE * SIZE, dtype=torch.uint8).view(1, 2, SIZE, SIZE)
    return pixels.contiguous(memory_format=torch.channels_last)


def taken(augmentation: Augmentation, *draws: int) -> Tensor:
    """The image under certain draws, ``[2, 5, 5]``."""
    index = torch.zeros(1, 1, dtype=torch.int64)
    return augmentation.take(image(), index, torch.tensor([[list(draws)]]))[0, 0]


def test_without_a_draw_an_image_stays_what_it_was() -> None:
    assert torch.equal(taken(Augmentation(crop=2, flip=True), 0, 0, 0, 0, 0), image()[0])


def test_a_shift_moves_the_image_and_its_mirror_image_enters() -> None:
    whole = image()[0]
    moved = taken(Augmentation(crop=2), 1, -2, 0, 0, 0)  # down by one, left by two
    assert torch.equal(moved[:, 1:, :3], whole[:, :-1, 2:])
    assert torch.equal(moved[:, 0, :3], whole[:, 1, 2:]), "row -1 is row 1"
    assert torch.equal(moved[:, 1:, 3], whole[:, :-1, 3]), "column 5 is column 3"
    assert torch.equal(moved[:, 1:, 4], whole[:, :-1, 2]), "column 6 is column 2"


def test_a_mirrored_image_is_mirrored_left_to_right_before_it_moves() -> None:
    whole = image()[0].flip(-1)
    assert torch.equal(taken(Augmentation(flip=True), 0, 0, 1, 0, 0), whole)
    assert torch.equal(taken(Augmentation(crop=1, flip=True), 0, 1, 1, 0, 0)[:, :, 1:], whole[:, :, :-1])


@pytest.mark.parametrize(
    ("cutout", "centre", "rows", "columns"),
    [
        (3, (2, 2), range(1, 4), range(1, 4)),
        (2, (2, 2), range(1, 3), range(1, 3)),
        (3, (0, 4), range(2), range(3, 5)),
        (1, (4, 0), range(4, 5), range(1)),
    ],
)
def test_a_square_around_its_centre_is_blanked_in_all_channels(
    cutout: int, centre: tuple[int, int], rows: range, columns: range
) -> None:
    images = 1 + torch.rand(1, 1, 2, SIZE, SIZE)
    blanked = Augmentation(cutout=cutout).blank(images, torch.tensor([[[0, 0, 0, *centre]]]))
    for row in range(SIZE):
        for column in range(SIZE):
            expected = 0 if row in rows and column in columns else images[0, 0, :, row, column]
            assert torch.equal(blanked[0, 0, :, row, column], torch.zeros(2) + expected)


def test_draws_stay_within_what_was_asked_for_and_reach_all_of_it() -> None:
    draws = Augmentation(crop=2, flip=True, cutout=1).draw(2000, SIZE, 1, 2)
    reached = [set(column.tolist()) for column in draws.T]
    assert reached == [set(range(-2, 3))] * 2 + [{0, 1}] + [set(range(SIZE))] * 2
    assert draws[:, 2].double().mean() == pytest.approx(0.5, abs=0.05)
    still = Augmentation(cutout=1).draw(100, SIZE, 1, 2)
    assert not still[:, :3].any()


def loader(augmentation: Augmentation) -> tuple[InstanceLoader, InstancePool]:
    task = load_task("synthetic_images")
    host = build_host(
        "cnn",
        in_channels=3,
        image_size=16,
        num_classes=10,
        widths=[4],
        kernel_sizes=[3],
        strides=[1],
        pools=[False],
    )
    training = HostTraining(
        num_epochs=2,
        steps_per_epoch=3,
        batch_size=8,
        lr=0.01,
        max_grad_norm=0.0,
        alive_channels=2,
        augmentation=augmentation,
    )
    pool = InstancePool.build({"intact": 1.0}, 2, "train", host_family="cnn", num_blocks=1, num_classes=10)
    return InstanceLoader(task, host, training), pool


FULL = Augmentation(crop=3, flip=True, cutout=6)


def test_two_hosts_see_other_orders_and_other_changes_and_one_sees_its_own_again() -> None:
    first, pool = loader(FULL)
    again, _ = loader(FULL)
    torch.manual_seed(5)
    order = first.order(list(pool), [0, 0])
    assert order.shape == (2, 24, 6)
    assert not torch.equal(order[0, :, 0], order[1, :, 0])
    assert not torch.equal(order[0, :, 1:], order[1, :, 1:])
    assert torch.equal(again.order([pool[1], pool[0]], [0, 0]), order.flip(0)), "whatever its neighbours are"
    assert torch.equal(again.order([pool[0]], [1])[0], first.order(list(pool), [1, 0])[0]), "a resumed epoch is its own"
    assert not torch.equal(order[0], first.order(list(pool), [1, 0])[0])
    assert all(map(torch.equal, first.train(list(pool)).batch(order), again.train(list(pool)).batch(order)))


def test_augmentation_changes_images_but_neither_their_order_nor_their_targets() -> None:
    plain, pool = loader(Augmentation())
    changed, _ = loader(FULL)
    bare, order = plain.order(list(pool), [0, 1]), changed.order(list(pool), [0, 1])
    assert torch.equal(order[..., 0], bare)
    x, told = changed.train(list(pool)).batch(order)
    original, known = plain.train(list(pool)).batch(bare)
    assert torch.equal(told, known)
    assert x.shape == original.shape == (2, 24, 3, 16, 16)
    assert (x != original).flatten(2).any(dim=2).double().mean() > 0.95
    assert x.stride() == original.stride()


def test_images_that_are_neither_moved_nor_blanked_are_prepared_alike() -> None:
    changed, pool = loader(replace(FULL, cutout=0))
    order = changed.order(list(pool), [0, 0])
    order[..., 1:] = 0
    inputs = changed.task.train.inputs
    x, _ = changed.train(list(pool)).batch(order)
    assert torch.equal(x, changed.task.prepare(take_inputs(inputs, order[..., 0])))


def test_hosts_are_told_the_targets_of_all_or_their_own() -> None:
    images, text = torch.zeros(7, 3, 4, 4, dtype=torch.uint8), torch.zeros(7, 5, dtype=torch.uint8)
    labels, tokens = torch.arange(7), torch.arange(35, dtype=torch.int16).view(7, 5)
    index = torch.tensor([[0, 6], [2, 2]])
    first, last, twice = tokens[0].tolist(), tokens[6].tolist(), [tokens[2].tolist()] * 2
    assert TrainingSamples(text, tokens).batch(index)[1].tolist() == [[first, last], twice]
    own = TrainingSamples(images, torch.stack([labels, labels + 100]), own_targets=True)
    assert own.batch(index)[1].tolist() == [[0, 6], [102, 102]]
    assert own.batch(index[1:], slice(1, 2))[1].tolist() == [[102, 102]], "of the hosts that they are"
