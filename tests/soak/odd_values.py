"""Odd values: for JSON, for lines of a log, for cells of a table."""

from __future__ import annotations

DEPTH = 100_000

# Texts that JSON can hold, some of them only by Python's leave.
ODD_JSON = (
    "null", "true", "false", "0", "1", "-1", "3", "0.5", "-0.0", "1e308", "1e999", "-1e999", "NaN", "1e-320",
    "9" * 30, "9" * 5000,
    "4000", "1000000", str(2**31), str(2**63), '""', '"x"', '" "', '"\\u0000"', '"\\ud800"',
    '"[bold]x"', '"../../x"', '"' + "x" * 100_000 + '"',
    "[]", "[[]]", "[null]", "[1, 2]", '["a", 4]', "{}", '{"a": 1}', "[" * DEPTH + "]" * DEPTH,
    '{"a":' * DEPTH + "1" + "}" * DEPTH,
)  # fmt: skip
HUGE_STEP = '{"step": ' + "9" * 5000 + "}"
ODD_LINES = ('{"step": 1}', HUGE_STEP, "[" * DEPTH, "{}", "nan", '{"step": "1"}', '{"step": -1, "loss": NaN}')
ODD_CELLS = ("", "nan", "inf", "1e999", "-1", "x", "9" * 400, "0,5", '"', "\0", "１", "0x10", "1_0", " ")
