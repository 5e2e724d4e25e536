"""The process's logging while a server runs: every logger's lines, in one form, through one writer."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import BinaryIO

from tailrace.config import Config
from tailrace.observe.current import about
from tailrace.observe.ended import Ended
from tailrace.observe.logs.lines import JsonLines, Lines, TextLines
from tailrace.observe.logs.redact import Redactor, secrets_of
from tailrace.observe.logs.writer import Writer

log = logging.getLogger(__name__)

_OURS = "tailrace"  # others say what matters from `warning` on
_CLOSE = 2.0  # seconds for the last lines


class Logs(logging.Handler):
    """A handler for all loggers, and a watcher of ends that writes a line for each where the level shows it."""

    def __init__(self, config: Config, stream: BinaryIO) -> None:
        super().__init__()
        kind = JsonLines if config.observe.log_format == "json" else TextLines
        self.lines: Lines = kind(Redactor(secrets_of(config)))
        self.writer = Writer(stream, self._said)
        self.least = logging.getLevelNamesMapping()[config.observe.log_level.upper()]

    @property
    def watches(self) -> bool:
        return self.least <= logging.INFO

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.writer.put(self.lines.of_record(record, about()))
        except Exception:  # logging must not end what logs, nor show arguments that do not fit
            self.writer.put(self._warning(f"a line of {record.name} could not be made: {record.msg!s}"))

    def __call__(self, ended: Ended) -> None:
        if not ended.probe:
            self.writer.put(partial(self.lines.of_end, ended))

    def _said(self, lost: int) -> bytes:
        return self._warning(f"{lost} log lines were lost: whoever reads them was away or too slow")

    def _warning(self, text: str) -> bytes:
        record = logging.LogRecord(__name__, logging.WARNING, "", 0, text, (), None)
        record.created = time.time()
        return self.lines.of_record(record, {})


@contextmanager
def logging_to(stream: BinaryIO, config: Config) -> Iterator[Logs]:
    """Everything that is logged goes there, also of threads that end with an exception, until the block ends."""
    logs, root, ours, hook = Logs(config, stream), logging.getLogger(), logging.getLogger(_OURS), threading.excepthook
    before = root.handlers[:], root.level, ours.level
    root.handlers[:] = [logs]
    root.setLevel(max(logs.least, logging.WARNING))
    ours.setLevel(logs.least)
    logging.captureWarnings(True)
    threading.excepthook = _thread_failed
    try:
        yield logs
    finally:
        threading.excepthook = hook
        logging.captureWarnings(False)
        root.handlers[:] = before[0]
        root.setLevel(before[1])
        ours.setLevel(before[2])
        logs.writer.close(_CLOSE)


def _thread_failed(failed: threading.ExceptHookArgs) -> None:
    if failed.exc_type is SystemExit or failed.exc_value is None:
        return
    name = failed.thread.name if failed.thread is not None else "?"
    exc_info = (failed.exc_type, failed.exc_value, failed.exc_traceback)
    log.critical("the thread %s ended with an exception", name, exc_info=exc_info)
