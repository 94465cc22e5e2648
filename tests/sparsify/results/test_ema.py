"""sparse.ema: torch's own average where M stays, and one that follows M where it moves."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from loops import attach, batch, fresh, mlp, run, saved, sgd, states_equal, step
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import cigl

LOADER = [batch(100), batch(101)]


def quiet(function, *args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cigl.CiglWarning)
        return function(*args, **options)


@pytest.mark.parametrize("use_buffers", [False, True])
@pytest.mark.parametrize("method", ["static", "dense"])
def test_with_a_mask_that_stays_it_is_torchs_own(method, use_buffers):
    model, optimizer, sparse = fresh(method)
    ema = sparse.ema(0.9, use_buffers=use_buffers)
    reference = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=use_buffers)
    for number in range(1, 41):
        step(model, optimizer, number)
        reference.update_parameters(model)
    final = ema.finalize() if use_buffers else ema.finalize(LOADER)
    for (name, value), (_, expected) in zip(final.named_parameters(), reference.module.named_parameters(), strict=True):
        assert torch.equal(value, expected), name
    if use_buffers:
        assert torch.equal(final[1].running_var, reference.module[1].running_var)
    assert ema.count == 40
    assert sparse.ema(0.9, use_buffers=use_buffers) is ema


def by_hand(model, optimizer, sparse, steps, decay):
    """In plain torch: a weight's average starts with its value after the first step in which it existed and moved."""
    mean, before = None, None
    for number in range(1, steps + 1):
        mask = sparse.masks
        step(model, optimizer, number)
        # The average is taken before the round, so what this step's round has grown (0) or dropped is not in it yet.
        weight = {name: p.detach().clone() for name, p in model.named_parameters()}
        if mean is None:
            mean = weight
        else:
            for name, value in weight.items():
                mean[name] = torch.lerp(mean[name], value, 1 - decay)
                if name in mask:
                    born = mask[name] & ~before[name]
                    mean[name] = torch.where(born, value, mean[name])
        before = mask
        for name, now in sparse.masks.items():
            mean[name] = torch.where(now, mean[name], 0.0)
    return mean


@pytest.mark.parametrize("method", ["rigl", "cigl", "set"])
@pytest.mark.parametrize("steps", [7, 30, 31, 40])  # 30 ends with a round
def test_it_follows_the_mask(method, steps):
    model, optimizer, sparse = fresh(method)
    ema = sparse.ema(0.9)
    mean = by_hand(model, optimizer, sparse, steps, 0.9)
    final = dict(quiet(ema.finalize, LOADER).named_parameters())
    for name, mask in sparse.masks.items():
        assert final[name][~mask].eq(0).all()
        torch.testing.assert_close(final[name], mean[name], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(final["0.bias"], mean["0.bias"], atol=1e-6, rtol=1e-5)


def test_a_grown_weight_enters_with_its_own_value():
    model, optimizer, sparse = fresh("rigl")
    ema = sparse.ema(0.999)
    run(model, optimizer, 3)
    grown = sparse.masks["0.weight"] & model[0].weight.eq(0)
    assert grown.any()
    run(model, optimizer, 1, first=4)
    assert torch.equal(ema.values["0.weight"][grown], model[0].weight[grown])


def test_it_changes_nothing_in_the_training():
    results = []
    for averaged in (False, True):
        model, optimizer, sparse = fresh("cigl")
        if averaged:
            sparse.ema(0.9), sparse.ema(0.99)
        run(model, optimizer, 20)
        results.append(copy.deepcopy(model.state_dict()))
    assert states_equal(*results)


@pytest.mark.parametrize("moment", [11, 12])  # 12 ends with a round
@pytest.mark.parametrize("asked_first", [True, False])
def test_resuming_continues_bit_by_bit(moment, asked_first):
    model, optimizer, sparse = fresh("cigl")
    ema = sparse.ema(0.9)
    run(model, optimizer, moment)
    state = saved(model, optimizer, sparse)
    run(model, optimizer, 20 - moment, first=moment + 1)
    again, optimizer_again, sparse_again = fresh("cigl")
    if asked_first:
        sparse_again.ema(0.9)
        run(again, optimizer_again, 2)  # something else in it before
    mine = sparse_again.ema(0.9) if asked_first else None
    for target, part in zip((again, optimizer_again, sparse_again), state, strict=True):
        target.load_state_dict(part)
    run(again, optimizer_again, 20 - moment, first=moment + 1)
    assert mine is None or mine is sparse_again.ema(0.9)
    assert sparse_again.ema(0.9).count == 20
    assert states_equal(ema.values, sparse_again.ema(0.9).values)
    final, final_again = (quiet(e.finalize, LOADER) for e in (ema, sparse_again.ema(0.9)))
    assert states_equal(final.state_dict(), final_again.state_dict())


def test_an_average_that_was_not_saved_starts_again_and_says_so():
    model, optimizer, sparse = fresh("rigl")
    run(model, optimizer, 4)
    state = saved(model, optimizer, sparse)
    ema = sparse.ema(0.9)
    run(model, optimizer, 2, first=5)
    model.load_state_dict(state[0])
    optimizer.load_state_dict(state[1])
    with pytest.warns(cigl.CiglWarning, match=r"no EMA with decay 0\.9: it starts again"):
        sparse.load_state_dict(state[2])
    assert ema.count == 0
    run(model, optimizer, 1, first=5)
    assert torch.equal(ema.values["0.weight"], model[0].weight)


@pytest.mark.parametrize("damage", ["count", "shape", "mask", "missing", "decay"])
def test_a_damaged_state_is_refused_with_nothing_changed(damage):
    model, optimizer, sparse = fresh("rigl")
    ema = sparse.ema(0.9)
    run(model, optimizer, 4)
    state = saved(model, optimizer, sparse)[2]
    part = state["ema"][0]
    if damage == "count":
        part["count"] = -1
    elif damage == "shape":
        part["values"]["0.weight"] = torch.zeros(3)
    elif damage == "mask":
        part["masks"]["0.weight"] = torch.zeros(24, 12)
    elif damage == "missing":
        del part["values"]["0.bias"]
    else:
        part["decay"] = 2.0
    before = copy.deepcopy(ema.values)
    with pytest.raises(cigl.CiglError):
        sparse.load_state_dict(state)
    assert states_equal(before, ema.values)


def test_what_cannot_work_is_refused():
    model, optimizer, sparse = fresh("rigl")
    for decay in (1.0, -0.1, "0.9", None, True):
        with pytest.raises(cigl.CiglError, match="decay is"):
            sparse.ema(decay)
    with pytest.raises(cigl.CiglError, match="use_buffers is 1"):
        sparse.ema(0.9, use_buffers=1)
    ema = sparse.ema(0.9)
    with pytest.raises(cigl.CiglError, match="started with use_buffers=False"):
        sparse.ema(0.9, use_buffers=True)
    with pytest.raises(cigl.CiglError, match="nothing was averaged yet"):
        ema.finalize()
    run(model, optimizer, 2)
    with pytest.raises(cigl.CiglError, match=r"finalize\(loader\), or average them too"):
        ema.finalize()
    with pytest.warns(cigl.CiglWarning, match="finalizing early: 2 of the 40"):
        ema.finalize(LOADER)
    sparse.detach()
    with pytest.raises(cigl.CiglError, match="was detached"):
        sparse.ema(0.99)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_average_is_in_float32_at_least(dtype):
    model = mlp().to(dtype)
    optimizer = sgd(model)
    sparse = attach(model, optimizer, "rigl")
    ema = sparse.ema(0.9)
    for number in range(1, 5):
        x, y = batch(number)
        F.cross_entropy(model(x.to(dtype)), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert ema.values["0.weight"].dtype == torch.promote_types(dtype, torch.float32)
    assert quiet(ema.finalize)[0].weight.dtype == dtype
