"""Errors of other libraries, recognized by their text. Standard library only."""

_OUT_OF_MEMORY = (
    *("MemoryError", "out of memory", "Out of memory", "OutOfMemory", "bad_alloc"),
    *("OOM", "RESOURCE_EXHAUSTED", "ResourceExhausted"),
    *("allocate memory", "failed to allocate"),
)


def is_out_of_memory(text: str) -> bool:
    """Returns whether an error's class and message, or an output, indicate it."""
    return any(words in text for words in _OUT_OF_MEMORY)
