"""Several processes of one run, as torchrun starts them, without its own start-up time."""

import os
import subprocess
import sys

from cigl.study.rendezvous import Rendezvous


def start(size, *command):
    """`python COMMAND` once for each rank."""
    rendezvous = Rendezvous(size)
    processes = [
        subprocess.Popen(
            [sys.executable, *map(str, command)],
            env=os.environ | {"OMP_NUM_THREADS": "1"} | rendezvous.variables(rank, on_node=rank),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    processes[0].rendezvous = rendezvous  # it lives as long as they do
    return processes


def end(processes, seconds=900):
    """(exit codes, standard outputs, standard errors)."""
    try:
        written = [process.communicate(timeout=seconds) for process in processes]
    finally:
        for process in processes:
            process.kill()  # nothing happens to one that has ended
    return [process.returncode for process in processes], [out for out, _ in written], [err for _, err in written]
