"""Settings that are read again while requests run: all or nothing, and nobody is dropped."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tailrace.api.server import Service
from tailrace.api.state import AppState, one_model
from tailrace.backends.fake import FakeBackend, fake_tokenizer
from tailrace.clock import ManualClock
from tailrace.config import Config, load
from tailrace.control.keys import digest
from tailrace.control.pipeline import Pipeline
from tailrace.control.tenants import Tenants
from tailrace.errors import ConfigError
from tailrace.observe.metrics import Metrics
from tests.serving import chat, in_process, template, until

CHAT = "/v1/chat/completions"


def key(name: str) -> str:
    return f'[[tenants.keys]]\nname = "{name}"\nhash = "sha256:s:{digest(name, "s")}"\n'


def tenant(name: str, rest: str = "") -> str:
    return f'[[tenants]]\nname = "{name}"\n{rest}\n{key(name)}'


class App:
    """A server over a settings file, whose answers stand still until `finish`."""

    def __init__(self, tmp_path: Path, text: str, *, slots: int = 4, **flags: object) -> None:
        self.file = tmp_path / "settings.toml"
        self.file.write_text(text)
        loaded = load(str(self.file), {}, {"data.database": "none", "api.port": "0", **flags})
        config, clock, metrics = loaded.config, ManualClock(), Metrics()
        self.backend = FakeBackend(max_sequences=slots, manual=True, clock=clock)
        self.pipeline = Pipeline(self.backend, config.control, clock, metrics, tenants=Tenants.of(config))
        models = one_model(self.pipeline, fake_tokenizer(), template(), config, clock)
        self.state = AppState(config, self.pipeline, models, metrics, clock, loaded=loaded)
        self.client = in_process(self.state)

    def write(self, text: str) -> None:
        self.file.write_text(text)

    def ask(self, name: str, **fields: Any) -> asyncio.Task[httpx.Response]:
        body = chat(max_tokens=5, ignore_eos=True, **fields)
        return asyncio.create_task(self.client.post(CHAT, json=body, headers={"authorization": f"Bearer {name}"}))

    async def running(self, count: int) -> None:
        await until(lambda: self.pipeline.running == count)

    async def finish(self, *tasks: asyncio.Task[httpx.Response]) -> list[httpx.Response]:
        while not all(task.done() for task in tasks):
            self.backend.step()
            await asyncio.sleep(0)
        return [task.result() for task in tasks]


async def test_tenants_come_and_go_and_running_requests_finish(tmp_path: Path) -> None:
    app = App(tmp_path, tenant("acme") + tenant("old"))
    running = [app.ask("acme"), app.ask("old")]
    await app.running(2)
    app.write(tenant("acme", "weight = 3") + tenant("new"))
    done = app.state.settings.reload()
    assert (done.changed, done.needs_restart) == (("tenants",), ())
    assert [each.name for each in app.pipeline.tenants] == ["acme", "new", "default"]
    refused = (await app.finish(app.ask("old")))[0]
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
    answers = await app.finish(*running, app.ask("new"))
    assert [answer.status_code for answer in answers] == [200] * 3
    assert app.pipeline.tenants["acme"].weight == 3
    assert app.pipeline.device_seconds["old"] == app.pipeline.device_seconds["acme"] > 0


async def test_counters_of_limits_survive(tmp_path: Path) -> None:
    app = App(tmp_path, tenant("acme", "limits = {requests_per_minute = 3}"))
    await app.finish(*[app.ask("acme") for _ in range(2)])
    app.write(tenant("acme", "limits = {requests_per_minute = 4}"))
    app.state.settings.reload()
    answers = await app.finish(*[app.ask("acme") for _ in range(3)])
    assert sorted(answer.status_code for answer in answers) == [200, 200, 429]


async def test_who_waits_for_a_limit_waits_for_the_present_one(tmp_path: Path) -> None:
    app = App(tmp_path, tenant("acme", "limits = {concurrency = 1}"))
    tasks = [app.ask("acme") for _ in range(2)]
    await until(lambda: len(app.pipeline.limits.waiting) == 1)
    app.write(tenant("acme", "limits = {concurrency = 2}"))
    app.state.settings.reload()
    await app.running(2)
    assert [answer.status_code for answer in await app.finish(*tasks)] == [200, 200]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[control]\nlong_prompt = 5\nmax_waiting = 1", "nearest known one"),
        ("[control]\nlong_prompt = 5\nmax_waiting_requests = -1", "max_waiting_requests = -1"),
        (tenant("acme") + tenant("acme"), "is there twice"),
        ("[control\n", "not valid TOML"),
    ],
)
async def test_a_mistake_changes_nothing(tmp_path: Path, text: str, says: str) -> None:
    app = App(tmp_path, tenant("acme"))
    before = app.state.config
    app.write(text)
    with pytest.raises(ConfigError, match=says):
        app.state.settings.reload()
    assert app.state.config is before
    assert app.state.settings.config is before
    assert (await app.finish(app.ask("acme")))[0].status_code == 200


async def test_what_needs_a_restart_is_named_and_stays(tmp_path: Path) -> None:
    app = App(tmp_path, "[api]\nmax_choices = 2\n[engine]\nthreads = 1")
    seen: list[Config] = []
    app.state.settings.on_change(seen.append)
    app.write("[api]\nmax_choices = 3\nhost = '0.0.0.0'\n[engine]\nthreads = 2\n[control]\nlong_prompt = 100")
    done = app.state.settings.reload()
    assert done.changed == ("control.long_prompt", "api.max_choices")
    assert done.needs_restart == ("engine.threads", "api.host")
    config = app.state.config
    assert seen == [config]
    assert (config.engine.threads, config.api.host, config.api.port) == (1, "127.0.0.1", 0)
    assert (await app.finish(app.ask("", n=3)))[0].status_code == 200
    assert (await app.finish(app.ask("", n=4)))[0].status_code == 400


async def test_bounds_and_rules_hold_at_once(tmp_path: Path) -> None:
    app = App(tmp_path, "", slots=1)
    first = app.ask("")
    await app.running(1)
    rules = '[[rules]]\nclass = "background"\nroute = "chat"\n'
    app.write("[control]\nmax_waiting_requests = 1\n" + rules)
    app.state.settings.reload()
    second = app.ask("")
    await until(lambda: app.pipeline.waiting == 1)
    assert [run.ticket.request_class for run in app.pipeline.waiting_runs()] == ["background"]
    third = (await app.finish(app.ask(""), first))[0]
    assert (third.status_code, third.json()["error"]["code"]) == (429, "queue_full")
    await app.finish(second)


async def test_keys_of_a_file_are_read_again(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("one\n")
    app = App(tmp_path, "", **{"api.api_key_file": str(keys)})
    assert (await app.finish(app.ask("one")))[0].status_code == 200
    keys.write_text("two\n")
    assert app.state.settings.reload().changed == ("api.api_keys",)
    assert [answer.status_code for answer in await app.finish(app.ask("one"), app.ask("two"))] == [401, 200]


async def test_the_last_key_taken_away_opens_nothing(tmp_path: Path) -> None:
    app = App(tmp_path, tenant("acme"))
    app.write("")
    app.state.settings.reload()
    assert (await app.finish(app.ask("")))[0].status_code == 401


async def test_a_signal_reads_the_settings_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    app = App(tmp_path, "")
    listening = asyncio.Event()
    serving = asyncio.create_task(Service(app.state).run(on_listening=lambda _: listening.set()))
    await listening.wait()
    app.write("[control]\nlong_prompt = 77")
    os.kill(os.getpid(), signal.SIGHUP)
    await until(lambda: app.state.config.control.long_prompt == 77)
    app.write("[control]\nlong_prompt = 0")
    os.kill(os.getpid(), signal.SIGHUP)
    await until(lambda: "the settings stay as they were" in caplog.text)
    assert app.state.config.control.long_prompt == 77
    os.kill(os.getpid(), signal.SIGTERM)
    await serving
