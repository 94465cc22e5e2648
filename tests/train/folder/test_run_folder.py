import json
import subprocess
import sys

import pytest
import torch

from cigl import CiglError, CiglWarning
from cigl.train.config import Config
from cigl.train.folder.run_folder import RunFolder


def test_configuration_round_trips(tmp_path):
    folder = RunFolder(tmp_path / "a" / "b")
    with folder.locked():
        folder.write_config(Config(seed=5))
    assert folder.read_config() == Config(seed=5)
    with pytest.raises(CiglError, match="is not a run folder"):
        RunFolder(tmp_path / "none").read_config()


def test_the_newest_two_checkpoints_are_kept_and_the_newest_is_read(tmp_path):
    folder = RunFolder(tmp_path)
    with folder.locked():
        for step in (5, 10, 100):
            folder.save_checkpoint(step, {"step": step, "w": torch.ones(2)})
    assert sorted(p.name for p in folder.checkpoints.iterdir()) == ["10.safetensors", "100.safetensors"]
    assert folder.load_checkpoint()["step"] == 100


@pytest.mark.parametrize("damage", ["flip", "empty", "cut"])
def test_a_damaged_newest_checkpoint_is_reported_and_the_one_before_is_used(damage, tmp_path):
    folder = RunFolder(tmp_path)
    with folder.locked():
        for step in (5, 10):
            folder.save_checkpoint(step, {"step": step, "w": torch.ones(200)})
    newest = folder.checkpoints / "10.safetensors"
    content = bytearray(newest.read_bytes())
    content[-10] ^= 1
    newest.write_bytes({"flip": content, "empty": b"", "cut": content[:-5]}[damage])
    with pytest.warns(CiglWarning, match=r"10\.safetensors is damaged.* checkpoint before it is used"):
        assert folder.load_checkpoint()["step"] == 5
    assert RunFolder(tmp_path / "fresh").load_checkpoint() is None


def test_a_torn_line_of_metrics_is_cut(tmp_path):
    folder = RunFolder(tmp_path)
    with folder.locked():
        for epoch in (1, 2, 3):
            folder.add_metrics({"epoch": epoch, "loss": 0.1 * epoch})
        with folder.metrics.open("a") as file:
            file.write('{"epoch": 4, "lo')
        folder.cut_metrics(2, 20)
    assert [json.loads(line)["epoch"] for line in folder.metrics.read_text().splitlines()] == [1, 2]
    folder.metrics.write_bytes(b'{"epoch": 1}\n\xff\xfe\n')
    assert folder.read_metrics() == [{"epoch": 1}]
    folder.metrics.write_text('{"epoch": 1}\n3\n')
    assert folder.read_metrics() == [{"epoch": 1}]


def test_leftovers_of_a_kill_are_removed(tmp_path):
    folder = RunFolder(tmp_path)
    folder.checkpoints.mkdir(parents=True)
    leftover = folder.checkpoints / ".7.123.tmp.safetensors"
    leftover.write_bytes(b"half")
    with folder.locked():
        assert not leftover.exists()


def test_a_second_process_is_refused_while_the_first_lives(tmp_path):
    imports = "import sys; from cigl.train.folder.run_folder import RunFolder"
    code = f"{imports}\nwith RunFolder(sys.argv[1]).locked(): print('mine')"
    with RunFolder(tmp_path).locked():
        result = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
        assert "another process is training in" in result.stderr
    result = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert result.stdout == "mine\n"


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CiglError, match="can't be written to"), RunFolder(tmp_path / "file" / "run").locked():
        pass
