"""lm-eval's local-completions: a task of multiple choice and one of generation, over four questions written here.

Public tasks need their data from the network; what matters to a server is how lm-eval asks: prompts as token ids with
`max_tokens: 1`, `echo` and `logprobs`, whose log-likelihoods are compared with a second way to ask for them. Tokens
come from our /tokenize, in place of the model's tokenizer from the hub.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import requests
from report import run

QUESTIONS = (
    ("The capital of France is", "Paris"),
    ("Two and two make", "four"),
    ("The opposite of cold is", "hot"),
    ("Water is made of hydrogen and", "oxygen"),
)
ANSWERS = [answer for _, answer in QUESTIONS]
SHARED: dict[str, Any] = {"dataset_path": "json", "test_split": "test", "doc_to_text": "{{question}}"}
CHOICE: dict[str, Any] = {
    "task": "ours_choice",
    "output_type": "multiple_choice",
    "doc_to_choice": ANSWERS,
    "doc_to_target": "{{label}}",
    "metric_list": [{"metric": "acc"}],
}
GENERATION: dict[str, Any] = {
    "task": "ours_generation",
    "output_type": "generate_until",
    "doc_to_target": " {{answer}}",
    "generation_kwargs": {"until": ["\n", "."], "max_gen_toks": 12},
    "metric_list": [{"metric": "exact_match"}],
}


class Tokens:
    """What lm-eval asks of a tokenizer, from our server's."""

    bos_token_id = eos_token_id = 0
    eos_token = "<|im_end|>"

    def __init__(self, base: str) -> None:
        self._base = base

    def encode(self, text: str) -> list[int]:
        asked = {"content": text, "add_special_tokens": False}
        return requests.post(f"{self._base}/tokenize", json=asked, timeout=60).json()["tokens"]


def _model(base: str, **options: Any) -> Any:
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    url = base + "/v1/completions"
    model = LocalCompletionsAPI(base_url=url, model="smollm2:135m", tokenizer_backend=None, max_length=512, **options)
    model.tokenizer, model.tokenizer_backend, model.tokenized_requests = Tokens(base), "remote", True
    return model


def _evaluate(base: str, task: dict[str, Any], **options: Any) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HF_HOME"], os.environ["HF_HUB_OFFLINE"] = folder, "1"
        from lm_eval import simple_evaluate

        data = Path(folder, "test.json")
        rows = [{"question": q, "answer": a, "label": i} for i, (q, a) in enumerate(QUESTIONS)]
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        whole = {**SHARED, **task, "dataset_kwargs": {"data_files": {"test": str(data)}}}
        found = simple_evaluate(_model(base, **options), tasks=[whole], bootstrap_iters=0)
    return found["results"][task["task"]]


def multiple_choice(base: str) -> str:
    alone = _evaluate(base, CHOICE)["acc,none"]
    assert alone == _evaluate(base, CHOICE, batch_size=4, num_concurrent=2)["acc,none"]
    return f"accuracy {alone} of {len(QUESTIONS)} questions, alone and batched"


def generation(base: str) -> str:
    return f"exact match {_evaluate(base, GENERATION)['exact_match,none']}"


def loglikelihood(base: str) -> str:
    """The same number as from a prompt's own log-probabilities."""
    from lm_eval.api.instance import Instance

    pairs = [(question, " " + answer) for question, answer in QUESTIONS]
    asked = [Instance("loglikelihood", {}, pair, index) for index, pair in enumerate(pairs)]
    found = [value for value, _ in _model(base).loglikelihood(asked)]
    wanted = [_scored(base, *pair) for pair in pairs]
    assert max(abs(one - two) for one, two in zip(found, wanted, strict=True)) < 1e-6, (found, wanted)
    return " ".join(f"{value:.3f}" for value in found)


def _scored(base: str, question: str, answer: str) -> float:
    tokens = Tokens(base)
    first, ids = len(tokens.encode(question)), tokens.encode(question + answer)
    asked = {"model": "smollm2:135m", "prompt": ids, "max_tokens": 1, "prompt_logprobs": 0}
    rows = requests.post(f"{base}/v1/completions", json=asked, timeout=60).json()["choices"][0]["prompt_logprobs"]
    return sum(rows[index][str(ids[index])]["logprob"] for index in range(first, len(ids)))


def rolling(base: str) -> str:
    from lm_eval.api.instance import Instance

    asked = Instance("loglikelihood_rolling", {}, ("Once upon a time there was a small house.",), 0)
    [found] = _model(base).loglikelihood_rolling([asked])
    assert found < 0
    return f"{found:.3f}"


if __name__ == "__main__":
    raise SystemExit(run((multiple_choice, generation, loglikelihood, rolling)))
