"""Refused requests: gRPC's status codes and the HTTP codes for them."""

HTTP_STATUS = {  # model_servers/http_server.cc, ToHTTPStatusCode.
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "OUT_OF_RANGE": 400,
    "NOT_FOUND": 404,
    "RESOURCE_EXHAUSTED": 429,
    "CANCELLED": 499,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}


class Refused(Exception):
    """A request that the server refuses, with the reason.

    Args:
        code: name of a gRPC status, such as "INVALID_ARGUMENT".
        message: what was expected, what was received, and the remedy.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def http_status(self) -> int:
        return HTTP_STATUS.get(self.code, 500)


def invalid(message: str) -> Refused:
    """Returns the error of a request that is itself wrong, so a retry cannot help."""
    return Refused("INVALID_ARGUMENT", message)
