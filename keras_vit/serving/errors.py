"""What a server says no with: a status code of gRPC's, and HTTP's for it."""

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
    """A request that gets no answer, and why.

    Args:
        code: the name of gRPC's status, "INVALID_ARGUMENT" for one.
        message: the law, what was received, the remedy.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def http_status(self) -> int:
        return HTTP_STATUS.get(self.code, 500)


def invalid(message: str) -> Refused:
    """A request that would be refused again."""
    return Refused("INVALID_ARGUMENT", message)
