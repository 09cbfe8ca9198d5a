"""What the rollout's page makes of tokens: what-if rules against the trainer's own, quadrants, 32 thousand tokens, reading."""

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from playwright.sync_api import Page, expect

from rlviewer.accounts.models import Project
from rlviewer.runs.models import Rollout, Run
from rlviewer.runs.queries.rollout import loss_rule
from tests.browser.rollout.pages import classes, store, tokens
from tests.factories import make_run
from training import losses, mismatch

FLAG_CLASSES = ("nm-kept", "nm1", "nm2", "nm0")


def columns(size: int, count: int, seed: int = 0) -> dict[str, Any]:
    """Rollouts whose ratios lie on both sides of every limit, with advantages of both signs, weights and a mask."""
    rng = np.random.default_rng(seed)
    shape = (size, count)
    sampler = -rng.gamma(0.7, 1.0, shape).astype(np.float32)
    advantages = rng.choice([-0.75, 0.5, 0.0], shape, p=[0.45, 0.45, 0.1]).astype(np.float32)
    made = {
        "token_ids": np.ones(shape, np.int32),
        "sampler_logprobs": sampler,
        "recomputed_logprobs": (sampler + rng.normal(0, 0.3, shape)).astype(np.float32).clip(max=0),
        "policy_logprobs": (sampler + rng.normal(0, 0.4, shape)).astype(np.float32).clip(max=0),
        "token_advantages": advantages,
        "token_weights": rng.choice([1.0, 0.5, 0.0], shape, p=[0.8, 0.15, 0.05]).astype(np.float32),
        "loss_mask": (rng.random(shape) < 0.9).astype(np.uint8),
        "entropy": rng.gamma(1.0, 0.5, shape).astype(np.float32),
    }
    return {name: list(values) for name, values in made.items()} | {"completion": [b"2" * count] * size}


def loss_inputs(given: dict[str, Any]) -> losses.LossInputs:
    tensors = {name: torch.from_numpy(np.stack(values)) for name, values in given.items() if name != "completion"}
    return losses.LossInputs(
        policy_logprobs=tensors["policy_logprobs"],
        sampler_logprobs=tensors["sampler_logprobs"],
        recomputed_logprobs=tensors["recomputed_logprobs"],
        token_advantages=tensors["token_advantages"],
        token_weights=tensors["token_weights"],
        loss_mask=tensors["loss_mask"].bool(),
    )


CLIP = {"ratio_level": "token", "dual_clip": 0.0, "drift_limit": 0.0}
RULES: list[tuple[str, str, dict[str, Any]]] = [
    ("clipped", "clipped", {"clip_low": 0.1, "clip_high": 0.35}),
    ("clipped", "clipped", {"clip_low": 0.0, "clip_high": 0.0}),
    ("tv", "divergence_masked", {"tv_limit": 0.05}),
    ("kl", "divergence_masked", {"kl_limit": 0.01}),
    ("detached_clip", "detached_clip", {"ratio_low": 0.7, "ratio_high": 1.4}),
]


def trainer_flags(inputs: losses.LossInputs, rule: str, loss: str, knobs: dict[str, Any]) -> torch.Tensor:
    params = {**CLIP, "divergence": rule, "ratio_cap": 10.0, **knobs}
    return losses.LOSSES[loss](inputs, params).clip_flag


def set_knobs(page: Page, rule: str, knobs: dict[str, Any]) -> None:
    page.locator("#rule").select_option(rule)
    for knob, value in zip(page.locator("#what-if input[type=number]").all(), knobs.values(), strict=True):
        knob.fill(str(value))


def flags_shown(page: Page, count: int) -> list[int]:
    found = page.locator("#tokens [data-i]").evaluate_all("all => all.map(one => one.className)")
    assert len(found) == count
    return [next(n for n, name in enumerate(FLAG_CLASSES) if name in names.split()) for names in found]


def cut_words(flags: torch.Tensor, advantages: torch.Tensor) -> list[str]:
    """`cut of counted` for positive and negative advantages."""
    counts = flags != losses.MASKED
    cut = counts & (flags != losses.KEPT)
    signs = (advantages > 0, advantages < 0)
    return [f"{int((cut & sign).sum()):,} of {int((counts & sign).sum()):,}" for sign in signs]


def test_the_what_if_is_the_trainers_arithmetic(page: Page, run: Run) -> None:
    given = columns(3, 400)
    rollouts = store(run, 3, **given)
    inputs = loss_inputs(given)
    page.goto(f"/rollouts/{rollouts[1].pk}/")
    page.keyboard.press("i")
    expect(page.locator("#colour")).to_have_value("what_if")
    seen = set()
    for rule, loss, knobs in RULES:
        set_knobs(page, rule, knobs)
        flags = trainer_flags(inputs, rule, loss, knobs)
        seen |= set(flags[1].tolist())
        assert flags_shown(page, 400) == flags[1].tolist(), rule
        advantages = torch.where(inputs.loss_mask, inputs.token_advantages * inputs.token_weights, 0)
        rows = page.locator("#what-if tbody tr")
        expect(rows).to_have_count(3)
        for row, wanted in ((0, cut_words(flags[1], advantages[1])), (1, cut_words(flags, advantages))):
            found = [text.split(" (")[0] for text in rows.nth(row).locator("td").all_inner_texts()]
            assert found == wanted, (rule, row)
        # The step is counted once somebody asks, and then follows the sliders as well; here it is this one group.
        if (count := rows.nth(2).get_by_role("button", name="Count")).count():
            count.click()
        expect(rows.nth(2).locator("th")).to_have_text("its step, 3 rollouts")
        expect(rows.nth(2).locator("td").nth(0)).to_contain_text(cut_words(flags, advantages)[0])
        expect(rows.nth(2).locator("td").nth(1)).to_contain_text(cut_words(flags, advantages)[1])
    assert seen == {0, 1, 2, 3}
    # The cap on the mismatch of engine and trainer.
    set_knobs(page, "tis", {"mismatch_cap": 1.2})
    assert inputs.recomputed_logprobs is not None
    ratio = mismatch.mismatch_ratio(inputs.recomputed_logprobs, inputs.sampler_logprobs, inputs.loss_mask)
    assert flags_shown(page, 400) == torch.where(inputs.loss_mask, (ratio > 1.2).int(), losses.MASKED)[1].tolist()


@pytest.mark.parametrize(
    ("algorithm", "params", "told"),
    [("spo", {}, "dual clip 10"), ("offpolicy_mask", {"drift_limit": 0.01}, "drift limit 0.01"), ("gspo", {}, "sequence_mean")],
)  # fmt: skip
def test_the_what_if_starts_as_the_run_trained_and_finds_the_stored_flags(
    page: Page, project: Project, algorithm: str, params: dict[str, Any], told: str
) -> None:
    run = make_run(project, algorithm, algorithm=algorithm, config={"algorithm_params": params})
    given = columns(2, 120, seed=3)
    given["token_advantages"] = [np.full(120, value, np.float32) for value in (-0.5, 0.5)]
    given["token_weights"] = [np.ones(120, np.float32)] * 2
    given["policy_logprobs"] = [values - np.float32(0.05) for values in given["policy_logprobs"]]
    inputs = loss_inputs(given)
    rule = loss_rule(run)
    flags = losses.LOSSES[rule.pop("loss")](inputs, rule).clip_flag
    assert {1, 2} & set(flags.flatten().tolist())
    first, _ = store(run, 2, clip_flag=list(flags.numpy()), **given)
    page.goto(f"/rollouts/{first.pk}/")
    page.locator("#try").click()
    expect(page.locator("#what-if-notes")).to_contain_text(told)
    expect(page.locator("#what-if-notes")).to_contain_text("Equal to the clip that the trainer stored, at every token")
    page.locator("#what-if input[type=number]").first.fill("0.9")
    expect(page.locator("#what-if-notes")).not_to_contain_text("Equal to the clip")


def test_sliders_recolour_at_once_and_live_in_the_address(page: Page, run: Run) -> None:
    given = columns(2, 200)
    rollout, other = store(run, 2, **given)
    page.goto(f"/rollouts/{rollout.pk}/?under=entropy")
    page.locator("#try").click()
    slider = page.locator("#what-if input[type=range]").first
    before = flags_shown(page, 200)
    slider.evaluate("e => { e.value = 200; e.dispatchEvent(new Event('input', { bubbles: true })) }")
    assert flags_shown(page, 200) != before
    expect(page).to_have_url(re.compile(r"rule=clipped&clip_low=0\.008"))
    after = flags_shown(page, 200)
    # A count marks its tokens and walks from one to the next.
    page.locator("#what-if tbody button").first.click()
    marked = [i for i in range(200) if "is-marked" in classes(page, i)]
    expect(page.locator("#marks")).to_contain_text(f"{len(marked)} tokens marked: cut, advantage > 0")
    page.keyboard.press("m")
    expect(page.locator("#inspector h2")).to_have_text(f"Token {marked[0]} of 0–199")
    expect(page).to_have_url(re.compile("mark=cut-positive"))
    page.reload()
    expect(page.locator("#marks")).to_contain_text(f"{len(marked)} tokens marked")
    assert flags_shown(page, 200) == after
    page.keyboard.press("n")
    page.wait_for_url(f"**/rollouts/{other.pk}/?*clip_low=0.008*")
    expect(page.locator("#what-if")).to_be_visible()
    page.keyboard.press("i")
    expect(page.locator("#what-if")).to_be_hidden()
    expect(page.locator("#colour option[value=what_if]")).to_have_count(0)


def test_fields_stay_with_the_person_but_an_address_says_its_own(page: Page, run: Run) -> None:
    rollout, _ = store(run, 2, **columns(2, 20))
    page.goto(f"/rollouts/{rollout.pk}/")
    page.locator("#colour").select_option("entropy")
    page.locator("#underline").select_option("importance_ratio")
    expect(page.locator("#legend")).to_contain_text("underline: importance ratio")
    page.goto(f"/rollouts/{rollout.pk}/")
    expect(page.locator("#colour")).to_have_value("entropy")
    expect(page.locator("#underline")).to_have_value("importance_ratio")
    expect(page).to_have_url(re.compile("color=entropy&under=importance_ratio"))
    page.goto(f"/rollouts/{rollout.pk}/?color=loss_mask")
    expect(page.locator("#colour")).to_have_value("loss_mask")
    expect(page.locator("#underline")).to_have_value("")


def test_quadrants_count_tokens_and_mark_them(page: Page, run: Run) -> None:
    # Sorted entropies 1..10 split at the value with half of them below; the divergence of tokens 0 to 4 is high.
    given: dict[str, Any] = {
        "token_ids": [[1] * 11],
        "completion": [b"2" * 11],
        "entropy": [[float(n + 1) for n in range(10)] + [99.0]],
        "x_teacher_divergence": [[5.0] * 5 + [1.0] * 5 + [99.0]],
        "loss_mask": [[1] * 10 + [0]],
        "token_advantages": [[1.0, -1.0] + [0.0] * 7 + [2.0, 9.0]],
        "sampler_logprobs": [[-1.0] * 11],
        "policy_logprobs": [[-1.0] * 11],
    }
    (rollout,) = store(run, 1, **given)
    page.goto(f"/rollouts/{rollout.pk}/?quad=x_teacher_divergence,30,50")
    cells = page.locator("[data-quadrant]")
    words = {cell.get_attribute("data-quadrant"): cell.inner_text().split() for cell in cells.all()}
    # Entropy is high from 4 on (tokens 3 to 9), the divergence from 5 on (tokens 0 to 4).
    assert {name: int(found[0]) for name, found in words.items()} == {"lh": 3, "hh": 2, "ll": 0, "hl": 5}
    assert {name: found[1] for name, found in words.items()} == {"lh": "50", "hh": "0", "ll": "0", "hl": "50"}
    page.locator("[data-quadrant=hl]").click()
    assert [i for i in range(11) if "is-marked" in classes(page, i)] == [5, 6, 7, 8, 9]
    expect(page).to_have_url(re.compile(r"quad=x_teacher_divergence.*mark=hl"))


def test_without_a_divergence_there_are_no_quadrants_and_without_ratios_no_what_if(page: Page, run: Run) -> None:
    (rollout,) = store(run, 1, token_ids=[[1, 2]], completion=[b"2+"], entropy=[[0.5, 1.0]])
    page.goto(f"/rollouts/{rollout.pk}/")
    expect(tokens(page)).to_have_count(2)
    expect(page.locator("#quadrants")).to_be_hidden()
    expect(page.locator("#try")).to_be_hidden()
    assert "importance ratio (not recorded)" in page.locator("#underline option:disabled").all_inner_texts()


def test_who_wrote_a_token_and_what_counts_is_seen_under_any_colour(page: Page, run: Run) -> None:
    (rollout,) = store(
        run, 1, token_ids=[[1, 2, 1, 3]], completion=[b"2+2 carry"], entropy=[[0.5] * 4],
        origin=[[2, 2, 4, 2]], loss_mask=[[1, 1, 0, 1]], step_boundaries=[[0, 3]],
    )  # fmt: skip
    page.goto(f"/rollouts/{rollout.pk}/?color=entropy")
    assert ["is-out" in classes(page, i) for i in range(4)] == [False, False, True, False]
    assert ["starts-step" in classes(page, i) for i in range(4)] == [False, False, False, True]
    said = page.locator(".said-by").evaluate_all("all => all.map(one => one.dataset.by)")
    assert said == ["generated", "environment", "generated"]
    expect(page.locator("#legend")).to_contain_text("left out of the loss")


# ---- reading

TURNS = [
    {"role": "system", "content": "Be **brief**."},
    {"role": "user", "content": "What is $\\frac{1}{2}$ of 84? Costs $5 or $6."},
    {
        "role": "assistant",
        "reasoning_content": "Halve it.",
        "content": "Let me see.",
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "halve", "arguments": '{"of": 84}'}}],
        "seconds": 1.25,
    },
    {"role": "tool", "tool_call_id": "1", "name": "halve", "content": "<b>42</b>\n"},
    {"role": "assistant", "content": "| a | b |\n|--:|---|\n| 1 | 2 |\n\n$$\\boxed{42}$$"},
]


def test_turns_are_read_with_thinking_tools_markdown_and_maths(page: Page, run: Run) -> None:
    (rollout,) = store(run, 1, completion=[b"raw text"], turns=[json.dumps(TURNS).encode()])
    page.goto(f"/rollouts/{rollout.pk}/?view=read")
    turns = page.locator("#read .turn")
    expect(turns).to_have_count(5)
    assert turns.locator("h3").all_inner_texts() == ["System", "User", "Model", "Tool", "Model"]
    expect(turns.nth(0).locator("strong")).to_have_text("brief")
    expect(turns.nth(1).locator("mfrac")).to_have_count(1)
    expect(turns.nth(1)).to_contain_text("Costs $5 or $6.")
    expect(turns.nth(2).locator(".part-thinking")).to_contain_text("Halve it.")
    expect(turns.nth(2).locator(".part-tool_call summary")).to_contain_text("Tool call halve")
    expect(turns.nth(2).locator(".part-tool_call pre")).to_contain_text('"of": 84')
    expect(turns.nth(2)).to_contain_text("1.25 s")
    expect(turns.nth(3).locator("pre")).to_contain_text("<b>42</b>")
    expect(turns.nth(4).locator("th.align-right")).to_have_text("a")
    expect(turns.nth(4).locator("menclose")).to_have_count(1)
    page.keyboard.press("r")
    expect(page.locator(".raw-text")).to_have_text("raw text")
    page.keyboard.press("r")
    expect(turns.first).to_be_visible()


HOSTILE_MARKDOWN = (
    """<script>window.hacked = 1</script><img src=x onerror="window.hacked=1">
[press](javascript:window.hacked=1) [out](https://example.com/x "t") ![p](https://example.com/p.png)
<a href="javascript:window.hacked=1">b</a> <style>*{display:none}</style> \u202eabc \u200b
$\\href{javascript:window.hacked=1}{x}$ $\\htmlData{a=b}{y}$ $\\includegraphics{https://example.com/q.png}$ $\\frac{$
```html
<script>window.hacked = 1</script>
```
- """
    + "[" * 3000
)


@pytest.mark.parametrize("kind", ["turns", "text"])
def test_hostile_markdown_is_shown_and_never_alive(page: Page, run: Run, kind: str) -> None:
    turns = json.dumps([{"role": "user", "content": "?"}, {"role": "assistant", "content": HOSTILE_MARKDOWN}]).encode()
    given: dict[str, Any] = (
        {"turns": [turns], "completion": [b"x"]} if kind == "turns" else {"completion": [HOSTILE_MARKDOWN.encode()]}
    )
    (rollout,) = store(run, 1, **given)
    page.goto(f"/rollouts/{rollout.pk}/?view=read")
    read = page.locator("#read")
    expect(read).to_contain_text('<script>window.hacked = 1</script><img src=x onerror="window.hacked=1">')
    expect(read).to_contain_text("U+202E")
    expect(read.locator("code.tex-error").first).to_contain_text("\\href{javascript:")
    expect(read).to_contain_text("out https://example.com/x")
    assert read.locator("a, img, script, style, iframe, [href], [src], [style], [onerror]").count() == 0


def test_a_part_that_is_read_leads_to_its_tokens(page: Page, run: Run) -> None:
    # "2" "+" " carry" "\n" "<eos>": the vocabulary joins to the text but for the special token.
    (rollout,) = store(run, 1, token_ids=[[1, 2, 3, 4, 0]], completion=[b"2+ carry\n"], entropy=[[0.5] * 5])
    page.goto(f"/rollouts/{rollout.pk}/?view=read")
    page.get_by_role("button", name="tokens 0–4").click()
    expect(page.locator("#inspector h2")).to_have_text("Tokens 0 to 4")
    expect(page.locator("#tokens")).to_be_visible()


# ---- 32 thousand tokens

COUNT = 32_768
WATCH_FIRST_TOKEN = """
new MutationObserver((_, watcher) => {
  if (!document.querySelector("#tokens [data-i]")) return;
  watcher.disconnect();
  requestAnimationFrame(() => requestAnimationFrame(() => { window.firstToken = performance.now() }));
}).observe(document, { childList: true, subtree: true });
"""
SCROLL = """async () => {
  const times = [];
  const height = document.documentElement.scrollHeight;
  let last = performance.now();
  for (let frame = 0; frame < 120; frame += 1) {
    scrollTo(0, height * frame / 120);
    await new Promise(requestAnimationFrame);
    const now = performance.now();
    times.push(now - last);
    last = now;
  }
  return times.sort((a, b) => a - b);
}"""


@pytest.fixture
def long_rollout(run: Run) -> Rollout:
    given = columns(1, COUNT)
    given["token_ids"] = [np.tile([1, 2, 3, 1, 1, 3, 2, 4], COUNT // 8).astype(np.int32)]
    given["completion"] = [b"2+ carry22 carry+\n" * (COUNT // 8)]
    (rollout,) = store(run, 1, **given)
    return rollout


def test_32_thousand_tokens_scroll_and_recolour_smoothly(page: Page, long_rollout: Rollout) -> None:
    page.add_init_script(WATCH_FIRST_TOKEN)
    page.goto(f"/rollouts/{long_rollout.pk}/")
    expect(tokens(page)).to_have_count(COUNT)
    first_token = page.evaluate("window.firstToken")
    frames = page.evaluate(SCROLL)
    page.evaluate("scrollTo(0, 0)")
    page.locator("#try").click()
    recolour = page.evaluate("""async () => {
      const slider = document.querySelector("#what-if input[type=range]");
      const spent = [];
      for (let value = 100; value < 600; value += 50) {
        const start = performance.now();
        slider.value = value;
        slider.dispatchEvent(new Event("input", { bubbles: true }));
        await new Promise(requestAnimationFrame);
        spent.push(performance.now() - start);
      }
      return spent.sort((a, b) => a - b);
    }""")
    told = {"first token": first_token, "median frame": frames[60], "95 %": frames[113], "recolour": recolour[5]}
    # A busy machine draws slowly; a page that lays out all its tokens at every frame takes ten times as long.
    assert first_token < 3000 and frames[60] < 60 and recolour[5] < 250, told
    # What was off the screen takes on its colour when it comes near.
    page.keyboard.press("End")
    tokens(page).nth(COUNT - 1).scroll_into_view_if_needed()
    expect(tokens(page).nth(COUNT - 1)).to_have_class(re.compile("nm"))


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")])
def test_everything_open_is_accessible_and_fits(
    page: Page, run: Run, violations: Callable[[Page], list[str]], width: int, scheme: Any
) -> None:
    given = columns(2, 60)
    rollout, _ = store(run, 2, **given, turns=[json.dumps(TURNS).encode()] * 2)
    page.set_viewport_size({"width": width, "height": 844})
    page.emulate_media(color_scheme=scheme)
    for query in ("rule=tv&tv_limit=0.01&quad=probability_change,80,50&mark=cut-positive&under=entropy", "view=read"):
        page.goto(f"/rollouts/{rollout.pk}/?{query}")
        page.wait_for_load_state("networkidle")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), query
        assert violations(page) == [], query


def test_rules_that_cannot_be_asked_say_so_without_widening_a_narrow_page(page: Page, run: Run) -> None:
    given = columns(2, 12)
    del given["recomputed_logprobs"]
    rollout, _ = store(run, 2, **given)
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"/rollouts/{rollout.pk}/?rule=clipped&clip_low=0.1")
    expect(page.locator("#what-if option:disabled").first).to_contain_text("needs recomputed log-probabilities")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
