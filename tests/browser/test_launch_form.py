"""The launch form in a real browser: errors beside fields, knobs that follow the task, what it costs, the launch."""

from collections.abc import Callable

from playwright.sync_api import Page, expect

from rlviewer.accounts.models import Project, User
from rlviewer.runs.models import Run

SignIn = Callable[[User], None]


def test_knobs_follow_the_task_and_the_cost_follows_the_steps(
    page: Page, sign_in: SignIn, alice: User, project: Project
) -> None:
    sign_in(alice)
    page.goto(f"/projects/{project.id}/launch/?preset=short")
    preflight = page.get_by_role("complementary", name="Before it starts")
    before = preflight.get_by_role("button", name="Launch run").inner_text()
    page.get_by_label("Steps", exact=True).fill("5000")
    page.get_by_label("Steps", exact=True).press("Tab")
    expect(preflight.get_by_role("button", name="Launch run")).not_to_have_text(before)
    expect(preflight).to_contain_text("steps = 5000")
    assert "steps=5000" in page.url
    expect(page.get_by_label("Digits")).to_be_visible()
    page.get_by_label("Task", exact=True).fill("reversal")
    page.get_by_label("Task", exact=True).press("Tab")
    expect(page.get_by_label("Digits")).to_have_count(0)
    expect(preflight).to_contain_text('name = "reversal"')


def test_an_error_stands_beside_its_field_and_is_linked(
    page: Page, sign_in: SignIn, alice: User, project: Project
) -> None:
    sign_in(alice)
    page.goto(f"/projects/{project.id}/launch/?preset=short")
    page.get_by_label("Group size").fill("1")
    page.get_by_role("button", name="Launch run").click()
    field = page.get_by_label("Group size")
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(field).to_have_accessible_description(
        "Completions per prompt. GRPO compares the completions of a prompt and needs at least 2, got 1;"
        " algorithms without a group are vpg, reinforce, ppo and others"
    )
    page.get_by_role("link", name="Group size").click()
    expect(field).to_be_focused()
    assert not Run.objects.exists()


def test_launches_once_even_when_pressed_twice(page: Page, sign_in: SignIn, alice: User, project: Project) -> None:
    sign_in(alice)
    page.goto(f"/projects/{project.id}/launch/?preset=short")
    page.get_by_label("Name", exact=True).fill("from the browser")
    page.get_by_label("Name", exact=True).press("Tab")
    expect(page.get_by_role("complementary")).to_contain_text('name = "from the browser"')
    page.get_by_role("button", name="Launch run").dblclick()
    page.wait_for_url("**/runs/*/")
    expect(page.get_by_role("heading", name="from the browser")).to_be_visible()
    assert Run.objects.get().name == "from the browser"
