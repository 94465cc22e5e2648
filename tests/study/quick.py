"""A study that takes seconds, and its processes."""

import os
import subprocess
import sys
import time
from pathlib import Path

import yaml

from cigl.study.grid import Study

SETTING = {
    "dataset": "mnist1d", "model": "mlp-20", "train_size": 320, "epochs": 2, "update_every": 2, "validation": 0.1,
}  # fmt: skip
METHODS = {"rigl": {"method": "rigl"}, "cigl": {"method": "cigl", "average_of": "p*W", "average_from": 0.4}}
METHODS["cigl"]["update_until"] = 0.4


def quick(**changes):
    keys = {"settings": {"toy": SETTING}, "methods": METHODS, "sparsity": (0.5,), "seeds": (0,)} | changes
    return Study("quick", **keys)


def long_study(epochs=400, **changes):
    """Runs that last for seconds, long enough to be killed in the middle."""
    return quick(settings={"toy": SETTING | {"epochs": epochs, "update_every": 50}}, **changes)


def written(study, path):
    path.write_text(yaml.safe_dump(study.plain(), sort_keys=False))
    return path


def start(file, out, *more):
    """`cigl study run` in a process of its own, on one core: so small a network gains nothing from threads."""
    command = [sys.executable, "-m", "cigl.cli", "study", "run", str(file), "--out", str(out), *more]
    core = {min(os.sched_getaffinity(0))}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, core),
    )  # fmt: skip


def until(condition, seconds=900):
    """Wait for something that must happen; the limit only keeps a broken test from waiting for ever."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
    return found


def holder(run):
    """The process that has a run's lock, or None (Linux)."""
    try:
        inode = os.stat(run / "lock").st_ino
    except FileNotFoundError:
        return None
    for line in Path("/proc/locks").read_text().splitlines():
        words = line.split()
        if words[1] == "FLOCK" and int(words[5].split(":")[2]) == inode:
            return int(words[4])
    return None


def times_begun(run):
    """How often a run was begun or resumed: each time opens a file of its own."""
    return len(list((run / "tensorboard").glob("events*")))
