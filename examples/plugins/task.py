"""A task: stripes that lie or stand, under noise. Select it by `task.name=stripes`."""

import torch

from esper.tasks import Split, TaskData, TaskOptions, register_task


def split(count: int, seed: int) -> Split:
    noise = torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(seed))
    lying = (torch.arange(8) % 2).float().expand(8, 8).T
    targets = torch.arange(count) % 2
    return Split(noise + torch.where(targets.bool()[:, None, None, None], lying, lying.T), targets)


def load(options: TaskOptions) -> TaskData:
    train, val, test = split(512, 0), split(128, 1), split(128, 2)
    return TaskData(name="stripes", version=1, train=train, val=val, test=test, num_classes=2)


register_task("stripes", load)
