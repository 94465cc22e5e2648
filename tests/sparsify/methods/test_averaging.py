import torch
from hypothesis import given
from hypothesis import strategies as st

from cigl.sparsify.methods.averaging import RunningMean, Snapshots


@given(st.integers(1, 12), st.booleans())
def test_moments_are_those_of_the_stack(count, offset):
    models = [{"w": torch.randn(7, generator=torch.Generator().manual_seed(i)) + 1000.0 * offset} for i in range(count)]
    mean = RunningMean(second_moment=True)
    for model in models:
        mean.add(model)
    stack = torch.stack([model["w"].double() for model in models])
    torch.testing.assert_close(mean.mean["w"].double(), stack.mean(0), atol=1e-4 if offset else 1e-6, rtol=0)
    torch.testing.assert_close(
        mean.variance()["w"].double(), stack.var(0, correction=0), atol=1e-3 if offset else 1e-5, rtol=1e-3
    )


def test_half_precision_is_averaged_in_single():
    mean = RunningMean()
    for value in (1.0, 2.0**-9, 2.0**-9):
        mean.add({"w": torch.full((1,), value, dtype=torch.bfloat16)})
    assert mean.mean["w"].dtype == torch.float32
    assert mean.mean["w"].item() == torch.tensor((1 + 2 * 2.0**-9) / 3).item()


def test_what_goes_in_is_copied():
    value = torch.ones(3)
    mean, snapshots = RunningMean(), Snapshots()
    mean.add({"w": value})
    snapshots.add({"w": value})
    value.zero_()
    assert mean.mean["w"].sum() == snapshots.models[0]["w"].sum() == 3


def test_states_round_trip():
    for collection in (RunningMean(True), Snapshots()):
        for i in range(3):
            collection.add({"w": torch.full((2,), float(i))})
        copy = RunningMean(True) if isinstance(collection, RunningMean) else Snapshots()
        copy.load_state_dict(collection.state_dict(), {"w": torch.zeros(2)})
        for each in (copy, collection):
            each.add({"w": torch.full((2,), 7.0)})
        assert copy.count == collection.count == 4
        assert str(copy.state_dict()) == str(collection.state_dict())
