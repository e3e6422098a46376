"""A blueprint: a convolution with a wide kernel. Select it by `slots.blueprints=[conv_wide]`."""

from torch import nn

from esper.blueprints import register_blueprint
from esper.blueprints.residual import Residual, conv_norm


def build(channels: int) -> nn.Module:
    body = nn.Sequential(*conv_norm(channels, channels, kernel_size=5), nn.ReLU())
    return Residual(channels, body)


register_blueprint("cnn", "conv_wide", build)
