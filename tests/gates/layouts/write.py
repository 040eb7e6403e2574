"""Write the tables of expected verdicts: `python -m tests.gates.layouts.write`.

Look at the difference before you commit it.
"""

from __future__ import annotations

from tests.gates.healthy.machines import HEALTHY, RECORDED, TABLE as HEALTHY_TABLE
from tests.gates.layouts.places import LAYOUTS
from tests.gates.layouts.tables import write_tables
from tests.gates.layouts.test_layouts import TABLE

if __name__ == "__main__":
    write_tables(TABLE, LAYOUTS)
    if RECORDED:
        write_tables(HEALTHY_TABLE, HEALTHY)
