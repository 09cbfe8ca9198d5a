"""Signing in, the palette, keys, themes, live rows and failed requests in a real browser."""

import re
from collections.abc import Callable

from django.db import transaction
from playwright.sync_api import Page, Route, expect

from rlviewer.accounts.models import Project, User
from rlviewer.outbox.services import announce_run
from rlviewer.runs.models import Run
from tests.factories import PASSWORD, make_run

SignIn = Callable[[User], None]


def test_sign_in_by_the_form_and_out_again(page: Page, live_app: str, alice: User) -> None:
    page.goto("/account/")
    page.get_by_label("Name").fill("alice")
    page.get_by_label("Password").fill("wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("do not match")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(f"{live_app}/account/")
    page.get_by_label("Menu of alice").click()
    page.get_by_role("button", name="Sign out", exact=True).click()
    expect(page).to_have_url(f"{live_app}/sign-in/")


def test_the_palette_goes_to_a_run_by_keys_alone(page: Page, sign_in: SignIn, alice: User, project: Project) -> None:
    run = make_run(project, "needle in the stack")
    sign_in(alice)
    page.goto("/")
    page.keyboard.press("Control+k")
    page.keyboard.type("needle")
    expect(page.get_by_role("option", name="needle in the stack")).to_have_attribute("aria-selected", "true")
    page.route(f"**/runs/{run.id}/", lambda route: route.fulfill(body="there"))
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/runs/{run.id}/")


def test_j_k_enter_move_over_the_rows(page: Page, sign_in: SignIn, alice: User, project: Project) -> None:
    runs = [make_run(project, f"run {number}") for number in range(3)]
    sign_in(alice)
    page.goto(f"/projects/{project.id}/")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    expect(page.get_by_role("link", name="run 1")).to_be_focused()
    page.route(f"**/runs/{runs[1].id}/", lambda route: route.fulfill(body="there"))
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/runs/{runs[1].id}/")


def test_slash_filters_and_the_address_follows(page: Page, sign_in: SignIn, alice: User, project: Project) -> None:
    for name in ("alpha", "beta"):
        make_run(project, name)
    sign_in(alice)
    page.goto(f"/projects/{project.id}/")
    page.keyboard.press("/")
    page.keyboard.type("bet")
    expect(page.get_by_role("link", name="alpha")).to_have_count(0)
    expect(page.get_by_label("Search runs")).to_be_focused()
    expect(page.get_by_label("Search runs")).to_have_value("bet")
    assert "search=bet" in page.url
    page.keyboard.press("Escape")
    expect(page.get_by_label("Search runs")).not_to_be_focused()
    expect(page.get_by_label("Search runs")).to_have_value("bet")
    page.reload()
    expect(page.get_by_role("link", name="beta")).to_be_visible()
    expect(page.get_by_role("link", name="alpha")).to_have_count(0)
    page.go_back()
    expect(page.get_by_role("link", name="alpha")).to_be_visible()


def test_question_mark_lists_the_keys(page: Page, sign_in: SignIn, alice: User) -> None:
    sign_in(alice)
    page.goto("/")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_contain_text("Next and previous row")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog", name="Keys")).to_be_hidden()


def test_the_theme_is_remembered(page: Page, sign_in: SignIn, alice: User) -> None:
    sign_in(alice)
    page.emulate_media(color_scheme="light")
    page.goto("/")
    light = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    for _ in range(2):
        page.get_by_role("button", name="Switch theme").click()
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") != light


def test_a_run_changes_in_place_and_a_new_one_appears(
    page: Page, sign_in: SignIn, alice: User, project: Project
) -> None:
    run = make_run(project, "first", state="running")
    sign_in(alice)
    page.goto(f"/projects/{project.id}/")
    expect(page.locator("[data-live-dot]")).to_have_attribute("data-state", "live")
    page.get_by_role("link", name="first").focus()
    with transaction.atomic():
        Run.objects.filter(pk=run.pk).update(state="finished", latest_reward=0.75)
        announce_run(run.id, project.id, "state-changed", state="finished")
    expect(page.locator(f"#run-{run.id}")).to_contain_text("finished")
    expect(page.locator(f"#run-{run.id}")).to_contain_text("0.750")
    expect(page.get_by_role("link", name="first")).to_be_focused()
    with transaction.atomic():
        second = make_run(project, "second")
        announce_run(second.id, project.id, "run-added", state="queued")
    expect(page.get_by_role("link", name="second")).to_be_visible()


def test_new_runs_wait_behind_a_pill_while_reading_further_down(
    page: Page, sign_in: SignIn, alice: User, project: Project
) -> None:
    for number in range(40):
        make_run(project, f"run {number}")
    sign_in(alice)
    page.goto(f"/projects/{project.id}/")
    expect(page.locator("[data-live-dot]")).to_have_attribute("data-state", "live")
    page.mouse.move(640, 400)
    page.mouse.wheel(0, 900)
    with transaction.atomic():
        late = make_run(project, "late")
        announce_run(late.id, project.id, "run-added", state="queued")
    pill = page.get_by_role("link", name="1 new run")
    expect(pill).to_be_visible()
    expect(page.get_by_role("link", name="late")).to_have_count(0)
    pill.click()
    expect(page.get_by_role("link", name="late")).to_be_visible()


def test_a_failed_fragment_offers_to_try_again_in_its_place(
    page: Page, sign_in: SignIn, alice: User, project: Project
) -> None:
    make_run(project, "alpha")
    sign_in(alice)
    page.goto(f"/projects/{project.id}/")
    broken = True

    def answer(route: Route) -> None:
        if broken:
            route.fulfill(status=503, body="away")
        else:
            route.continue_()

    page.route("**/projects/*/?*", answer)
    page.get_by_label("Search runs").fill("alp")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("could not answer (503)")
    expect(page.get_by_role("link", name="alpha")).to_be_visible()
    broken = False
    alert.get_by_role("button", name="Try again").click()
    expect(alert).to_have_count(0)
    expect(page.get_by_role("link", name="alpha")).to_be_visible()


def test_copied_numbers_are_exact(page: Page, sign_in: SignIn, alice: User, project: Project) -> None:
    make_run(project, "alpha", latest_reward=0.123456789)
    sign_in(alice)
    page.goto(f"/projects/{project.id}/")
    copied = page.evaluate(
        """() => {
            const cell = document.querySelector("data[value='0.123456789']");
            getSelection().selectAllChildren(cell.parentElement);
            const event = new ClipboardEvent("copy", { clipboardData: new DataTransfer(), bubbles: true, cancelable: true });
            document.body.dispatchEvent(event);
            return event.clipboardData.getData("text/plain");
        }"""
    )
    assert copied == "0.123456789"


def test_a_signed_out_page_asks_to_sign_in_instead_of_showing_it_inside(
    page: Page, sign_in: SignIn, alice: User, project: Project
) -> None:
    make_run(project, "alpha")
    sign_in(alice)
    page.goto(f"/projects/{project.id}/")
    page.context.clear_cookies()
    page.get_by_label("Search runs").fill("x")
    expect(page).to_have_url(re.compile(r"/sign-in/\?next="))
