"""Weights from files, under our names and those of torchvision."""

import pytest
import torch
from safetensors.torch import save_file

from cigl.common.errors import CiglError
from cigl.models import build
from cigl.models.pretrained import load_pretrained
from cigl.models.resnets import torchvision_names


def trained(name="resnet18", size=96, classes=10):
    torch.manual_seed(1)
    model = build(name, classes, (3, size, size))
    for value in model.state_dict().values():
        value.copy_(torch.rand_like(value.float()))
    return model


def as_torchvision(model):
    ours = {ours: theirs for theirs, ours in torchvision_names(model).items()}
    parts = [(name.rpartition("."), value) for name, value in model.state_dict().items()]
    return {f"{ours[place]}.{end}": value for (place, _, end), value in parts}


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_torchvision_names_are_all_there_and_each_once(name):
    names = list(as_torchvision(build(name, 10, (3, 96, 96))))
    assert len(set(names)) == len(names) == {"resnet18": 122, "resnet50": 320}[name]  # as torchvision's state dicts
    assert {"conv1.weight", "layer1.0.conv1.weight", "layer4.1.bn2.running_var", "fc.bias"} <= set(names)
    assert ("layer1.0.downsample.0.weight" in names) == (name == "resnet50")


@pytest.mark.parametrize("file", ["a.safetensors", "a.pth"])
@pytest.mark.parametrize("prefix", ["", "module."])
def test_a_file_of_torchvision_with_other_classes(tmp_path, file, prefix):
    source, model = trained(classes=1000), build("resnet18", 3, (3, 96, 96))
    state = {prefix + name: value for name, value in as_torchvision(source).items()}
    if file.endswith(".pth"):
        torch.save({"state_dict": state, "epoch": 3}, tmp_path / file)
    else:
        save_file({name: value.contiguous() for name, value in state.items()}, tmp_path / file)
    head = model[-1].weight.clone()
    load_pretrained(model, tmp_path / file)
    assert torch.equal(model[-1].weight, head)
    for mine, its in zip(model[:-1].state_dict().values(), source[:-1].state_dict().values(), strict=True):
        assert torch.equal(mine, its)


def test_with_the_same_classes_the_last_layer_comes_too(tmp_path):
    source, model = trained("convnet"), build("convnet", 10, (3, 96, 96))
    torch.save(source.state_dict(), tmp_path / "a.pt")
    load_pretrained(model, tmp_path / "a.pt")
    assert torch.equal(model[-1].weight, source[-1].weight)


def test_what_is_no_weights_of_this_network_is_refused_and_changes_nothing(tmp_path):
    model = build("resnet18", 3, (3, 96, 96))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.save(trained(size=32).state_dict(), tmp_path / "small.pt")
    torch.save({"a": torch.ones(2)}, tmp_path / "other.pt")
    torch.save(model, tmp_path / "pickled.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    (tmp_path / "half.safetensors").write_bytes(b"abc")
    for file, message in (
        ("small.pt", r"of another network: 0\.weight is \(64, 3, 3, 3\) there and \(64, 3, 7, 7\) here"),
        ("other.pt", "are missing"),
        ("pickled.pt", "holds more than tensors"),
        ("list.pt", "holds no state dict"),
        ("half.safetensors", "can't be read as weights"),
        ("none.pt", "there is no file"),
    ):
        with pytest.raises(CiglError, match=message):
            load_pretrained(model, tmp_path / file)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
