"""Flow matching over PDE solutions with conditions and conservation laws satisfied exactly."""

__version__ = "0.1.0"
