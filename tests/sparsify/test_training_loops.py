"""The user's loop stays as it is: every usual way of looping works unchanged."""

import copy

import pytest
import torch
import torch.nn.functional as F
from loops import assert_zero_outside, attach, batch, convnet, mlp, run, sgd, step
from torch import nn

import cigl


def dense_gradient(model, x, y):
    """What the gradient is without any mask on it, at the weights that the model holds now."""
    free = mlp()
    for p, q in zip(free.parameters(), model.parameters(), strict=True):
        p.data.copy_(q.data)
    F.cross_entropy(free(x), y).backward()
    return free[0].weight.grad


def test_gradient_accumulation_equals_one_large_batch():
    results = []
    for parts in (1, 4):
        torch.manual_seed(0)
        model = mlp()
        optimizer = sgd(model, momentum=0.9)
        sparse = attach(model, optimizer, "cigl", random_mask=0.3)
        for number in range(1, 11):
            x, y = batch(number)
            for px, py in zip(x.chunk(parts), y.chunk(parts), strict=True):
                (F.cross_entropy(model(px), py) / parts).backward()
            optimizer.step()
            optimizer.zero_grad()
            assert_zero_outside(sparse)
        results.append((sparse.masks["0.weight"], model[0].weight.detach().clone(), sparse.step))
    assert torch.equal(results[0][0], results[1][0])
    torch.testing.assert_close(results[0][1], results[1][1], atol=1e-5, rtol=1e-4)
    assert results[0][2] == results[1][2] == 10


@pytest.mark.parametrize("set_to_none", [True, False])
def test_the_kept_gradient_is_the_sum_over_micro_batches_and_forgets_abandoned_ones(set_to_none):
    model = mlp()
    optimizer = sgd(model)
    sparse = attach(model, optimizer, "cigl", update_every=1, random_mask=0.3)
    layer = sparse.layers[0]
    x, y = batch(99)
    F.cross_entropy(model(x), y).backward()  # thrown away
    optimizer.zero_grad(set_to_none)
    expected = torch.zeros(24, 12)
    for number in (1, 2, 3):
        x, y = batch(number)
        loss = F.cross_entropy(model(x), y)
        expected += dense_gradient(model, x, y)
        loss.backward()
    torch.testing.assert_close(layer.gradient, expected, atol=1e-6, rtol=1e-5)
    assert layer.parameter.grad[~layer.mask].eq(0).all()
    optimizer.step()
    assert layer.gradient is None


def test_clipping_sees_the_masked_norm():
    model = mlp()
    optimizer = sgd(model)
    sparse = attach(model, optimizer, "cigl", random_mask=0.3)
    x, y = batch(1)
    F.cross_entropy(model(x), y).backward()
    z = sparse.random_masks
    expected = sum(
        (p.grad[sparse.masks[n] & z[n]] if n in z else p.grad).square().sum() for n, p in model.named_parameters()
    ).sqrt()
    assert nn.utils.clip_grad_norm_(model.parameters(), 0.01) == pytest.approx(expected.item(), rel=1e-5)
    optimizer.step()
    assert_zero_outside(sparse)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("method", ["cigl", "snfs", "dst-ee"])
@pytest.mark.parametrize("unscale", [False, True])
def test_a_grad_scaler_changes_nothing(fused, method, unscale):
    results = []
    for scale in (None, 2.0**10):
        torch.manual_seed(0)
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=fused)
        sparse = attach(model, optimizer, method)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None, growth_interval=4)
        for number in range(1, 13):
            x, y = batch(number)
            scaler.scale(F.cross_entropy(model(x), y)).backward()
            if unscale:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        results.append((sparse.masks["0.weight"], model[0].weight.detach().clone(), sparse.layers[0].memory))
    assert torch.equal(results[0][0], results[1][0])
    torch.testing.assert_close(results[0][1], results[1][1], atol=1e-6, rtol=1e-5)
    for name, value in results[0][2].items():
        torch.testing.assert_close(results[1][2][name], value, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("where", ["active", "inactive"])
def test_a_skipped_step_changes_nothing(fused, set_to_none, where):
    model = mlp()
    overflow = []
    model[0].weight.register_hook(lambda grad: grad + overflow[0] if overflow else grad)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=fused)
    sparse = attach(model, optimizer, "cigl", update_every=3, random_mask=0.3)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

    def one(number, poison=False):
        x, y = batch(number)
        loss = F.cross_entropy(model(x), y)
        z, mask = sparse.random_masks, sparse.masks["0.weight"]
        if poison:
            spots = mask & z["0.weight"] if where == "active" else ~mask
            overflow.append(torch.where(spots, float("inf"), 0.0))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none)
        overflow.clear()
        return z

    one(1), one(2)
    states = [s.tensor for layer in sparse.layers for s in layer.states()]
    before = copy.deepcopy((model.state_dict(), sparse.masks, states, sparse.step))
    skipped = one(3, poison=True)  # a topology step
    after = (model.state_dict(), sparse.masks, states, sparse.step)
    assert str(before) == str(after)
    assert sparse.step == 2
    again = one(4)
    assert all(torch.equal(skipped[n], again[n]) for n in skipped)  # same t, same Z
    assert sparse.step == 3
    assert_zero_outside(sparse)
    assert scaler.get_scale() == 4.0


def test_step_with_a_closure():
    results = []
    for closure in (False, True):
        torch.manual_seed(0)
        model = mlp()
        optimizer = sgd(model, momentum=0.9)
        sparse = attach(model, optimizer, "cigl")

        def compute(number, model=model, optimizer=optimizer):
            x, y = batch(number)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        for number in range(1, 11):
            if closure:
                optimizer.step(lambda number=number, compute=compute: compute(number))
            else:
                compute(number)
                optimizer.step()
            assert_zero_outside(sparse)
        results.append(model[0].weight.detach().clone())
    assert torch.equal(*results)


def test_nan_in_a_closure_is_refused_before_anything_moves():
    model = mlp()
    optimizer = sgd(model, momentum=0.9)
    sparse = attach(model, optimizer, "cigl", update_every=1)
    before = copy.deepcopy(model.state_dict())

    def closure():
        loss = (model(batch(1)[0]) * float("nan")).sum()
        loss.backward()
        return loss

    with pytest.raises(cigl.CiglError, match="NaN or Inf in step 1"):
        optimizer.step(closure)
    assert str(before) == str(model.state_dict())
    assert sparse.step == 0


def test_autocast_bfloat16():
    model = mlp()
    optimizer = sgd(model)
    sparse = attach(model, optimizer, "cigl")
    for number in range(1, 8):
        x, y = batch(number)
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        assert_zero_outside(sparse)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_parameters_of_other_types(dtype):
    model = mlp().to(dtype)
    optimizer = sgd(model, momentum=0.9)
    sparse = attach(model, optimizer, "cigl")
    for number in range(1, 41):
        x, y = batch(number)
        F.cross_entropy(model(x.to(dtype)), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        assert_zero_outside(sparse)
    assert next(sparse.finalize().parameters()).dtype == dtype


def test_several_parameter_groups():
    model = mlp()
    groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters(), "weight_decay": 0.1}]
    optimizer = torch.optim.SGD(groups, lr=0.01, momentum=0.9)
    sparse = attach(model, optimizer, "cigl")
    run(model, optimizer, 10)
    assert_zero_outside(sparse)


def test_channels_last_trains_as_contiguous_does():
    results = []
    for moment in ("never", "before", "after"):
        torch.manual_seed(0)
        model = convnet()
        if moment == "before":
            model.to(memory_format=torch.channels_last)
        optimizer = sgd(model, momentum=0.9)
        sparse = attach(model, optimizer, "cigl", random_mask=0.3)
        if moment == "after":
            model.to(memory_format=torch.channels_last)
        for number in range(1, 9):
            step(model, optimizer, number, (8, 2, 8, 8))
            assert_zero_outside(sparse)
        results.append((sparse.masks["0.weight"], model[0].weight.detach().clone()))
    for mask, weight in results[1:]:
        assert torch.equal(mask, results[0][0])
        torch.testing.assert_close(weight, results[0][1], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv1d(4, 6, 3), (5, 4, 9)),
        (nn.Conv3d(2, 4, 2), (5, 2, 4, 4, 4)),
        (nn.ConvTranspose1d(4, 6, 3), (5, 4, 9)),
        (nn.ConvTranspose2d(4, 6, 3, groups=2), (5, 4, 5, 5)),
        (nn.ConvTranspose3d(2, 4, 2), (5, 2, 3, 3, 3)),
        (nn.Conv2d(4, 4, 3, groups=4), (5, 4, 5, 5)),
    ],
)
def test_convolutions_of_every_kind(layer, shape):
    model = nn.Sequential(layer, nn.ReLU(), nn.Flatten(), nn.LazyLinear(4))
    model(torch.randn(shape))
    optimizer = sgd(model, momentum=0.9)
    sparse = attach(model, optimizer, "cigl", rescale=True)
    run(model, optimizer, 7, one=lambda m, o, n: step(m, o, n, shape))
    assert_zero_outside(sparse)
    assert "0.weight" in sparse.masks
    assert sparse.summary().total.inference_flops < 1


class Attention(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.attention = nn.MultiheadAttention(12, 2, batch_first=True, **options)
        self.head = nn.Linear(12, 4)

    def forward(self, x):
        x = x.view(-1, 4, 12)
        return self.head(self.attention(x, x, x)[0].mean(1))


@pytest.mark.parametrize("options", [{}, {"kdim": 12, "vdim": 12}])
def test_multihead_attention_is_masked_in_its_output_projection_too(options):
    model = Attention(**options)
    optimizer = sgd(model, momentum=0.9)
    sparse = attach(model, optimizer, "cigl", random_mask=0.3)
    run(model, optimizer, 7, one=lambda m, o, n: step(m, o, n, (16, 48)))
    assert_zero_outside(sparse)
    # called without the model around it, the attention alone must switch Z on for its out_proj
    x = torch.randn(2, 4, 12)
    model.attention(x, x, x)
    assert model.attention.out_proj.weight[~sparse.random_masks["attention.out_proj.weight"]].eq(0).all()


def test_transformer_encoder_in_training_and_in_its_fast_path():
    layer = nn.TransformerEncoderLayer(12, 2, 24, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Flatten(), nn.Linear(48, 4))
    optimizer = sgd(model, momentum=0.9)
    sparse = attach(model, optimizer, "cigl", random_mask=0.4)
    for number in range(1, 5):
        x, y = batch(number, (16, 4, 12))
        F.cross_entropy(model(x), y).backward()
        model.eval()
        with torch.no_grad():
            inside = model(x)
        model.train()
        optimizer.step()
        optimizer.zero_grad()
        assert_zero_outside(sparse)
        assert inside.isfinite().all()


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 4)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))


def test_tied_weights_have_one_mask():
    model = Tied()
    optimizer = sgd(model, momentum=0.9)
    sparse = attach(model, optimizer, "cigl")
    run(model, optimizer, 40)
    assert list(sparse.masks) == ["first.weight", "head.weight"]
    assert_zero_outside(sparse)
    final = sparse.finalize()
    assert final.first.weight is final.second.weight


def test_embeddings_only_when_asked_for():
    model = nn.Sequential(nn.Embedding(30, 12), nn.Flatten(), nn.Linear(60, 4))
    optimizer = sgd(model)
    with pytest.raises(cigl.CiglError, match="matches no weight"):
        attach(model, optimizer, "cigl", layers={"embedding": 0.5})
    sparse = attach(model, optimizer, "cigl", layers={"0": 0.5})
    for _ in range(5):
        F.cross_entropy(model(torch.randint(30, (8, 5))), torch.randint(4, (8,))).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert sparse.masks["0.weight"].sum() == 180
    assert_zero_outside(sparse)


def test_frozen_weights_that_were_asked_for_stay_and_can_be_unfrozen():
    model = mlp()
    model[0].weight.requires_grad_(False)
    optimizer = sgd(model)
    sparse = attach(model, optimizer, "cigl", layers={"0": 0.4})
    before = model[0].weight.clone()
    run(model, optimizer, 4)
    assert torch.equal(before, model[0].weight)
    assert not model[0].weight.requires_grad
    model[0].weight.requires_grad_(True)
    run(model, optimizer, 4, first=5)
    assert not torch.equal(before, model[0].weight)
    assert_zero_outside(sparse)


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing(reentrant):
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = mlp(classes=8), nn.Linear(8, 4)

        def forward(self, x):
            x = x.requires_grad_(True)
            return self.head(checkpoint(self.body, x, use_reentrant=reentrant))

    results = []
    for plain in (False, True):
        torch.manual_seed(0)
        model = Checkpointed()
        if plain:
            model.forward = lambda x, model=model: model.head(model.body(x))
        optimizer = sgd(model, momentum=0.9)
        sparse = attach(model, optimizer, "cigl", random_mask=0.3)
        run(model, optimizer, 7)
        assert_zero_outside(sparse)
        results.append(model.body[0].weight.detach().clone())
    torch.testing.assert_close(*results)


def test_calling_a_part_switches_z_on_without_the_root():
    class Parts(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = mlp(classes=8), nn.Linear(8, 4)

    model = Parts()
    optimizer = sgd(model)
    sparse = attach(model, optimizer, "cigl", random_mask=0.3)
    for number in range(1, 5):
        x, y = batch(number)
        F.cross_entropy(model.head(model.body(x)), y).backward()
        assert sparse.random_masks is not None
        optimizer.step()
        optimizer.zero_grad()
    assert sparse.step == 4
    assert_zero_outside(sparse)


def test_a_frozen_part_in_eval_mode_does_not_switch_z_off():
    model = mlp(normalise=True)
    optimizer = sgd(model)
    sparse = attach(model, optimizer, "cigl", random_mask=0.3)
    model.train()
    model[0].eval()
    model[1].eval()
    x, y = batch(1)
    out = model(x)
    assert model[0].weight[~sparse.random_masks["0.weight"]].eq(0).all()
    F.cross_entropy(out, y).backward()
    optimizer.step()


@pytest.mark.parametrize("kind", ["bert", "vit"])
def test_hugging_face_models_from_a_config(kind):
    import transformers

    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    if kind == "bert":
        config = transformers.BertConfig(vocab_size=50, num_labels=3, max_position_embeddings=16, **small)
        model = transformers.BertForSequenceClassification(config)
        inputs = {"input_ids": torch.randint(50, (4, 8))}
    else:
        config = transformers.ViTConfig(image_size=8, patch_size=4, num_labels=3, **small)
        model = transformers.ViTForImageClassification(config)
        inputs = {"pixel_values": torch.randn(4, 3, 8, 8)}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    sparse = attach(model, optimizer, "cigl", epochs=2)
    assert not any("embeddings.word" in name for name in sparse.masks)
    assert len(sparse.masks) >= 13
    for _ in range(8):
        model(**inputs, labels=torch.tensor([0, 1, 2, 0])).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        assert_zero_outside(sparse)
    final = sparse.finalize().eval()
    assert final(**inputs).logits.isfinite().all()


@pytest.mark.parametrize("first", ["eval", "train"])
def test_the_cache_of_autocast_does_not_hide_z(first):
    model = mlp()
    attach(model, sgd(model), "cigl", random_mask=0.4)
    x, _ = batch(1)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        inside = model.train(first == "train")(x), model.train(first != "train")(x)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        alone = model.train(first == "train")(x)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        other = model.train(first != "train")(x)
    assert torch.equal(inside[0], alone)
    assert torch.equal(inside[1], other)
    assert not torch.equal(alone, other)


@pytest.mark.parametrize("between", ["clip", "create_graph"])
def test_micro_batches_add_up_whatever_is_done_to_p_grad_between(between):
    model = mlp()
    optimizer = sgd(model)
    sparse = attach(model, optimizer, "cigl", update_every=1, random_mask=0.3)
    expected = torch.zeros(24, 12)
    for number in (1, 2):
        x, y = batch(number)
        loss = F.cross_entropy(model(x), y)
        expected += dense_gradient(model, x, y)
        loss.backward(create_graph=between == "create_graph")
        if between == "clip":
            nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    torch.testing.assert_close(sparse.layers[0].gradient, expected, atol=1e-6, rtol=1e-5)
    assert not sparse.layers[0].gradient.requires_grad
