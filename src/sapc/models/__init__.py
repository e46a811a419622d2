"""Trained models: loading, sampling, conditions, passing them on."""
