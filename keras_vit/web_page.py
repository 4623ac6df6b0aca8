"""Render self-contained web pages: one file, a common style, no network access."""

import base64
import functools
import hashlib
from importlib import resources
from typing import Any

import jinja2

Row = tuple[str, ...]


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("keras_vit", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # NaN is not valid JSON: a browser would fail to parse it and show nothing.
    compact = {"separators": (",", ":"), "allow_nan": False}
    environment.policies["json.dumps_kwargs"] = compact
    return environment


def render(
    template: str,
    *,
    title: str,
    style: str = "",
    script: str = "",
    connects: bool = False,
    **facts: Any,
) -> str:
    """Renders a page that can run only `script` and cannot load external resources.

    Args:
        template: file in `keras_vit/templates` that extends `document.html`.
        title: plain text.
        style: CSS in addition to `templates/style.css`.
        script: JavaScript that runs after the body is parsed.
        connects: whether `script` may send requests to the page's server.
        **facts: other values of the template. Texts are escaped.

    Returns:
        The HTML of the page.
    """
    css = _file("style.css") + style
    return (
        _environment()
        .get_template(template)
        .render(
            title=title,
            policy=_policy(css, script, connects),
            style=css,
            script=script,
            **facts,
        )
    )


def _file(name: str) -> str:
    folder = resources.files("keras_vit") / "templates"
    return (folder / name).read_text(encoding="utf-8")


def _policy(style: str, script: str, connects: bool) -> str:
    """Returns a policy that allows embedded pictures, and style and script by hash."""
    allowed = [
        "default-src 'none'",
        "img-src data:",
        f"style-src {_source(style)}",
        f"script-src {_source(script)}" if script else "",
        "connect-src 'self'" if connects else "",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    return "; ".join(filter(None, allowed))


def _source(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def picture(encoded: bytes) -> str:
    """Returns the data URL of a PNG or JPEG."""
    kind = "png" if encoded.startswith(b"\x89PNG") else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(encoded).decode('ascii')}"
