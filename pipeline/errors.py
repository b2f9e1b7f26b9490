"""Errors that carry their blame and their answer.

    AntiphonError               status  type                    when
    ├─ BadRequest               400     invalid_request_error   the client sent what cannot be done
    │  ├─ Unauthorized          401     invalid_request_error   no key, or one that is not known
    │  ├─ Forbidden             403     invalid_request_error   a page that may not ask
    │  ├─ NotFound              404     invalid_request_error   no such model, item, route
    │  ├─ NotAllowed            405     invalid_request_error   the route does not take this method
    │  ├─ TooSlow               408     invalid_request_error   the body did not come
    │  └─ TooLarge              413     invalid_request_error   over a stated limit
    ├─ RateLimited              429     rate_limit_error        a key has used up what it may
    ├─ Overloaded               503     server_error            a bounded queue or the session limit is full
    ├─ EngineFailed             500     server_error            a model failed on valid input
    └─ SetupError               -       -                       the operator's: settings, weights, backends
       ├─ SettingsError
       ├─ WeightsError
       └─ UnknownBackend

`message` is written for the person who can fix it, and names the setting or field and the fix.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class AntiphonError(Exception):
    """Base of all our errors.

    status: HTTP status. type, code, param: the members of OpenAI's error object.
    """

    status = 500
    type = "server_error"
    code: str | None = None

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or type(self).code
        self.param = param

    def body(self) -> dict[str, Any]:
        """OpenAI's error object; all four members are always there."""
        return {"message": self.message, "type": self.type, "code": self.code, "param": self.param}

    def headers(self) -> Mapping[str, str]:
        """What an HTTP answer that says it has besides the status."""
        return {}


class BadRequest(AntiphonError):
    status = 400
    type = "invalid_request_error"


class Unauthorized(BadRequest):
    status = 401
    code = "invalid_api_key"

    def headers(self) -> Mapping[str, str]:
        return {"WWW-Authenticate": "Bearer"}


class Forbidden(BadRequest):
    status = 403
    code = "forbidden"


class NotFound(BadRequest):
    status = 404
    code = "not_found"


class NotAllowed(BadRequest):
    """`allow`: the methods that the route takes."""

    status = 405
    code = "method_not_allowed"

    def __init__(self, message: str, allow: str) -> None:
        super().__init__(message)
        self.allow = allow

    def headers(self) -> Mapping[str, str]:
        return {"Allow": self.allow}


class TooSlow(BadRequest):
    status = 408
    code = "request_timeout"


class TooLarge(BadRequest):
    status = 413
    code = "too_large"


class RateLimited(AntiphonError):
    """`retry_after` is in seconds, at least 1."""

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"

    def __init__(self, message: str, *, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = max(1, retry_after)

    def headers(self) -> Mapping[str, str]:
        return {"Retry-After": str(self.retry_after)}


class Overloaded(AntiphonError):
    """`retry_after` is in seconds, at least 1."""

    status = 503
    code = "overloaded"

    def __init__(self, message: str, *, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = max(1, retry_after)

    def headers(self) -> Mapping[str, str]:
        # Nothing was begun, so asking again does nothing twice.
        return {"Retry-After": str(self.retry_after), "X-Should-Retry": "true"}


class EngineFailed(AntiphonError):
    code = "engine_failed"


class SetupError(AntiphonError):
    """Wrong on our side of the wire, and for the operator to mend: the command line exits with 2."""


class SettingsError(SetupError):
    pass


class WeightsError(SetupError):
    pass


class UnknownBackend(SetupError):
    pass
