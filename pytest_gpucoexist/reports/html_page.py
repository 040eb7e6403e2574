"""Pieces of an HTML page: one file, no scripts, nothing loaded from elsewhere, every text escaped.

Colours meet WCAG AA on both backgrounds; nothing is told by colour alone.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from pytest_gpucoexist.reports.screen import PLAIN

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["TONES", "badge", "bullets", "folded", "page", "section", "table", "text"]

TONES = {"passed": "good", "failed": "bad", "error": "bad", "skipped": "", "xfailed": "", "xpassed": "warn"}
"""The ground of each outcome's badge."""

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #57606a; --paper: #ffffff; --card: #f6f8fa;
  --line: #d8dee4; --good: #116329; --good-bg: #dafbe1; --bad: #a40e26; --bad-bg: #ffebe9; --warn: #7d4e00;
  --warn-bg: #fff8c5; --calm: #424a53; --calm-bg: #eaeef2; --nvidia: #4a7a00; --amd: #c2261c; --intel: #0060b8; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9da7b3; --paper: #0d1117; --card: #161b22;
  --line: #30363d; --good: #7ee787; --good-bg: #12301d; --bad: #ff9a92; --bad-bg: #3c1618; --warn: #f2cc60;
  --warn-bg: #332700; --calm: #b6c0ca; --calm-bg: #21262d; --nvidia: #9bd64b; --amd: #ff8077; --intel: #79c0ff; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif; }
main { max-width: 76rem; margin: 0 auto; padding: 2rem 1.5rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .75rem; }
p { margin: .4rem 0; }
.meta { color: var(--soft); }
code, .id { font: 13px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
td .id { overflow-wrap: anywhere; }
.sub { display: block; color: var(--soft); font-size: 13px; }
.banner { border: 1px solid; border-left-width: .4rem; border-radius: .4rem; padding: .7rem 1rem; margin: 1rem 0 0;
  font-weight: 600; }
.banner.warn { color: var(--warn); background: var(--warn-bg); }
.banner.bad { color: var(--bad); background: var(--bad-bg); }
.counts { display: flex; flex-wrap: wrap; gap: .75rem; margin: 1.5rem 0 0; padding: 0; list-style: none; }
.counts li { flex: 1 1 9rem; background: var(--card); border: 1px solid var(--line); border-radius: .5rem;
  padding: .7rem 1rem; color: var(--soft); }
.counts b { display: block; font-size: 1.7rem; line-height: 1.2; color: var(--ink);
  font-variant-numeric: tabular-nums; }
.counts .bad b { color: var(--bad); } .counts .warn b { color: var(--warn); } .counts .good b { color: var(--good); }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: .5rem; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
caption { text-align: left; padding: .6rem .8rem; font-weight: 600; }
th { text-align: left; font-weight: 600; color: var(--soft); background: var(--card); white-space: nowrap; }
th, td { padding: .5rem .8rem; vertical-align: top; border-top: 1px solid var(--line); }
table > :first-child tr:first-child th { border-top: 0; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.keep { white-space: nowrap; }
.devices th:nth-child(2) { min-width: 20rem; } .devices .id { font-size: 12px; white-space: nowrap; }
.tests { table-layout: fixed; min-width: 46rem; }
.tests th:nth-child(1) { width: 42%; } .tests th:nth-child(2) { width: 22%; } .tests th:nth-child(4) { width: 6rem; }
.gates { table-layout: fixed; min-width: 46rem; } .gates td { overflow-wrap: anywhere; }
.gates th:nth-child(1) { width: 20%; } .gates th:nth-child(2) { width: 6rem; } .gates th:nth-child(4) { width: 36%; }
.gates .sub { margin-top: .25rem; }
pre { margin: .4rem 0 0; padding: .4rem .6rem; background: var(--card); border: 1px solid var(--line);
  border-radius: .3rem; font: 12px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  white-space: pre-wrap; overflow-wrap: anywhere; }
.merged { table-layout: fixed; min-width: 40rem; }
.badge { display: inline-block; border-radius: 1rem; padding: 0 .6rem; font-size: 13px; font-weight: 600;
  white-space: nowrap; color: var(--calm); background: var(--calm-bg); }
.badge.good { color: var(--good); background: var(--good-bg); }
.badge.bad { color: var(--bad); background: var(--bad-bg); }
.badge.warn { color: var(--warn); background: var(--warn-bg); }
.nvidia { color: var(--nvidia); } .amd { color: var(--amd); } .intel { color: var(--intel); }
.other { color: var(--soft); }
.vendor { font-weight: 700; }
details { border: 1px solid var(--line); border-radius: .5rem; margin: .5rem 0; }
details > summary { cursor: pointer; padding: .55rem .8rem; }
details > :not(summary) { border-top: 1px solid var(--line); }
details > ul { margin: 0; padding: .6rem .8rem .6rem 2rem; }
details .scroll { border: 0; border-radius: 0; }
.times { border: 1px solid var(--line); border-radius: .5rem; padding: .6rem .8rem; margin: .6rem 0; }
.time { display: flex; gap: .8rem; align-items: center; } .time > :first-child { flex: 0 0 7rem; }
.bars { position: relative; flex: 1; height: 2.2rem; border-bottom: 1px solid var(--line); overflow: hidden; }
.bars i { position: absolute; bottom: 0; height: 1.8rem; background: currentColor; opacity: .75;
  box-shadow: inset 1px 0 var(--paper); } .bars .part { height: 1rem; opacity: .45; }
.axis { flex: 1; display: flex; justify-content: space-between; color: var(--soft); font-size: 12px; }
.plain { padding-left: 1.2rem; margin: .3rem 0; }
footer { margin-top: 3rem; color: var(--soft); font-size: 13px; }
@media print { main { max-width: none; padding: 0; } .scroll { overflow: visible; } }
"""


def text(value: object) -> str:
    """Escape a text; what would be control characters is gone."""
    return escape(PLAIN.say(value))


def badge(word: str, tone: str = "") -> str:
    """Write a word on a coloured ground; `tone` is `good`, `bad`, `warn` or nothing."""
    return f'<span class="badge {tone}">{text(word)}</span>'


def section(title: str, *parts: str) -> str:
    """Write a section with its heading; nothing when it has no content."""
    content = "\n".join(part for part in parts if part)
    return f"<section>\n<h2>{text(title)}</h2>\n{content}\n</section>" if content else ""


def folded(summary: str, content: str, *, is_open: bool = False) -> str:
    """Write something that can be folded away. `summary` and `content` are HTML."""
    return f"<details{' open' if is_open else ''}><summary>{summary}</summary>\n{content}\n</details>"


def bullets(items: Sequence[str], css: str = "") -> str:
    """Write texts as a list; nothing for no items."""
    if not items:
        return ""
    return '<ul class="plain">' + "".join(f'<li class="{css}">{text(item)}</li>' for item in items) + "</ul>"


def table(
    titles: Sequence[str], rows: Iterable[Sequence[str]], *, label: str, css: str = "", numbers: Sequence[str] = ()
) -> str:
    """Write a table of HTML cells. `label` is for a screen reader; `numbers` are the titles of columns of numbers."""
    classes = [' class="number"' if title in numbers else "" for title in titles]
    head = "".join(f'<th scope="col"{cls}>{text(title)}</th>' for title, cls in zip(titles, classes, strict=True))
    body = "\n".join(
        "<tr>" + "".join(f"<td{cls}>{cell}</td>" for cell, cls in zip(row, classes, strict=True)) + "</tr>"
        for row in rows
    )
    name = f'aria-label="{text(label)}"'
    return (
        f'<div class="scroll" tabindex="0" role="region" {name}><table class="{css}" {name}>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def page(title: str, *parts: str, footer: str = "") -> str:
    """Write the whole page. `parts` and `footer` are HTML."""
    content = "\n".join(part for part in parts if part)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n{content}\n"
        f"<footer>{footer}</footer>\n</main>\n</body>\n</html>\n"
    )
