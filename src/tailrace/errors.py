"""The one error tree. Everything a user can cause is one of these, and each says what to change.

TailraceError
├── RequestError            the caller's request (OpenAI error body, 4xx)
│   ├── InvalidRequest            400
│   ├── ContextLengthExceeded     400  code context_length_exceeded
│   ├── TemplateRefused           400  the chat template's own reason
│   ├── Unsupported               400  a known field that is not built yet
│   ├── Unauthorized              401
│   ├── Forbidden                 403  the key is good, but not for this
│   ├── ModelNotFound             404
│   ├── NotFound                  404
│   ├── BodyTooLarge              413
│   ├── QueueFull                 429  + Retry-After
│   ├── RateLimited               429  + Retry-After: the caller's own limit
│   └── BudgetExhausted           429  trying again does not help
├── Unavailable             503  + Retry-After (not ready, draining)
├── InternalError           500  one request's processing failed
├── ModelFileError          a model file that cannot be used (start-up and CLI)
├── StoreError              pulling or finding a model (CLI)
└── ConfigError             a setting that cannot be used (start-up and CLI)
"""

from __future__ import annotations


class TailraceError(Exception):
    """Base: `message` for people, `code` for machines, `status` for HTTP, `param` names the value to change."""

    status = 500
    type = "server_error"
    code: str | None = None

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = retry_after  # seconds; None when trying again does not help
        self.detail: dict[str, object] = {}  # numbers behind the message, for machines
        if code is not None:
            self.code = code

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


class InvalidRequest(RequestError):
    pass


class ContextLengthExceeded(RequestError):
    code = "context_length_exceeded"


class TemplateRefused(RequestError):
    code = "chat_template_refused"


class Unsupported(RequestError):
    code = "unsupported"


class Unauthorized(RequestError):
    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class Forbidden(RequestError):
    status = 403
    type = "permission_error"
    code = "not_allowed"


class ModelNotFound(RequestError):
    status = 404
    code = "model_not_found"


class NotFound(RequestError):
    status = 404
    code = "not_found"


class BodyTooLarge(RequestError):
    status = 413
    code = "body_too_large"


class QueueFull(RequestError):
    status = 429
    type = "rate_limit_error"
    code = "queue_full"


class RateLimited(RequestError):
    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"


class BudgetExhausted(RequestError):
    status = 429
    type = "insufficient_quota"
    code = "budget_exhausted"


class Unavailable(TailraceError):
    status = 503
    type = "service_unavailable"
    code = "unavailable"


class InternalError(TailraceError):
    code = "internal_error"


class ModelFileError(TailraceError):
    code = "model_file"


class StoreError(TailraceError):
    code = "store"


class ConfigError(TailraceError):
    code = "config"
