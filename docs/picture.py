"""Make the README's picture: run the demo in a pseudo-terminal's colours and draw what it printed.

`python docs/picture.py docs/images/demo.svg`: real output, only the time of the run and the folder are as they were.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
SHOWN = ["pytest", "examples/suite", "--gpu-machine=demo", "--gpu-simulate"]


def main(target: str) -> None:
    """Run the demo and write its output as SVG."""
    environment = {**os.environ, "COLUMNS": "110", "FORCE_COLOR": "1", "PY_COLORS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *SHOWN, "-p", "no:cacheprovider", "-p", "no:hypothesispytest"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    kept = [line for line in done.stdout.splitlines() if not line.startswith(("rootdir:", "plugins:", "configfile:"))]
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=110, file=nowhere)
        console.print(Text(f"$ {' '.join(SHOWN)}", style="bold"))
        console.print(Text.from_ansi("\n".join(kept)))
    # Without rich's font faces, which a viewer would fetch from elsewhere; any monospace font will do.
    svg = re.sub(r"@font-face\s*{[^}]*}", "", console.export_svg(title="pytest-gpucoexist", clear=False))
    Path(target).write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
