"""What importing cigl costs on top of torch: new processes, in turn, medians."""

import statistics
import subprocess
import sys
import time

TORCH = "import torch, numpy"
CIGL = "import cigl; cigl.attach; cigl.evaluate"  # the names are imported when they are first used


def seconds(code: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - start


def main(runs: int = 7) -> None:
    seconds(CIGL)  # the files are in memory
    pairs = [(seconds(TORCH), seconds(f"{TORCH}; {CIGL}"), seconds("import cigl")) for _ in range(runs)]
    torch, both, alone = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(
        f"import torch 1.00x, import cigl alone {alone / torch:.2f}x, torch with cigl.attach and cigl.evaluate ", end=""
    )
    print(f"{both / torch:.2f}x (bound: 1.10x)")


if __name__ == "__main__":
    main()
