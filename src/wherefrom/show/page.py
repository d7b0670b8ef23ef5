"""The common shell of all pages: head, light, dark and print styles, no network access."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from pathlib import Path

STYLE = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
# paper is always white
_PAGE_STYLE = """
body{margin:0}
@media (prefers-color-scheme:dark){body{background:#17171c}}
@media print{body{background:#fff}
 body .wherefrom{--for:214,39,40;--against:31,119,220;--strength:0,130,90;--ink:#000;--dim:#555;
 --line:#ccc;--page:#fff;max-width:none}
 .wherefrom tr,.wherefrom figure,.wherefrom .ledger{break-inside:avoid}
 .wherefrom h2,.wherefrom h2+.dim{break-after:avoid}}
"""


def block(body: str, style: str = "") -> str:
    """HTML with its style, to embed in a notebook."""
    return f'<div class="wherefrom"><style>{STYLE}{style}</style>{body}</div>'


def page(title: str, body: str, style: str = "", script: str = "", data: str = "") -> str:
    """A self-contained page; `body` is HTML, `data` is JSON for `script`.

    Its content security policy allows `script` and inline pictures, but no requests.
    """
    digest = base64.b64encode(sha256(script.encode()).digest()).decode("ascii")
    allowed = f"script-src 'sha256-{digest}'; " if script else ""
    # within a script element, only "<" can end it or begin a comment
    data = data.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    scripts = (
        f'<script type="application/json" id="data">{data}</script><script>{script}</script>'
        if script
        else ""
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; {allowed}'
        "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'\">"
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>wherefrom: {escape(title)}</title><style>{_PAGE_STYLE}</style></head>"
        f"<body><main>{block(body, style)}</main>{scripts}</body></html>\n"
    )


def prose(text: str) -> str:
    """Escaped text in which a percent sign stays on the line of its number.

    >>> prose("up to 5 %")
    'up to 5&nbsp;%'
    """
    return escape(text).replace(" %", "&nbsp;%")


def breakable(label: str) -> str:
    """A method's label, escaped, with optional line breaks after underscores and before settings.

    >>> breakable("smooth_grad(samples=9)")
    'smooth_<wbr>grad<wbr>(samples=9)'
    """
    return escape(label).replace("_", "_<wbr>").replace("(", "<wbr>(", 1)


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int = 1, css_class: str = ""
) -> str:
    """A table whose cells are HTML; all but the first `text_columns` hold numbers."""

    def line(cells: Sequence[str], tag: str) -> str:
        numeric = [' class="num"' if k >= text_columns else "" for k in range(len(cells))]
        pairs = zip(cells, numeric, strict=True)
        return f"<tr>{''.join(f'<{tag}{kind}>{cell}</{tag}>' for cell, kind in pairs)}</tr>"

    kind = f' class="{css_class}"' if css_class else ""
    lines = "".join(line(cells, "td") for cells in rows)
    top = f"<thead>{line(head, 'th')}</thead>"  # a thead is repeated on each printed page
    return f'<div class="wide"><table{kind}>{top}<tbody>{lines}</tbody></table></div>'


def picture(path: Path, caption: str) -> str:
    """A PNG file inside the page, with its caption."""
    png = base64.b64encode(path.read_bytes()).decode("ascii")
    text = escape(caption, quote=True)
    return (
        f'<figure><div class="wide"><img alt="{text}" src="data:image/png;base64,{png}"></div>'
        f'<figcaption class="dim">{text}</figcaption></figure>'
    )
