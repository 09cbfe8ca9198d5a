"""Charts in a real browser: drawn reliably, zoomed in full, over each other, by keyboard, as a table, leading on."""

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from rlviewer.accounts.models import Project, User
from rlviewer.runs.models import MetricChunk, Run
from tests.factories import fill_run, make_run

SignIn = Callable[[User], None]
STEPS = 9_000


@pytest.fixture
def run(project: Project) -> Run:
    run = make_run(project, "countdown", steps_planned=40, state="finished")
    fill_run(run, steps=6)
    return run


@pytest.fixture
def long_run(run: Run) -> Run:
    """With a loss of many more points than a page draws, and one spike."""
    values = [float(step % 89) for step in range(STEPS)]
    values[4_321] = 500.0
    MetricChunk.objects.filter(run=run, name="loss").delete()
    MetricChunk.objects.create(
        run=run, attempt=run.attempts.get(), name="loss", steps=list(range(STEPS)), values=values
    )
    return run


@pytest.fixture
def opened(page: Page, run: Run, alice: User, sign_in: SignIn) -> Page:
    sign_in(alice)
    page.goto(f"/runs/{run.pk}/")
    drawn(page, "reward")
    return page


def drawn(page: Page, chart: str) -> None:
    page.locator(f"#chart-{chart}").scroll_into_view_if_needed()
    expect(page.locator(f"[data-figure={chart}] .main-svg").first).to_be_visible()


def points(page: Page, chart: str) -> list[float]:
    return page.evaluate(f"document.querySelector('[data-figure={chart}]').data[0].x")


def until(page: Page, script: str) -> None:
    """Waits until it is true; the page's policy forbids Playwright's own way."""
    for _ in range(200):
        if page.evaluate(script):
            return
        page.wait_for_timeout(100)
    raise AssertionError(script)


def drag(page: Page, chart: str, start: float, end: float) -> None:
    """Zooms by the mouse between two shares of the plot's width."""
    box = page.locator(f"[data-figure={chart}] .nsewdrag").first.bounding_box()
    assert box
    height = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + start * box["width"], height)
    page.mouse.down()
    page.mouse.move(box["x"] + end * box["width"], height, steps=4)
    page.mouse.up()


def test_two_dozen_charts_are_all_drawn(opened: Page) -> None:
    opened.evaluate(
        """() => {
            const grid = document.querySelector(".chart-grid");
            const one = grid.querySelector("#chart-reward");
            for (let number = grid.children.length; number < 24; number++) {
                const copy = one.cloneNode(true);
                copy.id = `chart-copy-${number}`;
                const plot = copy.querySelector("[data-figure]");
                plot.dataset.figure = `copy-${number}`;
                plot.className = "plot";
                plot.replaceChildren();
                document.querySelector("main").append(copy); // outside of what refreshes itself
            }
            document.dispatchEvent(new CustomEvent("htmx:afterSettle"));
        }"""
    )
    charts = opened.locator("[data-figure]")
    expect(charts).to_have_count(24)
    # Those far below wait until they are come near to.
    assert opened.locator(".js-plotly-plot").count() < 24
    for chart in charts.all():
        chart.scroll_into_view_if_needed()
        opened.wait_for_timeout(50)
    expect(opened.locator("[data-figure] .main-svg:first-child")).to_have_count(24)
    shapes = opened.evaluate(
        "[...document.querySelectorAll('[data-figure]')].map((plot) => plot.querySelectorAll('.scatterlayer path').length)"
    )
    assert min(shapes) > 0


def test_a_drag_zooms_all_charts_and_fetches_what_was_left_out(
    page: Page, long_run: Run, alice: User, sign_in: SignIn
) -> None:
    sign_in(alice)
    page.goto(f"/runs/{long_run.pk}/")
    drawn(page, "loss")
    assert len(points(page, "loss")) < 1_400 and 4_321 in points(page, "loss")
    drag(page, "loss", 0.2, 0.4)
    until(page, f"document.querySelector('[data-figure=loss]').data[0].x.length > {STEPS // 6}")
    from_step, to_step = (float(part) for part in page.evaluate("new URL(location).searchParams.get('x')").split(":"))
    found = [step for step in points(page, "loss") if from_step <= step <= to_step]
    assert found == list(range(int(from_step) + 1, int(to_step) + 1))
    start = page.evaluate("document.querySelector('[data-figure=reward]')?.layout?.xaxis.range[0] ?? null")
    assert start is None or round(start, 3) == round(from_step, 3)
    # The address holds the zoom.
    page.reload()
    drawn(page, "loss")
    until(page, f"document.querySelector('[data-figure=loss]').data[0].x.length > {STEPS // 6}")
    page.locator("[data-figure=loss] .nsewdrag").first.dblclick()
    until(page, "!new URL(location).searchParams.has('x')")
    until(page, "document.querySelector('[data-figure=loss]').data[0].x.length < 1400")
    assert page.evaluate("document.querySelector('[data-figure=loss]').layout.xaxis.autorange") is True


def test_a_window_that_fails_says_so_and_can_be_tried_again(
    page: Page, long_run: Run, alice: User, sign_in: SignIn
) -> None:
    sign_in(alice)
    broken = True

    def answer(route: Route) -> None:
        if broken:
            route.fulfill(status=503, body="away")
        else:
            route.continue_()

    page.route("**/curves/?*", answer)
    page.goto(f"/runs/{long_run.pk}/?x=1000:2000")
    drawn(page, "loss")
    alert = page.locator("#chart-loss").get_by_role("alert")
    expect(alert).to_contain_text("could not be loaded")
    broken = False
    alert.get_by_role("button", name="Try again").click()
    expect(alert).to_have_count(0)
    until(page, "document.querySelector('[data-figure=loss]').data[0].x.length === 1003")


def test_a_click_and_enter_open_the_step(opened: Page, run: Run) -> None:
    step = f"**/runs/{run.pk}/steps/train/*/"
    opened.route(step, lambda route: route.fulfill(body="there"))
    drawn(opened, "loss")
    place = opened.evaluate(
        """() => {
            const plot = document.querySelector("[data-figure=loss]");
            const box = plot.querySelector(".nsewdrag").getBoundingClientRect();
            const { xaxis, yaxis } = plot._fullLayout;
            return [box.left + xaxis.d2p(5), box.top + yaxis.d2p(plot.data[0].y[5])];
        }"""
    )
    opened.mouse.move(place[0] - 2, place[1])
    opened.mouse.move(*place)
    expect(opened.locator("[data-figure=loss] .hoverlayer")).to_contain_text("step 5")
    opened.mouse.click(*place)
    opened.wait_for_url(f"**/runs/{run.pk}/steps/train/5/")
    opened.go_back()
    drawn(opened, "loss")
    opened.locator("[data-figure=loss]").focus()
    opened.keyboard.press("Home")
    opened.keyboard.press("ArrowRight")
    opened.keyboard.press("Enter")
    opened.wait_for_url(f"**/runs/{run.pk}/steps/train/1/")


def test_the_cursor_is_one_for_all_charts_and_in_the_address(opened: Page) -> None:
    drawn(opened, "pass")
    opened.locator("[data-figure=reward]").focus()
    opened.keyboard.press("End")
    opened.keyboard.press("ArrowLeft")
    opened.wait_for_url("**at=4")
    for chart in ("reward", "pass"):
        expect(opened.locator(f"[data-figure={chart}] .hoverlayer")).to_contain_text("step 4")
    opened.reload()
    expect(opened.locator("[data-figure=reward] .hoverlayer")).to_contain_text("step 4")


def test_the_table_is_sorted_and_its_numbers_are_links(opened: Page, run: Run) -> None:
    chart = opened.locator("#chart-loss")
    chart.scroll_into_view_if_needed()
    chart.locator("summary").click()
    chart.get_by_role("button", name="Table or chart").click()
    first = chart.locator("tbody tr").first
    expect(first).to_contain_text("0.1")
    chart.get_by_role("button", name="loss", exact=True).click()
    chart.get_by_role("button", name="loss", exact=True).click()
    expect(chart.locator("th[aria-sort=ascending]")).to_have_text("loss")
    expect(first.locator("th")).to_have_text("5")
    expect(first.get_by_role("link")).to_have_attribute("href", f"/runs/{run.pk}/steps/train/5/")


def test_runs_are_chosen_by_name_and_drawn_over_each_other(opened: Page, run: Run, project: Project) -> None:
    other = make_run(project, "a second try")
    fill_run(other, steps=4)
    opened.get_by_text("Overlay runs").click()
    opened.get_by_label("Search runs to lay over this one").fill("second")
    opened.get_by_role("link", name="a second try").click()
    opened.wait_for_url(f"**/runs/{run.pk}/?with={other.pk}")
    drawn(opened, "reward")
    assert (
        opened.evaluate(
            "document.querySelector('[data-figure=reward]').data.filter((line) => line.showlegend !== false).length"
        )
        == 2
    )
    opened.locator("[data-figure=reward]").focus()
    opened.keyboard.press("Home")
    said = opened.locator("p.visually-hidden[aria-live]")
    expect(said).to_contain_text("countdown")
    expect(said).to_contain_text("a second try")
    # Each line has the colour of its chip.
    colours = opened.evaluate(
        """() => [...document.querySelectorAll("#overlay .chip .run-dot")].map((dot) => getComputedStyle(dot).backgroundColor)"""
    )
    lines = opened.evaluate(
        "document.querySelector('[data-figure=reward]').data.slice(0, 2).map((line) => line.line.color)"
    )
    assert lines == colours and len(set(colours)) == 2
    opened.get_by_label("Take a second try away").click()
    opened.wait_for_url(f"**/runs/{run.pk}/")


def test_runs_selected_in_the_list_are_drawn_over_each_other(
    page: Page, run: Run, project: Project, alice: User, sign_in: SignIn
) -> None:
    others = [make_run(project, name) for name in ("second", "third")]
    sign_in(alice)
    page.goto(f"/projects/{project.pk}/")
    page.keyboard.press("j")
    page.keyboard.press("x")
    page.get_by_label("Select run countdown").check()
    page.reload()  # the selection stays
    expect(page.get_by_label("Select run third")).to_be_checked()
    page.get_by_role("link", name="Overlay curves").click()
    page.wait_for_url(f"**/runs/{others[1].pk}/?with={run.pk}")


@pytest.mark.parametrize("kind", ["bars", "areas", "heat", "scatter", "ridges", "histogram"])
def test_every_kind_has_table_files_and_keyboard(
    page: Page, alice: User, sign_in: SignIn, kind: str, live_app: str
) -> None:
    alice.is_superuser = True
    alice.save()
    sign_in(alice)
    page.goto("/_styleguide/")
    drawn(page, f"sample-{kind}")
    chart = page.locator(f"#chart-sample-{kind}")
    chart.locator("[data-figure]").focus()
    page.keyboard.press("Home")
    said = {
        "bars": "cause all right: train 12, held-out 5",
        "areas": "step 0: all wrong 0.5, mixed 0.5",
        "heat": "step 0: prompt 12 + 30 0",
        "scatter": "point rollout 1: series right, entropy, nats 0.2, reward 1",
        "ridges": "reward 0.05: step 0 20,",
        "histogram": "tokens 0 to 16: step 7 0",
    }[kind]
    expect(page.locator("p.visually-hidden[aria-live]")).to_contain_text(said)
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") != ""
    chart.locator("summary").click()
    with page.expect_download() as download:
        chart.get_by_role("button", name="Download CSV").click()
    assert len(Path(download.value.path()).read_text().splitlines()) > 3
    chart.locator("summary").click()
    with page.expect_download() as download:
        chart.get_by_role("button", name="Download PNG").click()
    assert Path(download.value.path()).read_bytes()[:4] == b"\x89PNG"
    chart.locator("summary").click()
    chart.get_by_role("button", name="Table or chart").click()
    expect(chart.locator("tbody tr").nth(2)).to_be_visible()
