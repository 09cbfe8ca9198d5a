"""What a page sends for its first visit, compressed: at most 300 KB beside the one file of plotly."""

import random
import re

import pytest
from django.test import Client
from django.urls import reverse

from rlviewer.accounts.models import Project, User
from rlviewer.runs.measures import PANEL_METRICS
from rlviewer.runs.models import MetricChunk, Rollout, Run
from tests.factories import fill_run, make_run

BUDGET = 300_000
ASSET = re.compile(r'(?:src|href)="(/static/[^"]+)"')
HEADERS = {"Accept-Encoding": "gzip"}
STEPS = 5_000


@pytest.fixture
def runs(project: Project) -> list[Run]:
    """Eight long runs with every curve, of numbers that nothing can compress."""
    noise = random.Random(0)
    runs = [make_run(project, f"run {number}", state="finished") for number in range(8)]
    fill_run(runs[0], steps=12)
    for run in runs:
        MetricChunk.objects.filter(run=run).delete()
        attempt = run.attempts.get()
        for name in PANEL_METRICS:
            steps = list(range(0, STEPS, 20 if name.startswith("eval_") else 1))
            values = [noise.random() for _ in steps]
            MetricChunk.objects.create(run=run, attempt=attempt, name=name, steps=steps, values=values)
    return runs


def sent(client: Client, address: str) -> tuple[int, int]:
    """Bytes of the page with its styles and scripts, and of plotly apart."""
    page = client.get(address, headers=HEADERS)
    assert page.status_code == 200 and page.headers["Content-Encoding"] == "gzip"
    html = client.get(address).content.decode()
    weights = {
        asset: len(client.get(asset.replace("&amp;", "&"), headers=HEADERS).content)
        for asset in set(ASSET.findall(html))
    }
    plotly = sum(weight for asset, weight in weights.items() if "plotly-strict" in asset)
    return len(page.content) + sum(weights.values()) - plotly, plotly


def test_pages_are_light(client: Client, alice: User, project: Project, runs: list[Run]) -> None:
    client.force_login(alice)
    first, *others = runs
    rollout = Rollout.objects.filter(run_id=first.pk).first()
    assert rollout
    overlay = ",".join(str(run.pk) for run in others)
    addresses = [
        reverse("run-list", args=[project.pk]),
        reverse("run-detail", args=[first.pk]),
        reverse("run-detail", args=[first.pk]) + f"?with={overlay}",
        reverse("rollout-list", args=[first.pk]),
        reverse("rollout-detail", args=[rollout.pk]),
        reverse("signal", args=[first.pk]),
    ]
    weights = {address: sent(client, address)[0] for address in addresses}
    assert max(weights.values()) <= BUDGET, weights


def test_plotly_is_one_file_that_nothing_waits_for(client: Client, alice: User, runs: list[Run]) -> None:
    client.force_login(alice)
    html = client.get(reverse("run-detail", args=[runs[0].pk])).content.decode()
    (tag,) = re.findall(r"<script[^>]*plotly-strict[^>]*>", html)
    assert " defer" in tag
