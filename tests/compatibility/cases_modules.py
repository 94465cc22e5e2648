"""Layers and parameters: what becomes sparse, and how. Each is run by test_modules.py."""

from case import Case

_ASKED_FOR = 'stays dense unless requested with `layers={"name": True}` or a density'
_AS_WEIGHT_NORM = "as old-style `weight_norm`"


def _works(name: str, how: str) -> Case:
    return Case("Layers and parameters", name, "works", how)


def _refused(name: str, how: str) -> Case:
    return Case("Layers and parameters", name, "refused", how)


CASES = [
    _works("`nn.Linear`", "sparse"),
    _works("`nn.Conv1d`, `nn.Conv2d`, `nn.Conv3d`", "sparse, with groups too"),
    _works("`nn.ConvTranspose1d`, `2d`, `3d`", "sparse; fan-in is counted over its inputs"),
    _works("`nn.MultiheadAttention`", "sparse; query, key and value are one matrix where torch stacks them"),
    _works("`nn.LSTM`, `nn.GRU`, `nn.RNN`", "sparse; the gates of a layer are one matrix, as torch stacks them"),
    _works("`nn.LSTMCell`, `nn.GRUCell`, `nn.RNNCell`", "sparse, as above"),
    _works("`nn.Bilinear`", "sparse; fan-in is the product of both inputs"),
    _works("Transformers' `Conv1D` (GPT-2)", "sparse; its weight is (inputs, outputs), which is known"),
    _works(
        "Transformers' experts (Mixtral)", "sparse; each expert is a matrix, and they share their parameter's weights"
    ),
    _works("Transformers' experts (GPT-OSS)", "sparse; each expert is a matrix (inputs, outputs)"),
    _works("`nn.Embedding`", _ASKED_FOR),
    _works("a weight tied to an embedding", f"{_ASKED_FOR}, by any of its names"),
    _works("tied linear layers", "sparse; one parameter with one mask"),
    _works("an `nn.Parameter` of your own", f"{_ASKED_FOR}; read as (outputs, inputs) or a batch of such matrices"),
    _works("a frozen weight", "stays dense; a warning says so once it is unfrozen"),
    _works("`parametrizations.weight_norm`, `spectral_norm`", "the computed weight stays dense, with a warning"),
    _refused("`parametrizations.orthogonal` on request", "zeros in the original need not be zeros of the weight"),
    _refused("a parametrization of `nn.LSTM`", "it keeps a computed weight, which torch can't copy"),
    _refused(
        "old-style `weight_norm`", "torch can't copy its weight: use `torch.nn.utils.parametrizations.weight_norm`"
    ),
    _refused("old-style `spectral_norm`", f"{_AS_WEIGHT_NORM}: use `torch.nn.utils.parametrizations.spectral_norm`"),
    _refused("`torch.nn.utils.prune`", f"{_AS_WEIGHT_NORM}: call `prune.remove` first"),
    _refused("lazy layers without a shape", "run one batch through the model before attaching"),
    _refused(
        "`nn.Embedding(sparse=True)` on request", "its gradients are sparse tensors: build it with `sparse=False`"
    ),
]
