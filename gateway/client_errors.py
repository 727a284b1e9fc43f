"""What a client's call may raise; each error's text is the one line to show a person."""

from __future__ import annotations


class SlipstreamError(Exception):
    """Anything that went wrong between the caller and the gateway."""


class Unreachable(SlipstreamError):
    """No gateway answers at the address."""


class Refused(SlipstreamError):
    """The gateway answered no. `status` is HTTP's."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class NotFound(Refused):
    """No such job, sample or file (404)."""


class WrongState(Refused):
    """The job's state does not allow it, or an idempotency key stands for something else (409)."""


class TooLarge(Refused):
    """The job file is over the gateway's limit (413)."""


class Invalid(Refused):
    """The job file, or a parameter, is wrong (422). `errors` holds (path, message) pairs."""

    def __init__(self, text: str, status: int, errors: list[tuple[str, str]]) -> None:
        super().__init__(text, status)
        self.errors = errors


class Unavailable(Refused):
    """The gateway waits for the broker or for a service, and says for which (503). Ask again later."""


class BrokenDownload(SlipstreamError):
    """What came is not what the gateway said it would send."""


KINDS: dict[int, type[Refused]] = {404: NotFound, 409: WrongState, 413: TooLarge, 503: Unavailable}


def refusal(status: int, body: object) -> Refused:
    """The error for an answer with this status; lenient with what a proxy may have put in between."""
    fields = body if isinstance(body, dict) else {}
    text = str(fields.get("error") or f"HTTP {status} without a reason")
    if status == 422:
        found = fields.get("errors") or []
        errors = [(str(e.get("path", "")), str(e.get("message", ""))) for e in found if isinstance(e, dict)]
        return Invalid(text, status, errors)
    return KINDS.get(status, Refused)(text, status)
