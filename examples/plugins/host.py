"""A host of two convolutions, with a slot behind each. Select it by `host=plugin host.name=two_layers`, and change
its width by `+host.arguments.width=16`.
"""

from torch import nn

from esper.hosts import Place, SegmentedHost, register_host


def build(in_channels: int, image_size: int, num_classes: int, width: int = 8) -> SegmentedHost:
    first = nn.Sequential(nn.Conv2d(in_channels, width, 3, padding=1, stride=2), nn.ReLU())
    second = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU())
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, num_classes))
    return SegmentedHost([first, second, head], [Place("r0c0", width), Place("r0c1", width)], num_classes)


register_host("two_layers", build, reads=["images"])
