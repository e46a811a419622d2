"""Room for Triton's interpreter, which runs a kernel as very many small calls.

CPython keeps the frames of its functions in pieces of memory of 16 KiB and gives a piece back as soon as it
is empty. Where calls run to and fro across the end of a piece, that takes half of the time. A frame that
needs much gets a large piece, with room for all behind it.
"""


def with_large_frame(function):
    """Return the same function, called from a frame of half a megabyte."""

    def call(*args, **kwargs):
        return function(*args, **kwargs)

    call.__code__ = call.__code__.replace(co_stacksize=2**16 + 1)
    return call
