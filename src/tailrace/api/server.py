"""The listening process: one socket, our own signals, a graceful end.

uvicorn's own handling of SIGTERM closes the port first. Here the port stays open while running answers finish, so that
new work is told 503 with Retry-After instead of a refused connection. SIGHUP reads the settings again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn

from tailrace.api.app import AppState, create_app
from tailrace.api.connection import BoundedConnection
from tailrace.api.listener import bound, listen
from tailrace.errors import ConfigError
from tailrace.protocol.body import shapes

log = logging.getLogger(__name__)

_WRITE_OUT = 3.0  # seconds for the last bytes of ended answers
_WRITE_OUT_NOW = 0.5  # the same at a second signal
_BACKSTOP = 30  # seconds until uvicorn would cancel what still runs; nothing does by then


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Service:
    """`await run()` returns when the server has stopped: after `stop()`, or SIGTERM or SIGINT with `signals`; or since
    an engine was given up, which `failed` then says."""

    def __init__(self, state: AppState) -> None:
        self._state = state
        self._server = _Server(
            uvicorn.Config(
                create_app(state), http=BoundedConnection, ws="none", lifespan="off", log_config=None, access_log=False,
                server_header=False, timeout_graceful_shutdown=_BACKSTOP, timeout_keep_alive=75,
            )
        )  # fmt: skip
        state.stop = self.stop
        self._ending: asyncio.Task[None] | None = None
        self._forced: asyncio.Task[None] | None = None

    @property
    def failed(self) -> bool:
        return self._state.pipeline.watchdog.hopeless.is_set()

    async def run(
        self,
        *,
        listener: socket.socket | None = None,
        on_listening: Callable[[str], None] | None = None,
        signals: bool = True,
    ) -> None:
        """Serve until stopped, on a socket of `api.listener` or else the configured address. `on_listening` gets the
        address, with the real port. Raises ConfigError when the address cannot be had."""
        listener = listener or bound(self._state.config.api.host, self._state.config.api.port)
        address = listen(listener)
        if on_listening is not None:
            on_listening(address)
        watchdog = self._state.pipeline.watchdog
        watchdog.start()
        surrender = asyncio.create_task(self._surrender())
        building = asyncio.create_task(_build_shapes())
        with _handling(self.stop, self.reload) if signals else contextlib.nullcontext():
            await self._server.serve(sockets=[listener])
        surrender.cancel()
        for task in (self._ending, self._forced, surrender, building):
            if task is not None:
                await asyncio.gather(task, return_exceptions=True)
        await watchdog.stop()

    def stop(self) -> None:
        """First call: refuse new work, let running answers finish for the drain time. Second call: end them now."""
        if self._ending is None:
            self._state.pipeline.begin_drain()
            self._ending = asyncio.create_task(self._end())
        elif self._forced is None:
            self._forced = asyncio.create_task(self._force())

    def reload(self) -> None:
        """Read the settings again. A mistake in them is logged, and changes nothing."""
        try:
            done = self._state.settings.reload()
        except ConfigError as error:
            log.error("the settings stay as they were: %s", error)
            return
        log.warning("the settings were read again; changed: %s", ", ".join(done.changed) or "nothing")

    async def _surrender(self) -> None:
        """What other models still answer is finished; then another process may do better."""
        await self._state.pipeline.watchdog.hopeless.wait()
        if self._ending is None:
            self.stop()

    async def _end(self) -> None:
        log.info("stopping: refusing new work, finishing what runs")
        await self._state.pipeline.drain(self._state.config.control.drain_timeout)
        self._state.models.stop()
        self._server.should_exit = True
        await self._write_out(_WRITE_OUT)

    async def _force(self) -> None:
        log.warning("stopping now: running answers are ended")
        self._server.should_exit = True
        self._state.models.stop()
        await self._state.pipeline.stop()
        await self._write_out(_WRITE_OUT_NOW)
        self._server.force_exit = True

    async def _write_out(self, seconds: float) -> None:
        """Let connections end by themselves, then close them: who does not send or take anything is not waited for."""
        open_ones = self._server.server_state.connections
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while open_ones:  # noqa: ASYNC110 - uvicorn tells nobody, and looks ten times a second itself
                    await asyncio.sleep(0.02)
        for connection in list(open_ones):
            if connection.transport is not None:
                connection.transport.abort()


async def _build_shapes() -> None:
    """What checks bodies, now that the server is ready: one at a time, so that a first request waits for no more."""
    for shape in dict.fromkeys(shapes()):
        shape.model_rebuild()
        await asyncio.sleep(0)


async def serve(
    state: AppState,
    *,
    listener: socket.socket | None = None,
    on_listening: Callable[[str], None] | None = None,
) -> bool:
    """Serve until SIGTERM or SIGINT; see Service. False: an engine was given up."""
    service = Service(state)
    await service.run(listener=listener, on_listening=on_listening)
    return not service.failed


@contextlib.contextmanager
def _handling(stop: Callable[[], None], reload: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    caught = {signal.SIGTERM: stop, signal.SIGINT: stop, signal.SIGHUP: reload}
    for number, handler in caught.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in caught:
            loop.remove_signal_handler(number)
