"""The rollout browser as a person uses it: types, sorts, turns pages, picks, compares; at both widths and in both themes."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from rlviewer.accounts.models import Project, User
from rlviewer.ingest.services import store_batch
from rlviewer.runs.models import Rollout, Run
from rlviewer.search.services import index_pending
from tests.factories import fill_run, make_batch, make_run


@pytest.fixture
def page(page: Page, alice: User, sign_in: Callable[[User], None]) -> Iterator[Page]:
    sign_in(alice)
    yield page


@pytest.fixture
def run(project: Project) -> Run:
    run = make_run(project)
    fill_run(run, steps=8, group_size=8)  # 256 rollouts of training, 64 of evaluations
    index_pending()
    return run


def rows(page: Page):
    return page.locator("#rollouts [data-row]")


def test_filter_sort_pages_and_export(page: Page, run: Run) -> None:
    page.goto(f"/runs/{run.pk}/rollouts/")
    expect(rows(page)).to_have_count(100)
    expect(page.locator("#rollout-total")).to_have_text("320")
    # Completion: a name, then its value.
    page.keyboard.press("/")
    page.keyboard.type("spl")
    expect(page.get_by_role("option")).to_have_text(["split:train“train”, or the name of an evaluation set."])
    page.keyboard.press("Tab")
    page.keyboard.type("tr")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator("#filter")).to_have_value("split:train ")
    page.keyboard.type("correct:yes")
    page.keyboard.press("Enter")
    right = Rollout.objects.filter(run_id=run.pk, correct=True, step__split="train")
    expect(page.locator("#rollout-total")).to_have_text(str(right.count()))
    expect(page).to_have_url(re.compile(r"/rollouts/\?filter=split(:|%3A)train(\+|%20)correct(:|%3A)yes$"))
    # What is wrong is said; the list and the address stay.
    page.keyboard.type(" stop:soon")
    page.keyboard.press("Enter")
    expect(page.locator("#filter-problem")).to_contain_text("Expected stop, length or error, not “soon”.")
    expect(page.locator("#filter-problem mark")).to_have_text("soon")
    expect(rows(page)).to_have_count(100)
    assert "soon" not in page.url
    page.locator("#filter").fill("split:train correct:yes")
    page.keyboard.press("Enter")
    expect(page.locator("#filter-problem")).to_be_empty()
    # Order, pages and the way back.
    page.get_by_role("link", name="length").click()
    expect(page.locator("th[aria-sort=descending]")).to_have_text("length")
    lengths = [int(text) for text in page.locator("td[data-label=length]").all_inner_texts()]
    assert lengths == sorted(lengths, reverse=True)
    first = page.url
    page.keyboard.press("n")
    page.wait_for_url("**after=**")
    assert int(page.locator("td[data-label=length]").first.inner_text()) <= lengths[-1]
    page.keyboard.press("p")
    page.wait_for_url("**before=**")
    assert [int(text) for text in page.locator("td[data-label=length]").all_inner_texts()] == lengths
    page.keyboard.press("End")
    page.wait_for_url("**end=1**")
    expect(page.get_by_role("link", name="Last")).to_have_count(0)
    page.goto(first)
    page.locator("summary", has_text="Export").click()
    with page.expect_download() as download:
        page.get_by_role("link", name="JSON lines").click()
    exported = [json.loads(line)["id"] for line in Path(download.value.path()).read_text().splitlines()]
    assert exported == list(right.order_by("-length_tokens", "-pk").values_list("pk", flat=True))


def test_scrubber_random_and_going_to_a_step(page: Page, run: Run) -> None:
    page.goto(f"/runs/{run.pk}/rollouts/?sort=step&filter=split:train")
    slider = page.get_by_label("Go to step", exact=True)
    expect(slider).to_have_attribute("max", "7")
    slider.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
        page.wait_for_load_state()
        slider.focus()
    expect(page.locator("td[data-label=step]").first).to_have_text("3")
    page.get_by_label("Go to step, or with # to rollout number").fill("6")
    page.keyboard.press("Enter")
    expect(page.locator("td[data-label=step]").first).to_have_text("6")
    page.locator("body").press("r")
    page.wait_for_url("**sort=random**")
    expect(rows(page)).to_have_count(20)
    drawn = [row.get_attribute("data-id") for row in rows(page).all()]
    page.reload()
    assert [row.get_attribute("data-id") for row in rows(page).all()] == drawn


def test_rows_are_picked_and_compared(page: Page, run: Run) -> None:
    page.goto(f"/runs/{run.pk}/rollouts/")
    for key in ("j", "x", "j", "j", "x"):
        page.keyboard.press(key)
    expect(page.locator("#selection")).to_contain_text("2 selected")
    page.keyboard.press("n")
    page.wait_for_url("**after=**")
    expect(page.locator("#selection")).to_contain_text("2 selected")
    page.keyboard.press("c")
    page.wait_for_url("**/rollouts/compare/**")
    newest = list(Rollout.objects.filter(run_id=run.pk).order_by("-pk").values_list("pk", flat=True)[:3])
    expect(page.locator("main h2")).to_have_text([f"Rollout {newest[0]}", f"Rollout {newest[2]}"])


def test_columns_stay_and_new_rollouts_wait(page: Page, run: Run) -> None:
    page.goto(f"/runs/{run.pk}/rollouts/?filter=group:1")
    page.get_by_role("button", name="Columns").click()
    page.get_by_label("entropy").check()
    page.get_by_label("correct").uncheck()
    page.get_by_role("button", name="Show these columns").click()
    page.wait_for_url("**filter=group:1")
    heads = page.locator("thead th")
    expect(heads.filter(has_text="entropy")).to_have_count(1)
    expect(heads.filter(has_text="correct")).to_have_count(0)
    expect(page.locator("[data-live-dot]")).to_have_attribute("data-state", "live")
    expect(page.locator("#newer")).to_be_hidden()
    store_batch(make_batch(run, step=20), source="test")
    expect(page.locator("#newer")).to_be_visible()
    page.locator("#newer").click()
    expect(page.locator("td[data-label=step]").first).to_have_text("20")


def test_a_search_of_characters_goes_on_by_itself(page: Page, run: Run) -> None:
    page.goto(f"/runs/{run.pk}/rollouts/?filter='so = '")
    expect(rows(page)).to_have_count(100)
    expect(page.locator("#rollout-total")).to_have_text("320")
    expect(page.locator("#rollouts mark").first).to_have_text("so = ")


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_are_accessible_and_fit(
    page: Page, run: Run, violations: Callable[[Page], list[str]], width: int, scheme
) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    page.emulate_media(color_scheme=scheme)
    some = ",".join(map(str, Rollout.objects.filter(run_id=run.pk).values_list("pk", flat=True)[:3]))
    troubles = []
    for path in (
        f"/runs/{run.pk}/rollouts/?sort=-reward&filter=carry", f"/projects/{run.project_id}/rollouts/", f"/runs/{run.pk}/rollouts/?filter=rewrd<1",
        f"/runs/{run.pk}/rollouts/?filter=step:99", f"/rollouts/compare/?ids={some}",
    ):  # fmt: skip
        page.goto(path)
        page.wait_for_load_state("networkidle")
        troubles += [f"{path}: {found}" for found in violations(page)]
        overflow = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        troubles += [f"{path}: {overflow} px too wide"] if overflow > 0 else []
    page.goto(f"/runs/{run.pk}/rollouts/")
    for name in ("Syntax", "Columns"):
        page.get_by_role("button", name=name).click()
        troubles += [f"{name}: {found}" for found in violations(page)]
        page.keyboard.press("Escape")
    page.locator("#filter").focus()
    troubles += [f"completion: {found}" for found in violations(page)]
    assert not troubles


@pytest.mark.parametrize("width", [1280, 390])
def test_facets_and_preview(page: Page, run: Run, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(f"/runs/{run.pk}/rollouts/")
    if width == 390:
        page.locator("#facets-fold summary").click()
    cut = Rollout.objects.filter(run_id=run.pk, stop_reason=1)
    # A value is added to the filter and taken away again; the counts follow.
    page.locator(".facet", has_text="cut").click()
    expect(page.locator("#filter")).to_have_value("stop:length")
    expect(page.locator("#rollout-total")).to_have_text(str(cut.count()))
    expect(page.locator(".facet[aria-current=true]")).to_have_text(re.compile(rf"cut\s*{cut.count()}"))
    page.locator(".facet[aria-current=true]").click()
    expect(page.locator("#filter")).to_have_value("")
    expect(page.locator("#rollout-total")).to_have_text("320")
    # Bars are brushed: the right end of the rewards.
    bars = page.locator("form[data-field=reward] [data-brush]")
    bars.scroll_into_view_if_needed()
    box = bars.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + 10)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 1, box["y"] + 12)
    page.mouse.up()
    expect(page.locator("#filter")).to_have_value(re.compile(r"^reward:0\.\d+\.\.1$"))
    expect(page.locator("#rollout-total")).to_have_text(str(Rollout.objects.filter(run_id=run.pk, reward=1).count()))
    page.get_by_role("link", name="Any reward").click()
    expect(page.locator("#rollout-total")).to_have_text("320")
    # The preview follows j and k, marks what is looked for, and closes.
    page.locator("#filter").fill("carry")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("filter=carry"))
    expect(page.locator("#rollout-total")).to_have_text("320")
    page.locator("h1").click()
    page.keyboard.press("j")
    page.keyboard.press(" ")
    preview = page.locator("#preview")
    first = rows(page).first.get_attribute("data-id")
    expect(preview.get_by_role("link", name=f"Rollout {first}")).to_be_visible()
    expect(preview.locator("[data-preview-text] mark").first).to_have_text("carry")
    expect(preview).to_contain_text("exact answer")
    page.keyboard.press("j")
    second = rows(page).nth(1).get_attribute("data-id")
    expect(preview.get_by_role("link", name=f"Rollout {second}")).to_be_visible()
    if width == 390:
        box = preview.bounding_box()
        assert box is not None and box["y"] + box["height"] == 900 and box["x"] == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.keyboard.press("Escape")
    expect(preview).to_be_hidden()
    page.keyboard.press(" ")
    page.keyboard.press(" ")
    expect(preview).to_be_hidden()
