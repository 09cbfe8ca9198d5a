"""Pure functions from one step's rollouts to its numbers."""
