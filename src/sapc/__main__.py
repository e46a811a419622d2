"""`python -m sapc` is the command line; `sapc.startup` has seen to Ctrl-C during the imports."""

from .cli import main

# Processes started by a training import this file too.
if __name__ == "__main__":
    main()
