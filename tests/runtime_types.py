"""The run-time type check of the test suite: jaxtyping's axes by beartype, with Python's own rule that an int is a float."""

try:
    from beartype import BeartypeConf, beartype
except ModuleNotFoundError:  # a machine with the package's own needs alone: the tests run, unchecked

    def check(function):
        """Leave a function as it is."""
        return function
else:
    check = beartype(conf=BeartypeConf(is_pep484_tower=True))
