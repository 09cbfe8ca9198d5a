"""A group side by side and a prompt through its visits as a person uses them: by key, by chart, at both widths and in both themes."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import pyarrow as pa
import pytest
from playwright.sync_api import Page, expect

from rlviewer.accounts.models import Project, User
from rlviewer.ingest.services import store_batch
from rlviewer.runs.models import Group, Prompt, Rollout, Run
from tests.factories import make_batch, make_run

BEGIN = "we add the ones. " * 400


@pytest.fixture
def page(page: Page, alice: User, sign_in: Callable[[User], None]) -> Iterator[Page]:
    sign_in(alice)
    yield page
    assert page.evaluate("window.hacked") is None


@pytest.fixture
def run(project: Project) -> Run:
    """Five steps of one prompt, wrong at first; each with a group of it and one of another prompt."""
    run = make_run(project)
    for step in range(5):
        first, second = step > 2, step > 3
        right = [first, second, True, False]
        texts = [f"{BEGIN}so = {12 if own else 13} at {step}{number}" for number, own in enumerate((first, second))]
        batch = make_batch(
            run,
            step=step,
            groups=2,
            group_size=2,
            correct=right,
            reward=[float(own) for own in right],
            advantage=[own - 0.5 for own in right],
            completion=[text.encode() for text in [*texts, "<script>window.hacked=1</script>", "\u202eb"]],
            parsed_answer=[b"12" if first else b"13", b"12" if second else b"13", b"<b>1", None],
            kept=[True] * 4,
            stop_reason=["stop"] * 4,
        )
        rows = batch.groups.to_pylist()
        for row, text in zip(rows, (b"5+7=", f"other {step}".encode()), strict=True):
            row |= {"prompt": text, "answer": b"12", "kept": True}
        store_batch(replace(batch, groups=pa.Table.from_pylist(rows, batch.groups.schema)), source="test")
    return run


def group(run: Run, step: int, index: int = 0) -> Group:
    return Group.objects.get(run=run, step__index=step, index=index)


def hidden_marks(page: Page) -> int:
    """Differences that were gone to and are not within the visible part of their text."""
    return page.evaluate(
        """() => [...document.querySelectorAll("mark.is-here")].filter((mark) => {
            const box = mark.getBoundingClientRect(), text = mark.closest("pre").getBoundingClientRect();
            return box.top < text.top || box.bottom > text.bottom;
        }).length"""
    )


def test_a_group_is_read_by_key(page: Page, run: Run) -> None:
    own = group(run, 3)
    page.goto(f"/groups/{own.pk}/")
    expect(page.get_by_text("Teaches: 1 right of 2, advantages")).to_be_visible()
    page.keyboard.press("d")
    # Below the long common beginning: the text scrolled to where it parts.
    expect(page.locator("mark.is-here")).to_have_text("13")
    assert hidden_marks(page) == 0
    # j walks over the rollouts, Enter opens one at the token in which it parts.
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.locator("[data-row] a:focus")).to_have_text("Rollout 1")
    page.keyboard.press("Enter")
    second = Rollout.objects.get(group=own, number=1)
    expect(page).to_have_url(re.compile(rf"/rollouts/{second.pk}/\?token=\d+"))
    # g goes back to the group, now compared with this one; n and p follow the order of steps.
    page.keyboard.press("g")
    expect(page).to_have_url(re.compile(rf"/groups/{own.pk}/\?ref=1$"))
    page.keyboard.press("n")
    expect(page).to_have_url(re.compile(rf"/groups/{group(run, 3, 1).pk}/$"))
    page.keyboard.press("n")
    expect(page).to_have_url(re.compile(rf"/groups/{group(run, 4).pk}/$"))


def test_texts_of_a_selection_go_to_their_differences_together(page: Page, run: Run) -> None:
    pair = ",".join(map(str, Rollout.objects.filter(group=group(run, 3)).values_list("pk", flat=True)))
    page.goto(f"/rollouts/compare/?ids={pair}")
    for words in (["12", "13"], ["30", "31"], ["12", "13"]):
        page.keyboard.press("d")
        expect(page.locator("mark.is-here")).to_have_text(words)
        assert hidden_marks(page) == 0


def test_dots_choose_the_pair(page: Page, run: Run) -> None:
    prompt = Prompt.objects.get(text=b"5+7=")
    page.goto(f"/prompts/{prompt.pk}/")
    expect(page.locator(".milestones").filter(has_text="first solved at")).to_contain_text("step 3")
    expect(page.locator("#pair mark").first).to_be_visible()
    page.get_by_role("link", name="chooses A").click()
    plot = page.locator(".lane .plot")
    expect(plot.locator(".points path")).to_have_count(10)
    for name in ("a", "b"):
        plot.focus()
        page.keyboard.press("Home")
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile(rf"[?&]{name}=\d+"))
        expect(plot.locator(".points path")).to_have_count(10)
    expect(page).to_have_url(re.compile(r"\?a=\d+&b=\d+#pair$"))
    expect(page.locator("#pair")).to_contain_text("two that were chosen")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_pages_fit_and_anyone_can_use_them(
    page: Page, run: Run, violations: Callable[[Page], list[str]], width: int, scheme: str
) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    prompt = Prompt.objects.get(text=b"5+7=")
    pair = ",".join(map(str, Rollout.objects.filter(group__prompt=prompt).values_list("pk", flat=True)[:3]))
    for address in (
        f"/groups/{group(run, 3).pk}/",
        f"/groups/{group(run, 1, 1).pk}/?near=all",
        f"/prompts/{prompt.pk}/",
        f"/runs/{run.pk}/prompts/",
        f"/rollouts/compare/?ids={pair}",
    ):
        page.goto(address)
        expect(page.locator("h1")).to_be_visible()
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width, address
