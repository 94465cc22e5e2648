"""Between steps on sparse kernels nothing is given back to the system, so no page has to be cleared again."""

import os
import subprocess
import sys

import pytest

from cigl.runtime.program import library
from cigl.runtime.training import program

pytestmark = [
    pytest.mark.skipif(not library.available(), reason="no kernels"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts page faults and knows glibc"),
]

STEPS = """
import resource
import torch
import torch.nn.functional as F
import cigl
import cigl.models
from cigl.common.allocation import keep_freed_memory

torch.set_num_threads(1)
assert keep_freed_memory()
model = cigl.models.build("wrn-10-2", 10, (3, 32, 32))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
sparse = cigl.attach(model, optimizer, "cigl", sparsity=0.95, epochs=2, steps_per_epoch=100, kernels="sparse")
x, y = torch.randn(64, 3, 32, 32), torch.randint(0, 10, (64,))

def step():
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

for _ in range(4):
    step()
before = faults()
for _ in range(10):
    step()
print((faults() - before) / 10)
"""


def test_a_step_has_hardly_any_page_faults():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", STEPS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # one activation of this batch alone has 2,048 pages
    assert float(done.stdout) < 200


def test_a_forked_process_has_memory_of_its_own():
    """A worker of a DataLoader, say."""
    memory = program._zeros(program._LARGE // 4)
    child = os.fork()
    if not child:
        memory.fill_(1.0)
        os._exit(0)
    os.waitpid(child, 0)
    assert not memory.any()
