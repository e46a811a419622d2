"""`python -m sapc` is the command line; `sapc.startup` has seen to Ctrl-C during the imports."""

from .cli import main

if __name__ == "__main__":  # processes started by a training import this file too
    main()
