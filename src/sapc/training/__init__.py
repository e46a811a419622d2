"""Training: settings, one step, the loop, several processes, and the folder of a run."""
