"""The projection onto curved laws on a GPU: compiled passes, and all passes as one kernel."""
