"""Stored rollouts with chosen columns, and what their page shows."""

from dataclasses import replace
from typing import Any

from playwright.sync_api import Page

from rlviewer.ingest.services import store_batch
from rlviewer.runs.models import Rollout, Run
from tests.factories import make_batch
from training.records import TOKEN_COLUMNS


def store(run: Run, size: int, step: int = 0, **columns: Any) -> list[Rollout]:
    """One group of `size` rollouts that has the named columns and no other per-token ones."""
    bare = {name: [None] * size for name in [*TOKEN_COLUMNS, "step_boundaries"]}
    batch = make_batch(run, step=step, groups=1, group_size=size, **{**bare, **columns})
    outcome = store_batch(replace(batch, reward_spans=batch.reward_spans.slice(0, 0)), source="test")
    assert outcome.refused == 0
    return list(Rollout.objects.filter(run_id=run.pk, step__index=step).order_by("number"))


def tokens(page: Page) -> Any:
    return page.locator("#tokens [data-i]")


def classes(page: Page, token: int) -> set[str]:
    return set((tokens(page).nth(token).get_attribute("class") or "").split())


def numbers(page: Page) -> dict[str, str]:
    """What the inspector tells of the token."""
    inspector = page.locator("#inspector")
    return dict(zip(inspector.locator("dt").all_inner_texts(), inspector.locator("dd").all_inner_texts(), strict=True))
