import pytest
import torch

collect_ignore = ["sparsify/ddp_worker.py", "sparsify/resume_worker.py"]  # run by tests, in their own processes


@pytest.fixture(autouse=True)
def _one_thread_and_a_seed():
    torch.set_num_threads(1)
    torch.manual_seed(0)
