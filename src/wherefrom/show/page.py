"""One shell for all pages: head, style, light and dark, print, and no access to the network."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from pathlib import Path

STYLE = """
.wherefrom{--for:214,39,40;--against:31,119,220;--ink:#1b1b1f;--dim:#6a6a75;--line:#d9d9e0;
 --page:#fff;color:var(--ink);background:var(--page);max-width:60rem;margin:0 auto;
 padding:1rem 1.25rem;font:16px/1.6 system-ui,sans-serif}
@media (prefers-color-scheme:dark){.wherefrom{--for:235,80,75;--against:70,150,245;--ink:#ececf1;
 --dim:#a0a0ab;--line:#3a3a44;--page:#17171c}}
.wherefrom{print-color-adjust:exact;-webkit-print-color-adjust:exact}
.wherefrom h1,.wherefrom .said{font-size:1.3rem;line-height:1.4;font-weight:500;margin:.2rem 0;
 overflow-wrap:anywhere}
.wherefrom em.for,.wherefrom em.against{font-style:italic;text-decoration:underline 2px;
 text-underline-offset:.18em;text-decoration-color:rgb(var(--for))}
.wherefrom em.against{text-decoration:underline dotted 2px rgb(var(--against))}
.wherefrom h2{font-size:1rem;margin:1.2rem 0 .2rem}
.wherefrom .dim{color:var(--dim);font-size:.85rem}
.wherefrom .warning{border-left:.25rem solid #c77700;padding-left:.6rem;font-size:.9rem}
.wherefrom .heat{font-size:1.15rem;line-height:2;white-space:pre-wrap;overflow-wrap:anywhere;
 margin:.4rem 0}
.wherefrom .u{border-radius:.2em;padding:.12em .06em}
.wherefrom .s{color:var(--dim);font-size:.75em}
.wherefrom .n{border-bottom:2px dotted}
.wherefrom .wide{overflow-x:auto}
.wherefrom td .heat{min-width:13rem}
.wherefrom table{border-collapse:collapse;width:100%}
.wherefrom td,.wherefrom th{padding:.15rem .5rem .15rem 0;text-align:left;vertical-align:baseline}
.wherefrom th{color:var(--dim);font-weight:normal;font-size:.85rem}
.wherefrom :is(tr+tr,thead+tbody tr) td{border-top:1px solid var(--line)}
.wherefrom .num{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.wherefrom .bar{position:relative;width:45%;min-width:9rem}
.wherefrom .bar i{position:absolute;top:.45em;height:1em;min-width:2px;border-radius:2px}
.wherefrom i.for{background:rgb(var(--for))}
.wherefrom i.against{background:repeating-linear-gradient(45deg,rgb(var(--against)) 0 4px,
 rgba(var(--against),.6) 4px 6px)}
.wherefrom .values,.wherefrom .hatched{display:none}
.wherefrom:has(.numbers:checked) .values{display:inline}
.wherefrom:has(.numbers:checked) .names{display:none}
.wherefrom:has(.numbers:checked) .u[data-score]::after,.wherefrom .numbered .u[data-score]::after{
 content:attr(data-score);font:.62em system-ui,sans-serif;vertical-align:sub;padding-left:.15em}
.wherefrom:has(.numbers:checked) .pair>.molecule:first-child{display:none}
.wherefrom:has(.numbers:checked) .pair>.molecule{flex-basis:100%;max-width:46rem}
.wherefrom :is(.values,.names) text{fill:#000;paint-order:stroke;stroke:#fff;stroke-width:.28em}
.wherefrom .switch{cursor:pointer;white-space:nowrap}
.wherefrom .switch input{margin:0 .2em 0 0;vertical-align:middle}
@media print{.wherefrom .switch{display:none}.wherefrom .wide{overflow:visible;font-size:.85em}
 .wherefrom .hatched{display:inline}
 .wherefrom .u[data-score]::after{content:attr(data-score);font:.62em system-ui,sans-serif;
 vertical-align:sub;padding-left:.15em}
 .wherefrom :is(.pair,#heatmap) .molecule .values{display:inline}
 .wherefrom :is(.pair,#heatmap) .molecule .names{display:none}
 .wherefrom .pair>.molecule{flex-basis:100%;max-width:40rem}
 .wherefrom .pair>.molecule:first-child{display:none}}
.wherefrom .total td{border-top:2px solid var(--ink);font-weight:600}
.wherefrom .image{width:100%;max-width:22rem;display:block;border-radius:.2rem}
.wherefrom .molecule{max-width:30rem}
.wherefrom .image .under{filter:grayscale(1);opacity:.35}
.wherefrom .pair,.wherefrom .cards{display:flex;flex-wrap:wrap;gap:1rem}
.wherefrom .pair>*{flex:1 1 14rem}
.wherefrom figure{margin:1rem 0}
.wherefrom img{max-width:100%;background:#fff}
.wherefrom .cards figure{margin:0;flex:1 1 10rem;max-width:12rem;min-width:0}
.wherefrom .cards figure:has(.molecule){flex-basis:15rem;max-width:18rem}
.wherefrom figcaption{font-size:.9rem;overflow-wrap:anywhere}
.wherefrom .classes{width:auto}
.wherefrom .methods td:first-child{width:12.5rem;overflow-wrap:anywhere}
.wherefrom .classes .image{width:8.6rem;margin-right:1rem}
.wherefrom .classes td{vertical-align:middle}
.wherefrom .ledger .num{padding-left:.5rem}
.wherefrom .key{display:flex;flex-wrap:wrap;align-items:baseline;gap:.2rem 1.2rem;margin:.5rem 0}
.wherefrom .key .u{color:var(--ink)}
@media (max-width:30rem){.wherefrom{padding:.8rem .7rem}
 .wherefrom .wide :is(td,th):first-child{position:sticky;left:0;background:var(--page);z-index:1}
 .wherefrom .wide img{max-width:none;width:40rem}
 .wherefrom .pair{overflow-x:auto}
 .wherefrom:has(.numbers:checked) .pair>.molecule{min-width:44rem}
 .wherefrom .bar{width:30%;min-width:3rem}
 .wherefrom td,.wherefrom th{padding-right:.35rem}.wherefrom .ledger td{overflow-wrap:anywhere}
 .wherefrom .ledger .dim{font-size:.75rem;overflow-wrap:normal}.wherefrom td .heat{min-width:0}
 .wherefrom .methods tr{display:flex;flex-wrap:wrap;justify-content:space-between}
 .wherefrom .methods :is(tr+tr,tbody tr){border-top:1px solid var(--line)}
 .wherefrom .methods td{border:0!important}
 .wherefrom .methods .num{min-width:4.2rem}
 .wherefrom .classes .image{width:6.5rem;margin-right:.4rem}
 .wherefrom .ledger td:first-child{min-width:6.4rem;overflow-wrap:break-word}
 .wherefrom .methods td:first-child,.wherefrom .methods th:first-child{flex:1}
 .wherefrom .methods td:nth-child(2){order:1;flex:1 0 100%}
 .wherefrom .methods th:nth-child(2){display:none}}
"""
# paper is white whatever the screen is, and heatmaps are backgrounds, which browsers leave out
_PAGE_STYLE = """
body{margin:0}
@media (prefers-color-scheme:dark){body{background:#17171c}}
@media print{body{background:#fff}
 body .wherefrom{--for:214,39,40;--against:31,119,220;--ink:#000;--dim:#555;--line:#ccc;--page:#fff;
 max-width:none}
 .wherefrom tr,.wherefrom figure,.wherefrom .ledger{break-inside:avoid}
 .wherefrom h2,.wherefrom h2+.dim{break-after:avoid}}
"""


def block(body: str, style: str = "") -> str:
    """HTML with its style, as a notebook embeds it."""
    return f'<div class="wherefrom"><style>{STYLE}{style}</style>{body}</div>'


def page(title: str, body: str, style: str = "", script: str = "", data: str = "") -> str:
    """A self-contained page; `body` is HTML, `data` is JSON for `script`.

    Its policy lets a browser run `script`, show inline pictures, and fetch nothing.
    """
    digest = base64.b64encode(sha256(script.encode()).digest()).decode("ascii")
    allowed = f"script-src 'sha256-{digest}'; " if script else ""
    # within a script element only "<" could end it or begin a comment
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
        f"<body>{block(body, style)}{scripts}</body></html>\n"
    )


def prose(text: str) -> str:
    """Escaped text in which a percent sign stays on the line of its number.

    >>> prose("up to 5 %")
    'up to 5&nbsp;%'
    """
    return escape(text).replace(" %", "&nbsp;%")


def breakable(label: str) -> str:
    """A method's label, escaped, which may be broken at an underscore and before its settings.

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
    top = f"<thead>{line(head, 'th')}</thead>"  # which paper repeats on each page
    return f'<div class="wide"><table{kind}>{top}<tbody>{lines}</tbody></table></div>'


def picture(path: Path, caption: str) -> str:
    """A PNG file inside the page, with its caption."""
    png = base64.b64encode(path.read_bytes()).decode("ascii")
    text = escape(caption, quote=True)
    return (
        f'<figure><div class="wide"><img alt="{text}" src="data:image/png;base64,{png}"></div>'
        f'<figcaption class="dim">{text}</figcaption></figure>'
    )
