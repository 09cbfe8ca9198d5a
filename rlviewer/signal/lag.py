"""Which steps wait to be worked out. Light to import, so that an idle worker can ask."""

# Rises when a measure changes or one is added; older rows are then worked out again.
VERSION = 5
PENDING = f"""
    FROM runs_step s LEFT JOIN signal_stepsignal g ON g.step_id = s.id
    WHERE s.rollout_count > 0 AND (g.step_id IS NULL OR g.rollout_count < s.rollout_count OR g.version < {VERSION})
"""
