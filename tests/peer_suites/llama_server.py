"""llama.cpp's own tests of llama-server, which come in the source package of llama-cpp-python.

They are made for llama-server's test model (stories260K) and its command-line options, so many cannot pass anywhere
else; the README says why for each kind of failure.
"""

from __future__ import annotations

import os
import subprocess
import tarfile
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

from tests.peer_suites.environments import environment, versions
from tests.peer_suites.forwarder import forwarding
from tests.peer_suites.server import serving

SOURCE = "llama-cpp-python==0.3.36"
INSIDE = "vendor/llama.cpp/tools/server/tests/"
PACKAGES = (
    *("pytest", "pytest-timeout", "openai", "requests"),
    *("aiohttp", "filelock", "numpy", "prometheus-client", "wget"),
)
FILES = ("basic", "tokenize", "completion", "chat_completion", "compat_oai_responses", "compat_anthropic")
FILES += ("ignore_eos", "ctx_shift", "embedding", "rerank", "metrics")
KEY = "sk-this-is-the-secret-key"  # as in their tests


def run(folder: Path) -> int:
    python = environment(folder / "llama-server", PACKAGES)
    tests = _tests(folder / "llama-server-tests", python)
    print(SOURCE, versions(python, PACKAGES[:3]), flush=True)
    options = ("smollm2:135m", "minilm", "--max-context", "512")
    counts = Counter(_suite(folder, python, tests, FILES, options))
    counts += Counter(_suite(folder, python, tests, ("security",), (*options, "--api-key", KEY)))
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())))
    return 1 if counts["failed"] else 0


def _suite(folder: Path, python: Path, tests: Path, names: tuple[str, ...], options: tuple[str, ...]) -> list[str]:
    written = folder / "llama-server.xml"
    pytest = ["-m", "pytest", "-q", "-m", "not slow", "--timeout=60", "-p", "no:cacheprovider", "--tb=no", "-rN"]
    files = [f"unit/test_{name}.py" for name in names]
    with serving(folder / "llama-server.log", *options) as base, forwarding(base, *options[:2]) as port:
        subprocess.run(
            [str(python), *pytest, f"--junitxml={written}", *files],
            check=False,
            cwd=tests,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "DEBUG_EXTERNAL": "1", "PORT": str(port)},
        )
    return [_outcome(case) for case in ET.parse(written).iter("testcase")]


def _outcome(case: ET.Element) -> str:
    """Prints the test's line. Of a failure, the first line of what was wrong."""
    for kind, word in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
        found = case.find(kind)
        if found is not None:
            why = (found.get("message") or "").splitlines()[:1]
            print(f"{word:8}{case.get('classname', '').rpartition('.')[2]} {case.get('name')}: {''.join(why)[:140]}")
            return word
    print(f"passed  {case.get('classname', '').rpartition('.')[2]} {case.get('name')}")
    return "passed"


def _tests(target: Path, python: Path) -> Path:
    """The folder of their tests, out of the source package."""
    if not target.exists():
        download = ["-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", SOURCE.split("==", maxsplit=1)[0]]
        subprocess.run([str(python), *download, "--dest", str(target.parent), SOURCE], check=True)
        [archive] = target.parent.glob("llama_cpp_python-*.tar.gz")
        with tarfile.open(archive) as packed:
            for member in packed.getmembers():
                _, _, inner = member.name.partition(INSIDE)
                if inner and member.isfile():
                    member.name = inner
                    packed.extract(member, target, filter="data")
    return target
