"""Both engine benchmarks: Python time per step, and with a model file also the speed.

python -m benchmarks.engine [MODEL.gguf]
"""

from __future__ import annotations

import subprocess
import sys


def main() -> None:
    subprocess.run([sys.executable, "-m", "benchmarks.engine.step_overhead"], check=True)
    if len(sys.argv) > 1:
        subprocess.run([sys.executable, "-m", "benchmarks.engine.throughput", *sys.argv[1:]], check=True)
    else:
        print("Name a model file to measure its speed too: python -m benchmarks.engine MODEL.gguf")


if __name__ == "__main__":
    main()
