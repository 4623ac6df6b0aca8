"""Pages of HTML that stand alone: one file, one look, no network."""

import base64
import hashlib
import html
from collections.abc import Sequence

Row = tuple[str, ...]

# Contrast is at least 4.5:1 for text, in the light and in the dark.
_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #59636e; --page: #f5f6f8;
  --panel: #ffffff; --line: #d9dee3; --faint: #eceff2; --accent: #0072b2;
  color: var(--ink); background: var(--page); font: 16px/1.5 system-ui, sans-serif; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ec; --soft: #a7b0ba;
  --page: #14171a; --panel: #1e2226; --line: #3a4148; --faint: #2c3237;
  --accent: #56b4e9; } }
body { max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
  overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 0 0 .6rem; }
header p, .note { color: var(--soft); margin: .3rem 0 0; }
section { background: var(--panel); border: 1px solid var(--line); border-radius: 8px;
  padding: 1rem 1.2rem; margin: 1rem 0; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(12rem, 1fr));
  gap: 1rem; margin: 1rem 0; }
.tiles section { margin: 0; }
.tiles b { display: block; font-size: 1.7rem; font-variant-numeric: tabular-nums; }
.tiles span { color: var(--soft); font-size: .9rem; display: block; }
.columns { display: grid; gap: 1rem; align-items: start;
  grid-template-columns: repeat(auto-fit, minmax(min(24rem, 100%), 1fr)); }
.columns section { margin: 0; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .25rem .8rem .25rem 0; vertical-align: top;
  border-top: 1px solid var(--faint); overflow-wrap: anywhere; }
tr:first-child > * { border-top: 0; }
th, td:first-child { color: var(--soft); font-weight: normal; }
.names td { color: inherit; }
.facts td:first-child { overflow-wrap: break-word; width: 8rem; }
figure { margin: 0; }
figure img { max-width: 100%; display: block; margin: 0 auto; }
figcaption { color: var(--soft); font-size: .9rem; margin-top: .5rem; }
pre { background: var(--page); padding: .8rem; margin: 0; border-radius: 6px;
  white-space: pre-wrap; overflow-wrap: anywhere; }
summary { cursor: pointer; }
"""


def document(title: str, body: Sequence[str], style: str = "", script: str = "") -> str:
    """A whole page that may run `script` alone and fetch nothing at all.

    Args:
        title: plain text.
        body: parts of HTML whose texts went through `escaped`; empty ones count not.
        style: CSS beyond the house's.
        script: JavaScript, run after the body is there.
    """
    css = _STYLE + style
    end = f"<script>{script}</script>\n" if script else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(css, script)}">'
        '\n<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escaped(title)}</title>\n<style>{css}</style>\n</head>\n<body>\n"
        + "\n".join(filter(None, body))
        + f"\n{end}</body>\n</html>\n"
    )


def _policy(style: str, script: str) -> str:
    """Pictures inside the page, this style and this script, known by hash; no more."""
    allowed = [
        "default-src 'none'",
        "img-src data:",
        f"style-src {_source(style)}",
        f"script-src {_source(script)}" if script else "",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    return "; ".join(filter(None, allowed))


def _source(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def escaped(text: str) -> str:
    """Text as a page shows it, between tags and in quoted attributes."""
    return html.escape(text, quote=True)


def table(head: Row, rows: Sequence[Row], kind: str = "") -> str:
    """A table of texts, with a class of its own if `kind`; () is no head."""
    lines = [f"<tr>{''.join(f'<th>{escaped(c)}</th>' for c in head)}</tr>"] * bool(head)
    lines += [
        f"<tr>{''.join(f'<td>{escaped(cell)}</td>' for cell in row)}</tr>"
        for row in rows
    ]
    return f'<table class="{kind}">{"".join(lines)}</table>'


def picture(encoded: bytes) -> str:
    """The address of a PNG or JPEG that is inside the page."""
    kind = "png" if encoded.startswith(b"\x89PNG") else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(encoded).decode('ascii')}"
