"""OpenVINO GenAI, continuous batching, from the same GGUF file. Runs in an environment with `openvino-genai`."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import openvino
import openvino_genai
from channel import answer


class OpenVino:
    def load(self, model: str, threads: int) -> dict[str, Any]:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = 2  # GB
        scheduler.enable_prefix_caching = False
        scheduler.max_num_seqs = 64
        scheduler.max_num_batched_tokens = 2048
        self._pipeline = openvino_genai.LLMPipeline(
            model, "CPU", scheduler_config=scheduler, INFERENCE_NUM_THREADS=threads
        )
        self._tokenizer = self._pipeline.get_tokenizer()
        return {"version": openvino_genai.__version__}

    def generate(self, prompts: list[list[int]], tokens: int) -> dict[str, Any]:
        """All prompts have one length here, so that they go in as one batch without padding."""
        ids = np.array(prompts, dtype=np.int64)
        inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = tokens
        config.ignore_eos = True
        config.do_sample = False
        config.apply_chat_template = False
        begin = time.perf_counter()
        result = self._pipeline.generate(inputs, config)
        seconds = time.perf_counter() - begin
        first = result.perf_metrics.get_ttft().mean / 1e3
        return {"seconds": seconds, "first_seconds": first, "outputs": [list(row) for row in result.tokens]}


if __name__ == "__main__":
    answer(OpenVino())
