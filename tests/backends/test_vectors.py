"""Vectors from real kernels: a decoder's are the mean of its hidden states, an encoder's are the reference's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tailrace import _native
from tailrace.backends.engine import EngineBackend
from tailrace.clock import SystemClock
from tailrace.config import EngineConfig
from tailrace.engine.build import build_engine
from tailrace.types import GenerateRequest, Pooling, SamplingParams, StopConditions, TokenEvent
from tests.reference.bert import hidden_states
from tests.tiny import write_tiny_gguf
from tests.tiny_bert import tiny_bert_config, tiny_bert_weights, write_tiny_bert

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]
CONFIG = EngineConfig(threads=2, max_sequences=4, kv_memory=2**20, chunk_tokens=48)


@contextmanager
def engine(path: Path) -> Iterator[EngineBackend]:
    backend = EngineBackend(build_engine(path, CONFIG, SystemClock()), "m", SystemClock())
    backend.start()
    try:
        yield backend
    finally:
        backend.close()


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineBackend]:
    with engine(write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf")) as backend:
        yield backend


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineBackend]:
    with engine(write_tiny_bert(tmp_path_factory.mktemp("bert") / "tiny-bert")) as backend:
        yield backend


def ids(length: int, seed: int = 0, most: int = 250) -> I32:
    return np.random.default_rng(seed).integers(5, most, length).astype(np.int32)


async def end_of(backend: EngineBackend, request: GenerateRequest) -> tuple[TokenEvent, list[int]]:
    events = [event async for batch in backend.generate(request) for event in batch]
    return events[-1], [token for event in events for token in event.token_ids]


async def vector(backend: EngineBackend, prompt: I32, name: str = "v", pooling: Pooling | None = None) -> F32:
    request = GenerateRequest(
        name, "m", prompt, SamplingParams(temperature=0.0), StopConditions(max_tokens=0),
        pooling=pooling or backend.caps.pooling,
    )  # fmt: skip
    event, tokens = await end_of(backend, request)
    assert tokens == []
    assert event.embedding is not None
    assert event.facts is not None
    assert event.facts.computed_prompt_tokens + event.facts.cached_tokens == len(prompt)
    return event.embedding


def answer(seed: int) -> GenerateRequest:
    stop = StopConditions(max_tokens=40, ignore_eos=True)
    return GenerateRequest(f"r{seed}", "m", ids(30, seed), SamplingParams(temperature=1.0, seed=seed), stop)


def states_of(backend: EngineBackend, prompt: I32) -> F32:
    """Of every token, from one call to the executor beside the engine's own."""
    model = backend.engine._runner._model  # type: ignore[attr-defined]
    cache = _native.KvCache(model, 8, backend.engine._runner._kv.kv)  # type: ignore[attr-defined]
    every = np.arange(len(prompt), dtype=np.int32)
    bounds = np.array([0, len(prompt)], np.int32)
    model.forward(cache, prompt, bounds, np.zeros(1, np.int32), np.arange(8, dtype=np.int32)[None], every)
    states: F32 = model.hidden()
    return states


async def test_a_decoders_vector_is_the_mean_or_the_last_of_its_hidden_states(decoder: EngineBackend) -> None:
    assert (decoder.caps.embedding, decoder.caps.pooling, decoder.caps.generates) == (64, Pooling.MEAN, True)
    prompt = ids(130)
    mean, last = await vector(decoder, prompt), await vector(decoder, prompt, pooling=Pooling.LAST)
    states = states_of(decoder, prompt)
    assert np.array_equal(mean, states.mean(axis=0, dtype=np.float64).astype(np.float32))
    assert np.array_equal(last, states[-1])


async def test_answers_and_vectors_of_one_step_leave_each_other_alone(decoder: EngineBackend) -> None:
    prompts = [ids(20 + 45 * i, 50 + i) for i in range(4)]
    alone = [await vector(decoder, prompt) for prompt in prompts]
    answers = [await end_of(decoder, answer(seed)) for seed in (1, 2)]
    mixed = await asyncio.gather(
        *(end_of(decoder, answer(seed)) for seed in (1, 2)),
        *(vector(decoder, prompt, f"v{i}") for i, prompt in enumerate(prompts)),
    )
    assert [tokens for _, tokens in mixed[:2]] == [tokens for _, tokens in answers]
    assert all(np.array_equal(a, b) for a, b in zip(alone, mixed[2:], strict=True))


async def test_an_encoders_vectors_are_the_references(encoder: EngineBackend) -> None:
    assert (encoder.caps.embedding, encoder.caps.pooling, encoder.caps.generates) == (64, Pooling.MEAN, False)
    config = tiny_bert_config()
    weights = tiny_bert_weights(config)
    prompts = [ids(n, n, config["vocab_size"]) for n in (1, 9, 64, 200, 320)]
    found = await asyncio.gather(*(vector(encoder, prompt, f"v{i}") for i, prompt in enumerate(prompts)))
    for prompt, one in zip(prompts, found, strict=True):
        expected = hidden_states(weights, config, prompt).mean(axis=0)
        assert one @ expected > 0.9999 * np.linalg.norm(one) * np.linalg.norm(expected)
        assert np.array_equal(await vector(encoder, prompt), one)


def test_a_folder_says_how_vectors_are_made(tmp_path: Path) -> None:
    for name, mode, pooling in (("a", "cls_token", Pooling.FIRST), ("b", None, Pooling.MEAN)):
        with engine(write_tiny_bert(tmp_path / name, pooling=mode)) as backend:
            assert backend.caps.pooling is pooling
