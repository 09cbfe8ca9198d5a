"""Counts out of histograms against the trainer's own rules on the tokens themselves."""

import numpy as np
import pytest
import torch

from rlviewer.accounts.models import Project
from rlviewer.runs.models import Rollout, Run, Step
from rlviewer.runs.queries.rollout import packed_rollout
from rlviewer.signal.queries.what_if import WhatIf, tokens_cut, what_if
from rlviewer.signal.services import compute_pending
from rlviewer.signal.steps import StepRange
from tests.factories import fill_run, make_run
from training.losses import PolicyLoss, clipped_policy_loss, detached_clip_loss, divergence_masked_loss

pytestmark = pytest.mark.django_db


@pytest.fixture
def run(project: Project) -> Run:
    run = make_run(project)
    fill_run(run, 2, groups=8, group_size=8, tokens=60)
    compute_pending()
    return run


def asked(run: Run, **query: str) -> WhatIf:
    return what_if(run, StepRange(), query)


def tensors(run: Run) -> list[torch.Tensor]:
    """Policy, sampler, advantages and mask of every stored training token, one row."""
    columns = [packed_rollout(one)[0].columns for one in Rollout.objects.filter(step__run=run, step__split="train")]
    names = ("policy_logprobs", "sampler_logprobs", "token_advantages", "loss_mask")
    policy, sampler, advantages, mask = (np.concatenate([own[name] for own in columns]) for name in names)
    known = np.isfinite(policy) & np.isfinite(sampler) & np.isfinite(advantages)
    return [torch.tensor(each)[None] for each in (policy, sampler, advantages, mask.astype(bool) & known)]


def cut(loss: PolicyLoss, advantages: torch.Tensor) -> tuple[int, int]:
    flagged = (loss.clip_flag == 1) | (loss.clip_flag == 2)
    return int((flagged & (advantages > 0)).sum()), int((flagged & (advantages < 0)).sum())


def test_counts_are_those_of_the_trainers_rules(run: Run) -> None:
    policy, sampler, advantages, mask = tensors(run)
    rules = (
        ({"rule": "clipped", "clip_low": "0.05", "clip_high": "0.04"}, clipped_policy_loss(policy, sampler, advantages, mask, clip_low=0.05, clip_high=0.04)),
        ({"rule": "tv", "tv_limit": "0.01"}, divergence_masked_loss(policy, sampler, advantages, mask, divergence="tv", limit=0.01)),
        ({"rule": "detached_clip", "ratio_low": "0.9", "ratio_high": "1.1"}, detached_clip_loss(policy, sampler, advantages, mask, ratio_low=0.9, ratio_high=1.1)),
    )  # fmt: skip
    for query, loss in rules:
        found = asked(run, **query)
        positive, negative = cut(loss, advantages)
        assert min(positive, negative) > 20
        assert found.positive[0] == pytest.approx(positive, rel=0.03, abs=3), query
        assert found.negative[0] == pytest.approx(negative, rel=0.03, abs=3), query
        assert found.positive[1] == int((mask & (advantages > 0)).sum())


def test_limits_come_from_the_address_then_the_run_then_the_rule(run: Run) -> None:
    assert asked(run).knobs == {"clip_low": 0.2, "clip_high": 0.2}
    run.algorithm = "dapo"
    assert asked(run).knobs == {"clip_low": 0.2, "clip_high": 0.28}
    run.config = {"algorithm_params": {"clip_high": 0.5}}
    assert asked(run, clip_low="0.1").knobs == {"clip_low": 0.1, "clip_high": 0.5}
    assert asked(run, clip_high="-1", clip_low="much").knobs == {"clip_low": 0.2, "clip_high": 0.5}
    run.algorithm, run.config = "dppo", {}
    assert asked(run).rule == "tv"
    run.algorithm = "gspo"
    assert asked(run).level == "sequence mean"


def test_without_the_columns_nothing_is_counted(run: Run) -> None:
    found = asked(run, rule="tis")
    assert (found.steps, found.of_steps, found.chart) == (0, Step.objects.filter(run=run, split="train").count(), None)


def test_an_open_limit_cuts_nothing() -> None:
    counts = {"ratio_positive": np.ones(1024, np.int64), "ratio_negative": np.ones(1024, np.int64)}
    assert tokens_cut("clipped", "negative", counts, {"clip_low": 1.5, "clip_high": 0.2}) == 0
    assert tokens_cut("detached_clip", "positive", counts, {"ratio_low": 0.0, "ratio_high": 1e9}) == 0
