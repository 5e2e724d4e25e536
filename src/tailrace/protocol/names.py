"""Where the fields of a chat request came from, when another API's body was turned into one, so that errors name what
the caller wrote."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pydantic import ValidationError

from tailrace.errors import RequestError, TailraceError
from tailrace.protocol.body import explain

_PATH = re.compile(r"[A-Za-z_]\w*(?:\[\d+\]|\.[A-Za-z_]\w*)*")
_LAST = re.compile(r"(?:\[\d+\]|\.\w+)\Z")


class Names:
    """From paths of the chat request to the caller's: the longest one that leads to a field counts."""

    def __init__(self, known: Mapping[str, str]) -> None:
        self._own = dict(known)

    def __setitem__(self, path: str, own: str) -> None:
        self._own[path] = own

    def own(self, path: str) -> str:
        """The caller's path of a field."""
        head = path
        while head not in self._own:
            shorter = _LAST.sub("", head)
            if shorter == head:
                return path
            head = shorter
        return self._own[head] + path[len(head) :]

    @contextmanager
    def renaming(self) -> Iterator[None]:
        """Errors of a chat request within name the caller's fields; pydantic's are explained."""
        try:
            yield
        except ValidationError as error:
            wrong = explain(error)
            self.rename(wrong)
            raise wrong from None
        except RequestError as error:
            self.rename(error)
            raise

    def rename(self, error: TailraceError) -> None:
        if error.param is not None:
            error.param = self.own(error.param)
        error.message = _PATH.sub(lambda found: self.own(found[0]), error.message)
        error.args = (error.message,)
