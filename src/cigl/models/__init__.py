"""The paper's networks, by name, with as many outputs as the dataset has classes.

>>> import cigl.models
>>> model = cigl.models.build("wrn-22-2", classes=10, shape=(3, 32, 32))
>>> sum(p.numel() for p in model.parameters())
1079642

``resnet`` and ``wide_resnet`` are modules that can be called like their main function.
"""

from typing import TYPE_CHECKING

from cigl.models.catalogue import build, names
from cigl.models.plain import convnet, mlp

if TYPE_CHECKING:  # a type checker knows no callable modules: it sees the functions
    from cigl.models.resnet import resnet
    from cigl.models.wide_resnet import wide_resnet
else:
    from cigl.models import resnet, wide_resnet

__all__ = ["build", "convnet", "mlp", "names", "resnet", "wide_resnet"]
