"""The one error tree. Everything a user can cause is one of these, and each says what to change.

TailraceError
├── RequestError            the caller's request (OpenAI error body, 4xx)
│   ├── InvalidRequest            400
│   │   └── InvalidTools               what is wrong is in its tools, or in calls of them
│   ├── ContextLengthExceeded     400  code context_length_exceeded
│   ├── TemplateRefused           400  the chat template's own reason
│   ├── Unsupported               400  a known field that is not built yet
│   ├── Unauthorized              401
│   ├── Forbidden                 403  the key is good, but not for this
│   ├── ModelNotFound             404
│   ├── NotFound                  404
│   ├── Conflict                  409  it is there already
│   ├── BodyTooLarge              413
│   ├── QueueFull                 429  + Retry-After
│   ├── RateLimited               429  + Retry-After: the caller's own limit
│   └── BudgetExhausted           429  trying again does not help
├── Unavailable             503  + Retry-After (not ready, draining)
├── InternalError           500  one request's processing failed
├── ModelFileError          a model file that cannot be used (start-up and CLI)
├── StoreError              pulling or finding a model (CLI)
└── ConfigError             a setting that cannot be used (start-up and CLI)

Where a failure belongs (`domain`) and what kind it is (`kind`) are of its class, or said where it is raised.
"""

from __future__ import annotations

from enum import StrEnum


class Domain(StrEnum):
    """The part of the way in which a request failed."""

    INGRESS = "ingress"  # what was sent, and by whom
    ADMISSION = "admission"  # bounds, limits, deadlines
    ROUTING = "routing"  # finding and loading what serves it
    EXECUTION = "execution"
    CACHE = "cache"  # KV memory
    EXTERNAL = "external"  # something that this process depends on


class ErrorKind(StrEnum):
    ACCESS = "access"  # no key, or one that may not
    CAPACITY = "capacity"  # too much is waiting
    FORMAT = "format"  # not understood, not valid, or not supported
    INTERNAL = "internal"  # our own fault
    LIMIT = "limit"  # of the caller, or of a size
    MEMORY = "memory"
    MISSING = "missing"  # what was named is not there
    STOPPED = "stopped"  # by an operator, or with the server
    TIMEOUT = "timeout"  # not in time, or not expected to be
    TOOL = "tool"
    UPSTREAM = "upstream"  # a database, a store, a server behind this one


class TailraceError(Exception):
    """Base: `message` for people, `code` for machines, `status` for HTTP, `param` names the value to change."""

    status = 500
    type = "server_error"
    code: str | None = None
    domain = Domain.EXECUTION
    kind = ErrorKind.INTERNAL

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
        domain: Domain | None = None,
        kind: ErrorKind | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = retry_after  # seconds; None when trying again does not help
        self.detail: dict[str, object] = {}  # numbers behind the message, for machines
        if code is not None:
            self.code = code
        if domain is not None:
            self.domain = domain
        if kind is not None:
            self.kind = kind

    def body(self) -> dict[str, object]:
        """The OpenAI error object."""
        error: dict[str, object] = {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }
        if self.retry_after is not None:
            error["retry_after_ms"] = round(self.retry_after * 1000)
        if self.detail:
            error["detail"] = self.detail
        return {"error": error}


class RequestError(TailraceError):
    status = 400
    type = "invalid_request_error"
    domain = Domain.INGRESS
    kind = ErrorKind.FORMAT


class InvalidRequest(RequestError):
    pass


class InvalidTools(InvalidRequest):
    kind = ErrorKind.TOOL


class ContextLengthExceeded(RequestError):
    code = "context_length_exceeded"
    kind = ErrorKind.LIMIT


class TemplateRefused(RequestError):
    code = "chat_template_refused"


class Unsupported(RequestError):
    code = "unsupported"


class Unauthorized(RequestError):
    status = 401
    type = "authentication_error"
    code = "invalid_api_key"
    kind = ErrorKind.ACCESS


class Forbidden(RequestError):
    status = 403
    type = "permission_error"
    code = "not_allowed"
    kind = ErrorKind.ACCESS


class ModelNotFound(RequestError):
    status = 404
    code = "model_not_found"
    domain = Domain.ROUTING
    kind = ErrorKind.MISSING


class NotFound(RequestError):
    status = 404
    code = "not_found"
    kind = ErrorKind.MISSING


class Conflict(RequestError):
    status = 409
    code = "conflict"


class BodyTooLarge(RequestError):
    status = 413
    code = "body_too_large"
    kind = ErrorKind.LIMIT


class QueueFull(RequestError):
    status = 429
    type = "rate_limit_error"
    code = "queue_full"
    domain = Domain.ADMISSION
    kind = ErrorKind.CAPACITY


class RateLimited(RequestError):
    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"
    domain = Domain.ADMISSION
    kind = ErrorKind.LIMIT


class BudgetExhausted(RequestError):
    status = 429
    type = "insufficient_quota"
    code = "budget_exhausted"
    domain = Domain.ADMISSION
    kind = ErrorKind.LIMIT


class Unavailable(TailraceError):
    status = 503
    type = "service_unavailable"
    code = "unavailable"
    domain = Domain.ADMISSION
    kind = ErrorKind.STOPPED


class InternalError(TailraceError):
    code = "internal_error"


class ModelFileError(TailraceError):
    code = "model_file"
    domain = Domain.ROUTING
    kind = ErrorKind.FORMAT


class StoreError(TailraceError):
    code = "store"
    domain = Domain.EXTERNAL
    kind = ErrorKind.UPSTREAM


class ConfigError(TailraceError):
    """`parts`: where several things are wrong, each of them."""

    parts: tuple[ConfigError, ...] = ()
    code = "config"
    domain = Domain.INGRESS
    kind = ErrorKind.FORMAT
