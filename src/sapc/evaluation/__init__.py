"""Evaluate models: metrics, scores, moments, trajectories, and distances by an encoder."""
