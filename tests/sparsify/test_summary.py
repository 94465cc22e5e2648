import pytest
import torch
from loops import attach, batch, convnet, mlp, run, sgd, step
from torch import nn

import cigl


def trained(method="rigl", model=None, shape=(16, 12), **options):
    model = mlp() if model is None else model
    optimizer = sgd(model)
    sparse = attach(model, optimizer, method, **options)
    run(model, optimizer, 4, one=lambda m, o, n: step(m, o, n, shape))
    return sparse


def test_rows_by_hand():
    sparse = trained()
    first, second = sparse.summary().rows
    mask = sparse.masks["0.weight"]
    assert first.shape == (24, 12)
    assert first.density == first.target == int(mask.sum()) / 288
    assert first.dead_rows == int((mask.sum(1) == 0).sum())
    assert second.dead_columns == int((sparse.masks["2.weight"].sum(0) == 0).sum())
    assert sparse.summary().total.density == sparse.density


def test_flops_of_convolutions_count_their_places():
    sparse = trained(model=convnet(), shape=(8, 2, 8, 8))
    # 8x8 places for the first convolution, 3x3 for the second (stride 2), one for the linear layer
    macs = {"0.weight": 8 * 2 * 9 * 64, "3.weight": 8 * 4 * 9 * 9, "6.weight": 4 * 72}
    density = {name: float(mask.float().mean()) for name, mask in sparse.masks.items()}
    expected = sum(macs[n] * density[n] for n in macs) / sum(macs.values())
    assert sparse.summary().total.inference_flops == pytest.approx(expected)


def test_transposed_convolutions_count_their_inputs_places():
    model = nn.Sequential(nn.ConvTranspose2d(2, 3, 2, stride=2), nn.Flatten(), nn.Linear(3 * 64, 4))
    sparse = trained(model=model, shape=(5, 2, 4, 4))
    assert sparse._calls.places == {"0.weight": 5 * 16, "2.weight": 5}


def test_training_flops_are_rigls_formula():
    model = mlp()
    optimizer = sgd(model)
    # rounds at 10, 20, 30 of 40 steps, in which the dense gradient is needed
    sparse = attach(model, optimizer, "rigl", sparsity=0.7, update_every=10)
    run(model, optimizer, 1)
    for row in sparse.summary().rows:
        f = row.target
        assert row.training_flops == pytest.approx((37 * 3 * f + 3 * (2 * f + 1)) / (3 * 40))


def test_training_flops_of_the_others():
    def flops(method, **options):
        model = mlp()
        optimizer = sgd(model)
        sparse = attach(model, optimizer, method, **options)
        run(model, optimizer, 1)
        return sparse.summary().total.training_flops

    assert flops("dense") == 1.0
    assert flops("static") == pytest.approx(trained("static").summary().total.inference_flops)
    assert flops("cigl", random_mask=0.5) < flops("rigl") < flops("snfs") < 1
    assert flops("static") < flops("gmp") < 1


def test_attention_and_embeddings():
    class Text(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(9, 8)
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            self.head = nn.Linear(8, 4)

        def forward(self, x):
            x = self.embed(x)
            return self.head(self.attention(x, x, x)[0]).mean(1)

    model = Text()
    sparse = attach(model, sgd(model), "rigl", layers={"embed": 0.5})
    model(torch.zeros(3, 5, dtype=torch.long))
    tokens = 15
    used = ["attention.in_proj_weight", "attention.out_proj.weight", "head.weight"]
    assert sparse._calls.places == dict.fromkeys(used, tokens)


def test_it_prints_well():
    sparse = trained("cigl")
    text = str(sparse.summary())
    lines = text.splitlines()
    assert lines[0] == "cigl: step 4 of 40"
    assert len({len(line) for line in lines[1:-1]}) == 1
    assert lines[-1].startswith("10 % of the weights are switched off in every step")
    assert "24x12" in text
    model = mlp()
    assert "not counted yet" in str(attach(model, sgd(model), "cigl").summary())


def test_the_counting_hooks_go_away():
    model = mlp()
    sparse = attach(model, sgd(model), "rigl")
    model(batch(1)[0])
    model(batch(2)[0])
    assert sparse._calls.places == {"0.weight": 16, "2.weight": 16}
    assert not any(m._forward_hooks for m in model if isinstance(m, nn.Linear))
    assert isinstance(sparse, cigl.Sparsifier)


def test_a_compiled_first_forward_is_not_the_last_chance():
    torch.compiler.reset()
    model = mlp()
    sparse = attach(model, sgd(model), "rigl")
    torch.compile(model, backend="eager")(batch(1)[0])
    assert "not counted yet" in str(sparse.summary())
    model(batch(1)[0])
    assert "not counted yet" not in str(sparse.summary())
