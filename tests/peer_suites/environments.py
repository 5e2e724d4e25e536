"""Virtual environments for packages of other projects, made once and kept in a folder of the caller's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def environment(folder: Path, packages: tuple[str, ...]) -> Path:
    """The Python of the environment in `folder`, which is made if it is not whole yet."""
    python, whole = folder / "bin" / "python", folder / "installed.txt"
    wanted = "\n".join(packages)
    if not whole.exists() or whole.read_text() != wanted:
        print(f"Installing {' '.join(packages)} ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *packages], check=True)
        whole.write_text(wanted)
    return python


def versions(python: Path, packages: tuple[str, ...]) -> str:
    names = [package.split("==")[0].split("[")[0] for package in packages]
    code = f"import importlib.metadata as m; print(*(f'{{n}} {{m.version(n)}}' for n in {names!r}), sep=', ')"
    return subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True).stdout.strip()
