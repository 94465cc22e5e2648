"""What a model's forward may do: each is run by test_forwards.py, on sparse kernels and masked."""

from case import Case
from forwards import HOW

_KIND = "What a forward does (loss and gradients equal those of masked training to 1e-5)"
CASES = [Case(_KIND, name, "works", f"sparse kernels run it {how}") for name, how in HOW.items()] + [
    Case(_KIND, "autocast around the call, switched on in training", "works", "those steps run in torch, with a note"),
    Case(_KIND, "`torch.compile(model)`", "works", "sparse kernels run inside; what torch computes is compiled"),
    Case(_KIND, "`model.compile()`", "works", "it runs as dense layers, compiled, with a warning"),
    Case(_KIND, '`model.compile()` with `kernels="sparse"`', "refused", 'leave it out, or use `kernels="auto"`'),
    Case(_KIND, "Transformers' `gradient_checkpointing_enable()`", "works", "sparse kernels run it layer by layer"),
]
