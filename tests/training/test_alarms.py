import pytest

from training.alarms import sampler_alarm


@pytest.mark.parametrize(
    ("gap", "limit", "dtype", "alarms"),
    [(1e-6, 0, "float32", 0), (2e-3, 0, "float32", 1), (2e-3, 0, "bfloat16", 0), (2e-3, 1e-2, "float32", 0)],
)
def test_a_gap_above_the_limit_is_an_event(gap: float, limit: float, dtype: str, alarms: int) -> None:
    assert len(sampler_alarm({"sampler_policy_gap": gap}, limit=limit, dtype=dtype)) == alarms


def test_the_event_says_how_far_apart_they_are() -> None:
    (event,) = sampler_alarm({"sampler_policy_gap": 0.43}, limit=0, dtype="float32")
    assert event["kind"] == "sampler-policy-gap"
    assert "0.43 nats" in event["reason"] and "0.001" in event["reason"]


def test_a_step_without_update_raises_none() -> None:
    assert sampler_alarm({}, limit=0, dtype="float32") == []
