"""The report as one self-contained HTML page: its Markdown with the figures inside, light or dark as the reader's
system prefers."""

import base64
import re
from collections.abc import Mapping

from markdown_it import MarkdownIt

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>recor_dist: report</title>
<style>STYLE</style>
</head>
<body><main>
BODY
</main></body>
</html>
"""


STYLE = """
:root {
  color-scheme: light dark;
  --page: #ffffff; --ink: #1f2328; --soft: #59636e; --line: #d8dee4; --band: #f6f8fa; --accent: #0b62a4;
}
@media (prefers-color-scheme: dark) {
  :root { --page: #14171b; --ink: #e6e9ed; --soft: #9aa4af; --line: #343b44; --band: #1c2127; --accent: #6cb6ff; }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.55 system-ui, "Segoe UI", Roboto, sans-serif;
}
main { max-width: 76rem; margin: 0 auto; padding: 2rem 1.25rem 5rem; }
h1 { font-size: 1.9rem; margin: 0 0 0.5rem; }
h2 { font-size: 1.4rem; margin: 2.8rem 0 0.6rem; padding-top: 1rem; border-top: 1px solid var(--line); }
h3 { font-size: 1.1rem; margin: 1.8rem 0 0.5rem; }
p { max-width: 52rem; }
code {
  font: 0.88em ui-monospace, "Cascadia Mono", Menlo, monospace;
  background: var(--band); padding: 0.1em 0.3em; border-radius: 4px;
}
.wide { overflow-x: auto; margin: 0.8rem 0 1rem; }
table { border-collapse: collapse; font-size: 0.88rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.4rem 0.7rem; border-bottom: 1px solid var(--line); white-space: nowrap; text-align: left; }
th { font-weight: 600; color: var(--soft); vertical-align: bottom; white-space: normal; }
td:first-child { font-weight: 600; }
td.none { color: var(--soft); font-style: italic; }
td em { color: var(--soft); font-style: normal; }
tbody tr:hover td { background: var(--band); }
img {
  display: block; max-width: 100%; height: auto; margin: 0.8rem 0 1.4rem; padding: 0.5rem;
  background: #ffffff; border: 1px solid var(--line); border-radius: 8px;
}
@media print { main { max-width: none; } h2 { break-after: avoid; } img, tr { break-inside: avoid; } }
"""


def report_page(markdown: str, figures: Mapping[str, bytes]) -> str:
    """The page, with every `figures/NAME.svg` embedded."""
    html = MarkdownIt("commonmark").enable("table").render(markdown)
    for name, content in figures.items():
        data = base64.b64encode(content).decode()
        html = html.replace(f'src="figures/{name}.svg"', f'src="data:image/svg+xml;base64,{data}"')
    html = re.sub(r"<td([^>]*)>not run</td>", r'<td\1 class="none">not run</td>', html)
    html = html.replace("<table>", '<div class="wide"><table>').replace("</table>", "</table></div>")
    return PAGE.replace("STYLE", STYLE).replace("BODY", html)
