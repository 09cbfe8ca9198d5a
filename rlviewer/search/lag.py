"""How far the full-text index is behind. Light to import, so that an idle worker can ask."""

# Steps that hold rollouts whose texts are not indexed yet.
PENDING = """
    FROM runs_step s LEFT JOIN search_indexedstep i ON i.step_id = s.id
    WHERE s.rollout_count > coalesce(i.rollout_count, 0)
"""
