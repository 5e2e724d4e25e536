"""What the native module is compiled for: any x86-64-v2 CPU, and each variant's instructions in its own file only.

A module built on one machine must load on another (wheels), so nothing may be compiled for the building machine.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tailrace import _native

ROOT = Path(__file__).resolve().parents[2]
CMAKE = re.sub(r"#.*", "", (ROOT / "CMakeLists.txt").read_text(encoding="utf-8"))

AVX2 = "-mavx2 -mfma -mf16c -mbmi2"
AVX512 = f"{AVX2} -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni"
FLAGS = {
    "kernels_portable": "-march=x86-64-v2",
    "kernels_avx2": AVX2,
    "kernels_avx512": AVX512,
    "kernels_avx512_emulated": AVX2,
    "kernels_amx": f"{AVX512} -mavx512bf16 -mamx-tile -mamx-int8 -mamx-bf16",
    "kernels_amx_emulated": AVX2,
    "probe": AVX2,
}


def variables() -> dict[str, str]:
    return {name: " ".join(value.split()) for name, value in re.findall(r"set\((\w+_FLAGS)\s+([^)]*)\)", CMAKE)}


def machine_flags(text: str) -> str:
    """The -m options of a command's arguments, variables filled in."""
    while "${" in text:
        text = re.sub(r"\$\{(\w+)\}", lambda match: variables().get(match[1], ""), text)
    return " ".join(word for word in text.split() if word.startswith("-m"))


def test_nothing_is_compiled_for_the_building_machine() -> None:
    for name in ("CMakeLists.txt", "Makefile", "pyproject.toml"):
        assert not re.search(r"-m(arch|cpu|tune)=native", (ROOT / name).read_text(encoding="utf-8")), name
    assert re.findall(r"-march=\S+?(?=[\s)])", CMAKE) == ["-march=x86-64-v2"]


def test_common_code_runs_on_the_baseline() -> None:
    (options,) = re.findall(r"target_compile_options\(_native PRIVATE ([^)]*)\)", CMAKE)
    assert machine_flags(options) == "-march=x86-64-v2"
    assert machine_flags("${STRICT_FLAGS} ${CMAKE_CXX_FLAGS_RELEASE}") == ""
    assert "CMAKE_INTERPROCEDURAL_OPTIMIZATION OFF" in CMAKE  # would inline one file's instructions into another


@pytest.mark.parametrize(("target", "flags"), FLAGS.items())
def test_a_variant_has_its_own_flags(target: str, flags: str) -> None:
    (arguments,) = re.findall(rf"tailrace_kernels\({target} ([^)]*)\)", CMAKE)
    assert machine_flags(arguments) == flags


def test_every_variant_is_listed_here() -> None:
    assert set(re.findall(r"tailrace_kernels\((\w+) csrc", CMAKE)) == set(FLAGS)
    built = {f"kernels_{name.replace('-', '_')}" for name in _native.test_variants()}
    assert built <= set(FLAGS)
