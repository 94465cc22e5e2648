"""The paper's networks, by name, with as many outputs as the dataset has classes.

>>> import cigl.models
>>> model = cigl.models.build("wrn-22-2", classes=10, shape=(3, 32, 32))
>>> sum(p.numel() for p in model.parameters())
1079642
"""

from cigl.models.catalogue import build, names
from cigl.models.plain import convnet, mlp
from cigl.models.resnets import resnet
from cigl.models.wide_resnets import wide_resnet

__all__ = ["build", "convnet", "mlp", "names", "resnet", "wide_resnet"]
