"""Training on a device whose memory the host can't read, and which counts what is launched, read and copied.

The numbers are exact: benchmarks/counting_device.py says what counts. The device runs in processes of its own.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
Z = {"sgd": 48, "adamw": 57}  # operations that Z takes, whatever the number of layers


def worker(*arguments):
    command = [sys.executable, "-W", "ignore", str(HERE / "device_worker.py"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def check(found):
    """An ordinary step: one operation a layer for its gradient, and a fixed number for Z. No read and no copy.

    In a layer that stays dense only Z masks the gradient.
    """
    for name, added in found.items():
        method, optimizer = name.split()
        step, has_z = added["step"], method.startswith("cigl")
        assert step["operations"] == (added["layers"] + Z[optimizer] if has_z else added["masked"]), name
        assert (step["reads"], step["copies"], step["later"]) == (0, 0, 0), name
        assert step["launches"] - step["operations"] <= 8, name  # of lists that CUDA cuts
        round_ = added["round"]
        assert round_["reads"] <= 1, name
        assert round_["copies"] == 0, name


def test_counts_of_an_mlp():
    check(worker("counts", "mlp", "rigl", "set", "cigl", "cigl-rise"))


def test_counts_of_a_small_gpt2():
    pytest.importorskip("transformers")
    check(worker("counts", "gpt2", "rigl", "cigl"))


@pytest.mark.slow
@pytest.mark.parametrize("network", ["wrn-22-2", "resnet50", "gpt2"])
def test_counts_of_larger_networks(network):
    found = worker("counts", network, "rigl", "set", "cigl", "cigl-rise")
    check(found)
    if network == "resnet50":
        assert found["rigl sgd"]["layers"] == 54
        assert max(each["step"]["launches"] for name, each in found.items() if "rigl" in name) <= 150
        assert max(each["step"]["launches"] for each in found.values()) <= 250


def test_other_loops_and_what_changes_from_step_to_step():
    found = worker("loops")
    # A captured RigL step could be replayed as it is; of CigL's only the numbers change that say which Z it is.
    assert found.pop("rigl changes") == []
    assert found.pop("cigl changes") == ["_foreach_add_"]
    for name, added in found.items():
        # Whether the scaler skips a step that a fused optimizer takes only the device knows: it decides t.
        expected = 1 if "fused" in name and "scaler" in name else 0
        assert (added["reads"], added["copies"], added["later"]) == (expected, 0, 0), name
        per_layer = 3 if "micro_batches" in name else 1
        z = Z["adamw" if "adamw" in name else "sgd"] if "cigl" in name else 0
        assert added["operations"] == 3 * per_layer + z, name


def test_every_method_has_the_bits_that_it_has_on_the_cpu():
    found = worker("methods")
    assert len(found) >= 26
    assert [name for name, is_same in found.items() if not is_same] == []


def test_what_is_wrong_is_said_in_the_first_steps():
    found = worker("warnings")
    step, message = found["strays"]
    assert step <= 12
    assert "outside the mask" in message
    step, message = found["stand-still"]
    assert step <= 20
    assert "have not moved in 10 optimizer steps" in message


def test_a_run_on_the_command_line(tmp_path):
    on_device, on_cpu = worker("run", tmp_path)
    for metric in ("accuracy", "nll", "ece_15"):  # the CPU has a fused optimizer, which rounds otherwise
        assert on_device[metric]["value"] == pytest.approx(on_cpu[metric]["value"], abs=0.01)
