"""Evaluation: metrics, scores, moments, trajectories, and distances by an encoder."""
