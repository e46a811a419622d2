"""The run-time type check of the test suite: jaxtyping's axes by beartype, with Python's own rule that an int is a float."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
