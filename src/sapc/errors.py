"""The one exception that a user's mistake raises: what was wrong, what was expected, what to do."""


class SapcError(ValueError):
    """A bad call or bad input. The command line prints its one sentence and exits with code 2."""


class SapcWarning(UserWarning):
    """Something worth knowing that did not stop the work; the message carries the number."""
