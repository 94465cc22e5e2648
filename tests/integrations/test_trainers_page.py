"""Every block of code in docs/trainers.md runs as it stands."""

import re
import warnings
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState
from small import density
from torch.utils.data import DataLoader, TensorDataset

PAGE = (Path(__file__).parents[2] / "docs" / "trainers.md").read_text()
BLOCKS = dict(re.findall(r"^## (\w+)\n\n```python\n(.*?)```", PAGE, re.M | re.S))


def names():
    """What the page takes for granted: data."""
    y = torch.arange(40) % 3
    x = torch.randn(40, 20) + y[:, None]
    ids = torch.randint(0, 1000, (40, 8))
    return {
        "loader": DataLoader(TensorDataset(x, y), batch_size=5),
        "train": [{"input_ids": row, "labels": row[0] % 2} for row in ids],
    }


def test_all_trainers_are_shown():
    assert list(BLOCKS) == ["Transformers", "Lightning", "Accelerate", "Fabric"]
    assert PAGE.count("```python") == len(BLOCKS)


@pytest.mark.parametrize("title", BLOCKS)
def test_the_code_runs(title, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    AcceleratorState._reset_state(reset_partial_state=True)
    found = names()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(BLOCKS[title], "trainers.md", "exec"), found)
    if title == "Transformers":
        model = found["trainer"].model.bert.encoder
        assert (tmp_path / "runs" / "bert" / "final" / "model.safetensors").exists()
    else:
        model = found["model"] if title == "Lightning" else found["final"]
    assert 0.05 < density(model) < 0.11
