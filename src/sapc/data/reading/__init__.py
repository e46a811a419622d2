"""Read fields from files: formats, layout, axes and channels."""
