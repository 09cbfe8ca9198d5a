"""A rollout's page in the system's Chromium: colours, hovering, keys, and texts that would like to be scripts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from rlviewer.runs.models import Rollout, Run
from tests.browser.rollout.pages import classes, numbers, store, tokens

NAN, INF = float("nan"), float("inf")
HOSTILE = [
    b"\x00 nul and \xff\xfe no UTF-8 \xed\xa0\x80",
    "\u202eabc\u200b\u2066 שלום".encode(),
    b"<script>window.hacked = 1</script><img src=https://example.com/x onerror='window.hacked = 1'>",
    b'"><svg/onload="window.hacked=1">{{ 7*7 }}</script></pre>',
]


@pytest.fixture
def rollouts(run: Run) -> list[Rollout]:
    """Three rollouts of six tokens: 2 + 2 carry, end of line, end; one value of the entropy is NaN, one infinite."""
    return store(
        run,
        3,
        token_ids=[[1, 2, 1, 3, 4, 0]] * 3,
        completion=[b"2+2 carry\n"] * 3,
        token_advantages=[[0.5, -0.5, 0.25, 0.0, -0.125, 0.5]] * 3,
        entropy=[[0.0, 1.0, NAN, 0.25, INF, 0.5]] * 3,
        sampler_logprobs=[[-1.25, -0.5, -0.5, -2.0, -0.1, -0.1]] * 3,
        policy_logprobs=[[-1.0, -0.5, -0.75, -2.0, -0.1, -0.1]] * 3,
        loss_mask=[[1, 1, 1, 1, 1, 0]] * 3,
    )


def test_colour_is_the_value_on_a_symmetric_scale(page: Page, rollouts: list[Rollout]) -> None:
    page.goto(f"/rollouts/{rollouts[1].pk}/")
    expect(tokens(page)).to_have_count(6)
    # Largest magnitude 0.5: the ends of the scale; zero is its middle; a quarter of the way is a quarter of the buckets.
    assert [next(c for c in classes(page, i) if c.startswith("sg")) for i in range(6)] == [
        "sg63", "sg1", "sg48", "sg32", "sg24", "sg63",
    ]  # fmt: skip
    expect(page.locator("#legend")).to_contain_text("−0.500")
    expect(page.locator("#legend")).to_contain_text("+0.500")
    background = tokens(page).nth(0).evaluate("e => getComputedStyle(e).backgroundColor")
    assert background != tokens(page).nth(3).evaluate("e => getComputedStyle(e).backgroundColor")
    page.keyboard.press("t")
    expect(page.locator("#colour")).to_have_value("sampler_logprobs")
    assert "sq63" in classes(page, 3)  # the least likely token


def test_hovering_a_token_tells_all_its_numbers(page: Page, rollouts: list[Rollout]) -> None:
    page.goto(f"/rollouts/{rollouts[0].pk}/")
    tokens(page).nth(2).hover()
    found = numbers(page)
    assert found["advantage"] == "+0.250" and found["sampler log-probability"] == "−0.500 nats"
    assert found["importance ratio"] == "0.779"  # exp(-0.75 + 0.5)
    assert found["entropy"] == "NaN nats" and found["loss mask"] == "counted" and found["id"] == "1"
    exact = page.locator("#inspector dd", has_text="0.779").get_attribute("title") or ""
    assert exact.startswith("0.7788008")
    page.mouse.move(5, 5)
    expect(page.locator("#inspector")).to_contain_text("Point at a token")


def test_values_that_are_not_finite_are_marked_and_counted(page: Page, rollouts: list[Rollout]) -> None:
    page.goto(f"/rollouts/{rollouts[0].pk}/?color=entropy")
    assert "broken-value" in classes(page, 2) and "scale-none" in classes(page, 2)
    assert "broken-value" in classes(page, 4) and "broken-value" not in classes(page, 1)
    page.get_by_role("button", name="1 NaN, 1 infinite").click()
    expect(page.locator("#inspector h2")).to_have_text("Token 2 of 0–5")
    assert page.locator("#token-chart .broken").count() == 2


def test_keys_move_through_tokens_fields_and_siblings(page: Page, rollouts: list[Rollout]) -> None:
    page.goto(f"/rollouts/{rollouts[1].pk}/")
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft"):
        page.keyboard.press(key)
    expect(page.locator("#inspector h2")).to_have_text("Token 1 of 0–5")
    assert "is-chosen" in classes(page, 1)
    page.locator("#tokens").focus()
    page.keyboard.press("End")
    expect(page.locator("#inspector h2")).to_have_text("Token 5 of 0–5")
    page.keyboard.press("t")
    expect(page).to_have_url(
        f"**/rollouts/{rollouts[1].pk}/?token=5&color=sampler_logprobs".replace("**", page.url.split("/rollouts")[0])
    )
    page.keyboard.press("n")
    page.wait_for_url(f"**/rollouts/{rollouts[2].pk}/?color=sampler_logprobs")
    expect(page.locator("#colour")).to_have_value("sampler_logprobs")
    page.keyboard.press("p")
    page.wait_for_url(f"**/rollouts/{rollouts[1].pk}/**")


def test_step_keys_lead_to_the_neighbours(page: Page, run: Run, rollouts: list[Rollout]) -> None:
    store(run, 2, step=1, completion=[b"a", b"b"])
    page.goto(f"/rollouts/{rollouts[0].pk}/")
    page.keyboard.press("]")
    page.wait_for_url(f"**/runs/{run.pk}/steps/train/1/")
    page.keyboard.press("[")
    page.wait_for_url(f"**/runs/{run.pk}/steps/train/0/")


def test_a_deep_link_opens_token_and_field(page: Page, rollouts: list[Rollout]) -> None:
    page.goto(f"/rollouts/{rollouts[0].pk}/?token=3&color=importance_ratio&under=token_advantages")
    expect(page.locator("#inspector h2")).to_have_text("Token 3 of 0–5")
    expect(page.locator("#inspector .token-text")).to_have_text("·carry")
    expect(page.locator("#colour")).to_have_value("importance_ratio")
    assert {"u8", "uneg"} <= classes(page, 1) and not any(c.startswith("u") for c in classes(page, 3))
    # Ratios are coloured by their logarithm: 1 is the middle, 1.28 and 0.78 are the ends.
    assert "sg63" in classes(page, 0) and "sg1" in classes(page, 2) and "sg32" in classes(page, 1)


def test_chart_and_tokens_point_at_each_other(page: Page, rollouts: list[Rollout]) -> None:
    page.goto(f"/rollouts/{rollouts[0].pk}/")
    box = page.locator("#token-chart svg").bounding_box()
    assert box
    right = box["x"] + box["width"] - 13
    page.mouse.move(right, box["y"] + 40)
    expect(page.locator("#inspector h2")).to_have_text("Token 5 of 0–5")
    assert "is-pointed" in classes(page, 5)
    tokens(page).nth(0).hover()
    assert float(page.locator("#token-chart .cursor").get_attribute("x1") or 0) == pytest.approx(72)
    page.mouse.move(box["x"] + 61, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(right, box["y"] + 40, steps=4)
    page.mouse.up()
    page.mouse.move(right, box["y"] + 400)
    expect(page.locator("#inspector h2")).to_have_text("Tokens 0 to 5")
    assert numbers(page)["advantage"] == "mean +0.104, sum +0.625".replace("+", "")


def test_special_and_invisible_tokens_are_visible(page: Page, run: Run) -> None:
    (rollout,) = store(run, 1, token_ids=[[0, 5, 6, 7, 4, 8]], completion=[b"x"], entropy=[[0.5] * 6])
    page.goto(f"/rollouts/{rollout.pk}/")
    assert [text.strip() for text in tokens(page).all_inner_texts()] == [
        "<eos>", "F09F", "00", "U+202E", "⏎", "<script>window.hacked=1</script>",
    ]  # fmt: skip
    assert "token-special" in classes(page, 0)
    tokens(page).nth(1).click()
    assert numbers(page)["bytes"] == "f0 9f"
    expect(page.locator("#token-note")).to_contain_text("not exactly the stored completion")


@pytest.mark.parametrize("text", HOSTILE, ids=["bytes", "bidi", "script", "quotes"])
def test_hostile_text_is_shown_and_never_run(page: Page, run: Run, text: bytes) -> None:
    rollout, _ = store(run, 2, completion=[text, text], parsed_answer=[text, text], feedback=[text, text])
    page.goto(f"/rollouts/{rollout.pk}/")
    expect(page.locator(".raw-text")).to_be_visible()
    for view, words in (("ids", "[]"), ("json", "completion_base64"), ("tokens", "No token values")):
        page.locator(f"[data-view={view}]").click()
        expect(page.locator(".zone-text")).to_contain_text(words)
    for address in (f"/runs/{run.pk}/steps/train/0/", f"/runs/{run.pk}/rollouts/", f"/runs/{run.pk}/"):
        page.goto(address)
        expect(page.locator("main")).to_contain_text(PLAIN.get(text, ""))
    assert (
        page.evaluate(
            "document.querySelectorAll('main script:not([type=\"application/json\"]), main img, main svg[onload]').length"
        )
        == 0
    )


PLAIN = {HOSTILE[0]: "⟨00⟩ nul and ⟨FF⟩⟨FE⟩ no UTF-8 ⟨ED⟩⟨A0⟩⟨80⟩", HOSTILE[1]: "⟨U+202E⟩abc⟨U+200B⟩"}


def test_copy_gives_what_is_stored_or_says_why_not(page: Page, run: Run) -> None:
    exact, broken = store(run, 2, completion=["é\r\n\t\u202e 日本 ".encode(), b"\xff"])
    page.goto(f"/rollouts/{exact.pk}/?view=text")
    page.get_by_role("button", name="Copy", exact=True).click()
    expect(page.locator(".toast")).to_contain_text("Copied exactly")
    assert page.evaluate("navigator.clipboard.readText()") == "é\r\n\t\u202e 日本 "
    page.goto(f"/rollouts/{broken.pk}/?view=text")
    page.get_by_role("button", name="Copy", exact=True).click()
    expect(page.locator(".toast.error")).to_contain_text("1 bytes are not UTF-8")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert Path(download.value.path()).read_bytes() == b"\xff"


def test_a_large_rollout_stays_usable(page: Page, run: Run) -> None:
    count = 32_768
    (rollout,) = store(
        run,
        1,
        token_ids=[[1 + i % 4 for i in range(count)]],
        completion=[b"2+ carry\n" * (count // 4)],
        token_advantages=[[(i % 7 - 3) / 3 for i in range(count)]],
    )
    page.goto(f"/rollouts/{rollout.pk}/?token=30000")
    expect(tokens(page)).to_have_count(count, timeout=20_000)
    expect(tokens(page).nth(30_000)).to_be_in_viewport()
    expect(page.locator("#inspector h2")).to_have_text("Token 30000 of 0–32767")
    # A press of a key answers within a frame or a few, far below what a person notices as waiting.
    spent = page.evaluate("""() => {
        const start = performance.now();
        document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }));
        document.body.offsetHeight;
        return performance.now() - start;
    }""")
    assert spent < 500


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_pages_are_accessible_and_fit(
    page: Page, run: Run, rollouts: list[Rollout], violations: Callable[[Page], list[str]], width: int, scheme: Any
) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    page.emulate_media(color_scheme=scheme)
    addresses = [f"/rollouts/{rollouts[1].pk}/?token=1&color=entropy", f"/rollouts/{rollouts[1].pk}/?view=text"]
    addresses += [
        f"/rollouts/{rollouts[1].pk}/?color=loss_mask",
        f"/runs/{run.pk}/steps/train/0/",
        f"/runs/{run.pk}/rollouts/",
    ]
    addresses += [f"/runs/{run.pk}/?tab={tab}" for tab in ("overview", "steps", "evaluation", "config", "log")]
    for address in addresses:
        page.goto(address)
        page.wait_for_load_state("networkidle")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), address
        assert violations(page) == [], address
