"""Other people's networks for benchmarks: each a model with one input, and that input for a batch. (Convolutional ones:
conv_networks.py.) Weights are random: time depends on shapes and on the number of zeros alone.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

Network = tuple[nn.Module, Callable[[int], Tensor]]  # and its input for a batch of this size


class Logits(nn.Module):
    """A model of Transformers with one input and one output, which every engine can take."""

    def __init__(self, model: nn.Module, name: str):
        super().__init__()
        self.model, self.name = model, name

    def forward(self, x: Tensor) -> Tensor:
        return self.model(**{self.name: x}).logits


def _words(length: int) -> Callable[[int], Tensor]:
    return lambda batch: torch.randint(5, 1000, (batch, length))


def bert_base() -> Network:
    from transformers import BertConfig, BertForSequenceClassification

    return Logits(BertForSequenceClassification(BertConfig()), "input_ids"), _words(128)


def distilbert() -> Network:
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    return Logits(DistilBertForSequenceClassification(DistilBertConfig()), "input_ids"), _words(128)


def gpt2() -> Network:
    from transformers import GPT2Config, GPT2LMHeadModel

    return Logits(GPT2LMHeadModel(GPT2Config(use_cache=False)), "input_ids"), _words(64)


def deit_small() -> Network:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(hidden_size=384, num_attention_heads=6, intermediate_size=1536, num_labels=1000)
    return Logits(ViTForImageClassification(config), "pixel_values"), lambda batch: torch.randn(batch, 3, 224, 224)


def transformer_encoder() -> Network:
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    return nn.TransformerEncoder(layer, 6, enable_nested_tensor=False), lambda batch: torch.randn(batch, 128, 512)


class LastState(nn.Module):
    """Two layers of an LSTM or GRU, and a classifier of the last state."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]):
        super().__init__()
        self.recurrent, self.head = kind(256, 512, 2, batch_first=True), nn.Linear(512, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.recurrent(x)[0][:, -1])


def lstm() -> Network:
    return LastState(nn.LSTM), lambda batch: torch.randn(batch, 64, 256)


def gru() -> Network:
    return LastState(nn.GRU), lambda batch: torch.randn(batch, 64, 256)


NETWORKS: dict[str, Callable[[], Network]] = {
    "bert-base": bert_base,
    "distilbert": distilbert,
    "gpt2": gpt2,
    "deit-small": deit_small,
    "transformer-encoder": transformer_encoder,
    "lstm": lstm,
    "gru": gru,
}


def pruned(model: nn.Module, sparsity: float) -> nn.Module:
    """Zeros at random places of every layer's weights, the same share in each; embeddings stay dense."""
    generator = torch.Generator().manual_seed(0)
    lookups = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1 and id(parameter) not in lookups:
                parameter.mul_(torch.rand(parameter.shape, generator=generator) >= sparsity)
    return model.eval()
