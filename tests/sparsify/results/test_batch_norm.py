import pytest
import torch
from torch import nn

from cigl import CiglError, reestimate_batch_norm


def model():
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 5), nn.BatchNorm1d(5))


def test_statistics_are_the_means_of_the_batches_and_dropout_stays_off():
    net = model().train()
    batches = [torch.randn(8, 3), torch.randn(8, 3) + 1]
    reestimate_batch_norm(net, batches)
    hidden = [net[0](b) for b in batches]
    torch.testing.assert_close(net[1].running_mean, torch.stack([h.mean(0) for h in hidden]).mean(0))
    torch.testing.assert_close(net[1].running_var, torch.stack([h.var(0) for h in hidden]).mean(0))
    # the second layer saw the first normalised by the batch, and no dropout
    second = [net[3](nn.functional.batch_norm(h, None, None, net[1].weight, net[1].bias, True)) for h in hidden]
    torch.testing.assert_close(net[4].running_mean, torch.stack([s.mean(0) for s in second]).mean(0))
    assert all(module.training for module in net.modules())
    assert net[1].momentum == 0.1


@pytest.mark.parametrize("batch", [torch.randn(4, 3), (torch.randn(4, 3), torch.ones(4)), {"input": torch.randn(4, 3)}])
def test_batches_in_their_usual_forms(batch):
    net = model()
    reestimate_batch_norm(net, [batch])
    assert net[1].num_batches_tracked == 1


def test_a_forward_of_ones_own():
    net = model()
    reestimate_batch_norm(net, [{"deep": {"x": torch.randn(4, 3)}}], lambda m, b: m(b["deep"]["x"]))
    assert net[1].num_batches_tracked == 1


def test_a_last_batch_of_one_is_left_out():
    net = model()
    reestimate_batch_norm(net, [torch.randn(4, 3), torch.randn(1, 3)])
    assert net[1].num_batches_tracked == 1


@pytest.mark.parametrize("loader", [[], iter([]), [torch.randn(1, 3)]])
def test_a_loader_that_yields_nothing_is_refused(loader):
    net = model()
    with pytest.raises(CiglError, match="yielded no batch"):
        reestimate_batch_norm(net, loader)
    assert net[1].momentum == 0.1


def test_models_without_running_statistics_need_no_loader():
    reestimate_batch_norm(nn.Linear(3, 3), [])
    reestimate_batch_norm(nn.BatchNorm1d(3, track_running_stats=False), [])
    net = nn.BatchNorm1d(3, track_running_stats=False)
    assert net.running_mean is None


def test_a_failure_leaves_the_statistics_as_they_were():
    for loader in ([], [torch.randn(4, 3), torch.randn(4, 99)]):
        net = model()
        net(torch.randn(8, 3))
        before = str(net.state_dict())
        with pytest.raises((CiglError, RuntimeError)):
            reestimate_batch_norm(net, loader)
        assert str(net.state_dict()) == before
