"""Page-shaped reads: a run's page, a step's groups, one rollout, the list of rollouts. Each says what it costs in queries."""
