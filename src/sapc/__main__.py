"""`python -m sapc` is the command line."""

from .cli import main

main()
