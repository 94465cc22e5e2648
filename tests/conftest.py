import os
import sys
import tempfile
from pathlib import Path

import pytest
import torch

# What is generated once serves all test processes, and nothing of the user's own data is touched.
os.environ["CIGL_DATA"] = str(Path(tempfile.gettempdir()) / f"cigl-tests-{os.getuid()}")

_SHARED = ("integrations", "sparsify", "sparsify/tensors", "calibrate", "data", "train")
# What tests of inner rooms share lies beside them; the table of trainers in tests/compatibility refers to their tests.
sys.path += [
    str(Path(__file__).parent / room)
    for room in ("integrations", "sparsify", "sparsify/tensors", "calibrate", "data", "train")
]

collect_ignore = [  # run by tests, in their own processes
    "compatibility/zero_worker.py",
    "integrations/process_worker.py",
    "runtime/hostile_files.py",
    "runtime/mutated_files.py",
    "runtime/training/gradcheck_double.py",
    "sparsify/agreement_worker.py",
    "sparsify/device_worker.py",
    "sparsify/ddp_worker.py",
    "sparsify/fsdp_worker.py",
    "sparsify/resume_worker.py",
    "train/ranks/ranks_worker.py",
]


@pytest.fixture(autouse=True)
def _one_thread_and_a_seed():
    torch.set_num_threads(1)
    torch.manual_seed(0)
