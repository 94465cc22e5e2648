"""Places at which weights are used, against torch's own counter of FLOPs."""

import pytest
import torch
from loops import attach, sgd
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

transformers = pytest.importorskip("transformers")


def mixtral_experts():
    config = transformers.MixtralConfig(
        hidden_size=4, intermediate_size=3, num_hidden_layers=1, num_local_experts=2, num_attention_heads=2,
        num_key_value_heads=1, vocab_size=8, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    experts = transformers.MixtralForCausalLM(config).model.layers[0].mlp.experts
    experts.config._experts_implementation = "eager"  # expert by expert, which the counter sees
    return experts


def routed():
    return torch.randn(6, 4), torch.tensor([[0], [1], [0], [1], [0], [0]]), torch.ones(6, 1)


@pytest.mark.parametrize(
    ("layer", "inputs"),
    [
        (lambda: nn.Linear(5, 3), lambda: (torch.randn(4, 7, 5),)),
        (lambda: transformers.pytorch_utils.Conv1D(3, 5), lambda: (torch.randn(4, 7, 5),)),
        (lambda: nn.ConvTranspose2d(4, 6, 2), lambda: (torch.randn(3, 4, 5, 5),)),
        (lambda: nn.GRU(5, 3), lambda: (torch.randn(7, 2, 5),)),
        (lambda: nn.GRU(5, 3), lambda: (nn.utils.rnn.pack_sequence([torch.randn(4, 5), torch.randn(2, 5)]),)),
        (lambda: nn.RNNCell(5, 3), lambda: (torch.randn(6, 5),)),
        (mixtral_experts, routed),
    ],
    ids=["linear", "Conv1D", "transposed", "gru", "packed", "cell", "experts"],
)
def test_multiply_adds_are_those_of_torchs_counter(layer, inputs):
    model, x = layer(), inputs()
    sparse = attach(model, sgd(model), "static", kernels="masked")
    with FlopCounterMode(display=False) as counter:
        model(*x)
    used = sum(sparse._calls.places[each.name] * each.size for each in sparse.layers)
    assert used == counter.get_total_flops() / 2  # an addition and a multiplication


def test_an_lstm_and_a_bilinear_layer_by_hand():
    lstm = nn.LSTM(5, 4, num_layers=2, bidirectional=True, proj_size=3)
    sparse = attach(lstm, sgd(lstm), "static")
    lstm(torch.randn(7, 2, 5))
    assert set(sparse._calls.places.values()) == {14}  # steps times sequences, for every weight
    bilinear = nn.Bilinear(3, 4, 5)
    sparse = attach(bilinear, sgd(bilinear), "static")
    bilinear(torch.randn(6, 3), torch.randn(6, 4))
    assert sparse._calls.places == {"weight": 6}
