"""Memory, as `sapc.memory` knows it: other rooms look for it here, too."""

from ..memory import allocating, available, require

__all__ = ["allocating", "available", "require"]
