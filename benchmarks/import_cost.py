"""What importing cigl costs on top of torch: new processes, in turn, medians."""

import statistics
import subprocess
import sys
import time

TORCH = "import torch, numpy"
OPTIMIZER = f"{TORCH}; torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1)"  # imports torch's compiler
CASES = {  # cigl's names are imported when they are first used
    "import cigl": (TORCH, f"{TORCH}; import cigl"),
    "cigl.evaluate and cigl.load": (TORCH, f"{TORCH}; import cigl; cigl.evaluate, cigl.load"),
    "cigl.attach, beside an optimizer": (OPTIMIZER, f"{OPTIMIZER}; import cigl; cigl.attach"),
}


def seconds(code: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - start


def main(runs: int = 5) -> None:
    for name, (torch, both) in CASES.items():
        seconds(both)  # the files are in memory
        ratios = [seconds(both) / seconds(torch) for _ in range(runs)]
        print(f"{name}: {statistics.median(ratios):.2f}x of what torch takes alone (bound: 1.10x)")


if __name__ == "__main__":
    main()
