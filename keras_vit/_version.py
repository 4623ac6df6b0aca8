"""Version of the distribution, and how to install its extras."""

__version__ = "0.1.0"


def pip_install(extra: str) -> str:
    """The command that installs an extra; the only place to change for PyPI."""
    return f"pip install '.[{extra}]' in a clone of keras_vit"
