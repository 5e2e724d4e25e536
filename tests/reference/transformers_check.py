"""Compares the architectures with `transformers`, which this repository does not install.

    python -m tests.reference.transformers_check [--python PATH]

PATH is the Python of an environment that has transformers and torch (default: the one that runs this). For each
case a tiny random checkpoint is made there, as a folder of the hub; its logits in float32 are compared with those of
the engine (bf16 weights) for the folder with a configuration as published models have it, and for the folder as
transformers saves it. Prints a table and ends with 1 if a bound is passed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from tailrace.engine.weights.load import load_model
from tests.model.numbers import native_logits
from tests.reference.compare import kl, log_softmax
from tests.tiny import tiny_vocab_size
from tests.tiny_hf import write_tokenizer

F32 = npt.NDArray[np.float32]
TOKENS = 300  # past a segment of keys, all windows and the contexts that ropes were stretched from
KL_BOUND, LOGIT_BOUND = 1e-3, 0.3

INSTALL = """\
{python} has no {missing}. Make an environment and name it:
    python3 -m venv transformers-env
    transformers-env/bin/pip install torch --index-url https://download.pytorch.org/whl/cpu   (or the default index)
    transformers-env/bin/pip install transformers
    python -m tests.reference.transformers_check --python transformers-env/bin/python"""

_COMMON = {
    "hidden_size": 192,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
_LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
_QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 64, "rope_theta": 1e6}
_GEMMA3 = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "num_hidden_layers": 7,
    "head_dim": 64,
    "rope_theta": 1e6,
    "rope_local_base_freq": 10000.0,
    "sliding_window": 70,
    "sliding_window_pattern": 6,
    "query_pre_attn_scalar": 96,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}

CASES = MappingProxyType(
    {
        "llama": _LLAMA,
        "llama tied, wide heads": _LLAMA | {"tie_word_embeddings": True, "head_dim": 64},
        "llama linear": _LLAMA | {"rope_scaling": {"type": "linear", "factor": 2.5}},
        "llama llama3": _LLAMA | {"rope_scaling": _LLAMA3, "rope_theta": 500000.0},
        "llama yarn": _LLAMA | {"rope_scaling": _YARN},
        "llama yarn, own factors": _LLAMA
        | {"rope_scaling": _YARN | {"attention_factor": 0.8, "beta_fast": 4.0, "beta_slow": 0.25}},
        "mistral": {
            "architectures": ["MistralForCausalLM"],
            "model_type": "mistral",
            "head_dim": 32,
            "sliding_window": None,
            "rope_theta": 1e6,
        },
        "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "tie_word_embeddings": True},
        "qwen2 yarn": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "rope_scaling": _YARN},
        "qwen3": _QWEN3,
        "qwen3 tied": _QWEN3 | {"tie_word_embeddings": True},
        "gemma3": _GEMMA3,
        "gemma3 linear": _GEMMA3
        | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}, "sliding_window_pattern": 3},
        # transformers reads attn_logit_softcapping and does not apply it to this architecture, so it stays out here.
        "gemma3 softcap": _GEMMA3 | {"final_logit_softcapping": 10.0},
    }
)


@dataclass(frozen=True)
class Found:
    """Differences over all positions: KL(transformers || ours) in nats, and of the logits themselves."""

    mean_kl: float
    worst_kl: float
    worst_logit: float
    spread: float  # standard deviation of the reference's logits
    top1: float

    @property
    def near(self) -> bool:
        return self.mean_kl <= KL_BOUND and self.worst_logit <= LOGIT_BOUND * self.spread


def write_case(folder: Path, changes: dict[str, Any]) -> Path:
    (folder / "saved").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(_COMMON | {"vocab_size": tiny_vocab_size()} | changes))
    np.save(folder / "ids.npy", np.random.default_rng(3).integers(3, tiny_vocab_size(), TOKENS).astype(np.int32))
    for place in (folder, folder / "saved"):
        write_tokenizer(place)
    return folder


def compare(folder: Path) -> Iterator[tuple[str, Found]]:
    """(which configuration, how near)"""
    expected = np.load(folder / "logits.npy")
    for form, place in (("published", folder), ("saved", folder / "saved")):
        loaded = load_model(place, weights="bf16", threads=1, max_context=512)
        found = native_logits(loaded, np.load(folder / "ids.npy"))
        apart = kl(log_softmax(expected), log_softmax(found))
        yield (
            form,
            Found(
                mean_kl=float(apart.mean()),
                worst_kl=float(apart.max()),
                worst_logit=float(np.abs(expected - found).max()),
                spread=float(expected.std()),
                top1=float((expected.argmax(1) == found.argmax(1)).mean()),
            ),
        )


def missing(python: str) -> str:
    """What the environment lacks; nothing if it has all."""
    for package in ("torch", "transformers"):
        probe = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
        if subprocess.run([python, "-c", probe], check=False).returncode:
            return package
    return ""


def check(python: str, root: Path) -> bool:
    folders = {name: write_case(root / str(index), changes) for index, (name, changes) in enumerate(CASES.items())}
    jobs = [part for index, folder in enumerate(folders.values()) for part in (str(folder), str(index))]
    side = Path(__file__).with_name("transformers_side.py")
    subprocess.run([python, str(side), *jobs], check=True)
    print(f"{'case':<26}{'config':<11}{'mean KL':>10}{'worst KL':>10}{'max |dlogit|':>14}{'of sd':>8}{'top-1':>8}")
    near = True
    for name, folder in folders.items():
        for form, found in compare(folder):
            near &= found.near
            print(
                f"{name:<26}{form:<11}{found.mean_kl:>10.1e}{found.worst_kl:>10.1e}{found.worst_logit:>14.3f}"
                f"{found.worst_logit / found.spread:>8.3f}{found.top1:>8.3f}{'' if found.near else '  TOO FAR'}"
            )
    print(f"Bounds: mean KL {KL_BOUND:g}, logits {LOGIT_BOUND:g} of their standard deviation.")
    return near


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.reference.transformers_check")
    parser.add_argument("--python", default=sys.executable, help="of an environment with transformers and torch")
    python = parser.parse_args().python
    lacks = missing(python)
    if lacks:
        print(INSTALL.format(python=python, missing=lacks), file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as root:
        return 0 if check(python, Path(root)) else 1


if __name__ == "__main__":
    sys.exit(main())
