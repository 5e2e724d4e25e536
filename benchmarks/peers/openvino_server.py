"""OpenVINO GenAI's continuous-batching pipeline behind the thin front. Runs in an environment with `openvino-genai`.

python openvino_server.py MODEL.gguf PORT THREADS
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import openvino
import openvino_genai
from thin_http import serve


class Steps(threading.Thread):
    """Runs the pipeline's steps on a thread of its own; what a step made reaches the event loop once a step."""

    def __init__(self, pipeline: Any, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(daemon=True)
        self._pipeline, self._loop = pipeline, loop
        self._tokenizer = pipeline.get_tokenizer()
        self._ids = itertools.count()
        self._arrived: list[tuple[list[int], int, asyncio.Queue[str | None]]] = []
        self._wake = threading.Condition()

    def submit(self, prompt: list[int], tokens: int) -> asyncio.Queue[str | None]:
        mailbox: asyncio.Queue[str | None] = asyncio.Queue()
        with self._wake:
            self._arrived.append((prompt, tokens, mailbox))
            self._wake.notify()
        return mailbox

    def run(self) -> None:
        live: list[tuple[Any, asyncio.Queue[str | None]]] = []
        while True:
            with self._wake:
                while not self._arrived and not live:
                    self._wake.wait()
                arrived, self._arrived = self._arrived, []
            live += [(self._add(prompt, tokens), mailbox) for prompt, tokens, mailbox in arrived]
            self._pipeline.step()
            made = [(mailbox, *self._read(handle)) for handle, mailbox in live]
            live = [entry for entry, (_, _, done) in zip(live, made, strict=True) if not done]
            self._loop.call_soon_threadsafe(_deliver, made)

    def _add(self, prompt: list[int], tokens: int) -> Any:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = tokens
        config.ignore_eos = True
        config.do_sample = False
        config.apply_chat_template = False
        ids = openvino.Tensor(np.array([prompt], dtype=np.int64))
        return self._pipeline.add_request(next(self._ids), ids, config)

    def _read(self, handle: Any) -> tuple[str, bool]:
        """New text, and whether the request has ended."""
        ids: list[int] = []
        while handle.can_read():
            for output in handle.read().values():
                ids += output.generated_ids
        done = handle.get_status() != openvino_genai.GenerationStatus.RUNNING
        return (self._tokenizer.decode(ids) if ids else ""), done and not handle.can_read()


def _deliver(made: list[tuple[asyncio.Queue[str | None], str, bool]]) -> None:
    for mailbox, text, done in made:
        if text:
            mailbox.put_nowait(text)
        if done:
            mailbox.put_nowait(None)


class OpenVino:
    def __init__(self, model: str, threads: int) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = 2  # GB
        scheduler.enable_prefix_caching = False
        scheduler.dynamic_split_fuse = True
        scheduler.max_num_seqs = 64
        scheduler.max_num_batched_tokens = 512
        properties = {"INFERENCE_NUM_THREADS": threads}
        pipeline = openvino_genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties)
        self._steps = Steps(pipeline, asyncio.get_running_loop())
        self._steps.start()

    async def stream(self, prompt: list[int], tokens: int) -> AsyncIterator[str]:
        mailbox = self._steps.submit(prompt, tokens)
        while (text := await mailbox.get()) is not None:
            yield text


async def main() -> None:
    await serve(OpenVino(sys.argv[1], int(sys.argv[3])), int(sys.argv[2]))


if __name__ == "__main__":
    asyncio.run(main())
