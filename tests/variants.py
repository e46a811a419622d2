"""Parameters of a test, some of them for `make test-long` alone."""

import pytest


def variant(*values, long):
    """One set of parameters; `long`: a further case of what a shorter one shows already."""
    return pytest.param(*values, marks=pytest.mark.long if long else ())
