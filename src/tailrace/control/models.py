"""Which models are served, which of them are loaded, and who uses them. The one place that knows what `model` names.

A model is loaded when a request needs it, off the event loop and one after another; requests wait for it, each until
its own time is over. One that nobody has used for `keep_alive` is unloaded, and so are idle ones whose memory another
model needs. What fails to load fails those that wait for it. Knows no files and no engine: a Loader makes models.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Protocol, TypeVar

from tailrace.backends.base import Backend
from tailrace.clock import Clock
from tailrace.config import EngineConfig
from tailrace.control.expiry import Expiry
from tailrace.control.pipeline import Pipeline
from tailrace.errors import Domain, ErrorKind, TailraceError, Unavailable
from tailrace.observe.timeline import Phase, Timeline
from tailrace.protocol.ask import Template
from tailrace.protocol.sampling import pick_model
from tailrace.text.parsers.dialect import Dialect
from tailrace.text.template import ChatTemplate
from tailrace.text.tokenizer import Tokenizer
from tailrace.types import Adapter
from tailrace.units import human_bytes

log = logging.getLogger(__name__)

_AGAIN = 5.0  # seconds after which a model that did not load is tried anew, and memory may be free

T = TypeVar("T")


def _nothing() -> None:
    pass


@dataclass(slots=True)
class Loaded:
    """A model that answers. `nbytes`: memory of weights and KV cache; `close` stops its backend and gives that back.
    `read_adapter` makes weights for its requests of an adapter's folder; None where it takes none."""

    backend: Backend
    tokenizer: Tokenizer
    template: Template | None
    dialect: Dialect
    nbytes: int = 0
    close: Callable[[], None] = _nothing
    read_adapter: Callable[[Path], object] | None = None

    @classmethod
    def of(
        cls,
        backend: Backend,
        tokenizer: Tokenizer,
        template: Template | None,
        config: EngineConfig,
        *,
        nbytes: int = 0,
        close: Callable[[], None] = _nothing,
        read_adapter: Callable[[Path], object] | None = None,
    ) -> Loaded:
        """With its dialect found out. Raises ConfigError for a parser that is not known."""
        chat = template if isinstance(template, ChatTemplate) else None
        dialect = Dialect.of(chat, tokenizer, tool_parser=config.tool_parser, reasoning_parser=config.reasoning_parser)
        return cls(backend, tokenizer, template, dialect, nbytes, close, read_adapter)


class Loader(Protocol):
    """Called in threads. Raises TailraceError."""

    def need(self, name: str) -> int:
        """Bytes that the model will take, about."""
        ...

    def load(self, name: str) -> Loaded:
        """With its backend started."""
        ...


class Served:
    """A name that requests may ask for: a model's, or that of an adapter on top of one. `users` counts requests that
    run on it, wait there, or wait for its loading; an adapter's are its model's too."""

    def __init__(self, name: str, created: float, base: Served | None = None, adapter: Adapter | None = None) -> None:
        self.name = name
        self.base = base or self
        self.adapter = adapter
        self._freed = asyncio.Event()
        self.created = created  # seconds since the epoch: when it was loaded last, or the server started
        self._loaded: Loaded | None = None
        self.users = 0
        self.idle_since = 0.0
        self.loading: asyncio.Task[None] | None = None
        self.error: TailraceError | None = None  # of the last loading
        self.failed_at = 0.0

    @property
    def loaded(self) -> Loaded | None:
        return self.base._loaded

    def becomes(self, loaded: Loaded | None) -> None:
        assert self.base is self
        self._loaded = loaded

    def take(self) -> None:
        self.users += 1
        if self.base is not self:
            self.base.users += 1

    def leave(self) -> None:
        self.users -= 1
        assert self.users >= 0
        if not self.users:
            self._freed.set()
        if self.base is not self:
            self.base.users -= 1

    async def free(self) -> None:
        """Returns when it has no users; nobody may take it any more."""
        if self.users:
            self._freed.clear()
            await self._freed.wait()

    @property
    def state(self) -> str:
        if self.loaded is not None:
            return "loaded"
        if self.loading is not None:
            return "loading"
        return "unloaded" if self.error is None else "failed"

    @property
    def model(self) -> Loaded:
        """For who holds it."""
        assert self.loaded is not None
        return self.loaded


class Models:
    """`names`: what is served, the first where a request names none. `memory`: bytes for all that is loaded, 0: no
    bound.
    `keep_alive`: seconds, 0: for ever."""

    def __init__(
        self,
        names: Sequence[str],
        loader: Loader | None,
        pipeline: Pipeline,
        clock: Clock,
        *,
        keep_alive: float = 0.0,
        memory: int = 0,
    ) -> None:
        self.keep_alive = keep_alive
        self.memory = memory
        self._served = {name: Served(name, clock.wall()) for name in names}
        self.adapted: dict[str, Served] = {}
        self._loader = loader
        self._pipeline = pipeline
        self._clock = clock
        self._turn = asyncio.Lock()  # of loading
        self._idle = Expiry(clock, self._idled)
        self._unloading: set[asyncio.Task[None]] = set()
        self._stopped: TailraceError | None = None

    def __iter__(self) -> Iterator[Served]:
        return iter(self._served.values())

    def names(self, tenant: str) -> tuple[str, ...]:
        """What this tenant may ask for."""
        allowed = self._pipeline.tenants[tenant].models
        names = (*self._served, *self.adapted)
        return tuple([name for name in names if name in allowed]) if allowed else names

    def has(self, name: str) -> bool:
        return name in self._served or name in self.adapted

    def model(self, name: str | None) -> Served:
        """A model by its name, the first without one. Raises ModelNotFound."""
        return self._served[pick_model(name, tuple(self._served))]

    def wall(self) -> float:
        """Seconds since the epoch."""
        return self._clock.wall()

    def find(self, name: str | None, tenant: str) -> Served:
        """What a request's `model` names; the first of the tenant's when it names none. Raises ModelNotFound."""
        found = pick_model(name, self.names(tenant))
        return self._served.get(found) or self.adapted[found]

    def report(self) -> list[dict[str, object]]:
        """For people: `GET /admin/models` and `tailrace ps`. Names say the unit."""
        return [self._line(served) for served in self]

    def report_adapters(self) -> list[dict[str, object]]:
        return [
            {"name": name, "parent": one.base.name, "loaded_at": int(one.created), "requests": one.users}
            for name, one in self.adapted.items()
        ]

    # --- use

    async def hold(self, served: Served, timeline: Timeline, until: float | None = None) -> Loaded:
        """The model, loaded until `let_go`; at `until` on the clock waiting for it ends. Raises Unavailable."""
        served.take()
        self._idle.drop(served.base.name)
        try:
            while served.loaded is None:
                timeline.enter(Phase.LOAD)
                await self._loading(served.base, until)
        except BaseException:
            self.let_go(served)
            raise
        return served.loaded

    def let_go(self, served: Served) -> None:
        served.leave()
        model = served.base
        if not model.users:
            model.idle_since = self._clock.now()
            self._watch(model)

    def adopt(self, name: str, loaded: Loaded) -> None:
        """It is loaded already, by who calls."""
        served = self._served[name]
        served.becomes(loaded)
        served.error = None
        served.created, served.idle_since = self._clock.wall(), self._clock.now()
        self._pipeline.open(loaded.backend)
        self._watch(served)

    # --- the end

    def stop(self) -> None:
        """Whoever waits for a model is told that the server stops."""
        self._stopped = Unavailable("The server is stopping", code="draining", retry_after=_AGAIN)
        for served in self:
            if served.loading is not None:
                served.loading.cancel()

    def close(self) -> None:
        """Stop what is loaded. The last call, with nobody there."""
        self.stop()
        for served in self:
            if served.loaded is not None:
                served.loaded.close()
                served.becomes(None)

    # --- inside

    def _line(self, served: Served) -> dict[str, object]:
        loaded, idle = served.loaded, None
        if loaded is not None and not served.users:
            idle = self._clock.now() - served.idle_since
        runs = [run for run in self._pipeline.runs() if run.request.base_model == served.name]
        return {
            "name": served.name,
            "state": served.state,
            "memory_bytes": 0 if loaded is None else loaded.nbytes,
            "running": len(runs),
            "waiting": max(served.users - len(runs), 0),
            "idle_s": idle,
            "unloaded_in_s": max(self.keep_alive - idle, 0.0) if idle is not None and self.keep_alive else None,
            "error": None if served.error is None else served.error.message,
        }

    def _watch(self, served: Served) -> None:
        if self.keep_alive and served.loaded is not None and not served.users:
            self._idle.add(served.name, self._clock.now() + self.keep_alive)

    def _idled(self, name: str) -> None:
        served = self._served[name]
        if served.users or served.loaded is None:
            return
        task = asyncio.ensure_future(self._unload(served))
        self._unloading.add(task)
        task.add_done_callback(self._unloading.discard)

    async def _loading(self, served: Served, until: float | None) -> None:
        """Wait until loading has ended, well or not."""
        now = self._clock.now()
        if self._stopped is not None:
            raise self._stopped
        if served.loading is None:
            if served.error is not None and now < served.failed_at + _AGAIN:
                raise served.error.with_traceback(None)
            served.loading = asyncio.ensure_future(self._load(served))
        waits = asyncio.shield(served.loading)
        try:
            async with asyncio.timeout(None if until is None else max(until - now, 0.0)):
                await waits
        except TimeoutError:
            raise Unavailable(
                f"The model {served.name} is not loaded in the time that this request may wait",
                code="deadline_unattainable", param="model", retry_after=_AGAIN, domain=Domain.ROUTING,
                kind=ErrorKind.TIMEOUT,
            ) from None  # fmt: skip
        except asyncio.CancelledError:
            if self._stopped is not None and waits.cancelled():
                raise self._stopped from None
            raise
        if served.error is not None:
            raise served.error.with_traceback(None)

    async def _load(self, served: Served) -> None:
        """Ends with the model loaded, or with the reason why not in `error`."""
        served.error = None
        try:
            async with self._turn:
                assert self._loader is not None
                loader, name = self._loader, served.name
                await asyncio.gather(*self._unloading)
                await self._make_room(served, await in_thread(lambda: loader.need(name)))
                self.adopt(name, await in_thread(lambda: loader.load(name)))
        except Exception as error:
            log.exception("the model %s could not be loaded", served.name)
            served.error, served.failed_at = _failure(served.name, error), self._clock.now()
        finally:
            served.loading = None

    async def _make_room(self, served: Served, need: int) -> None:
        """Unload idle models, those first that are idle for longest, until there is memory. Raises Unavailable."""
        if not self.memory:
            return
        idle = sorted((s for s in self if s.loaded is not None and not s.users), key=lambda s: s.idle_since)
        while self._used() + need > self.memory and idle:
            await self._unload(idle.pop(0))
        if self._used() + need > self.memory:
            busy = ", ".join(other.name for other in self if other.loaded is not None)
            raise Unavailable(
                f"The model {served.name} needs {human_bytes(need)}; models may have {human_bytes(self.memory)}, and "
                f"{human_bytes(self._used())} are in use{f' by {busy}' if busy else ''}",
                code="model_memory", param="model", retry_after=_AGAIN if busy else None, domain=Domain.ROUTING,
                kind=ErrorKind.MEMORY,
            )  # fmt: skip

    def _used(self) -> int:
        return sum(served.loaded.nbytes for served in self if served.loaded is not None)

    async def _unload(self, served: Served) -> None:
        loaded = served.loaded
        if loaded is None or served.users:
            return
        self._idle.drop(served.name)
        served.becomes(None)
        self._pipeline.shut(loaded.backend)
        await in_thread(loaded.close)


async def in_thread(function: Callable[[], T]) -> T:
    """Its result, from a thread of its own: the process may end meanwhile, which an executor would hold up."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def tell(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def work() -> None:
        result, error = None, None
        try:
            result = function()
        except BaseException as raised:
            error = raised
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(tell, result, error)

    Thread(target=work, name="tailrace-models", daemon=True).start()
    return await future


def _failure(name: str, error: Exception) -> TailraceError:
    """What those are told who wanted the model."""
    if isinstance(error, Unavailable):
        return error
    why, kind = "an internal error", ErrorKind.INTERNAL
    if isinstance(error, TailraceError):
        why, kind = error.message, error.kind
    return Unavailable(
        f"The model {name} could not be loaded: {why}", code="model_load_failed", param="model",
        domain=Domain.ROUTING, kind=kind,
    )  # fmt: skip
