"""How a manifold projects: one file per algorithm."""
