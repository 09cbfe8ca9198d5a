"""Pages of one group and of one prompt through all its visits. Whoever is a member of the project reads."""

from django.contrib.auth.decorators import login_required
from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from rlviewer.accounts.access import SignedInRequest
from rlviewer.runs.queries.group import GroupFilters, group_page, visible_group, whole_text
from rlviewer.runs.queries.prompt import PromptFilters, prompt_page, visible_prompt
from rlviewer.runs.queries.prompt_list import KINDS, SORTS, PromptListFilters, prompt_list
from rlviewer.runs.queries.run import visible_run
from rlviewer.runs.queries.step import number_from
from rlviewer.runs.views import run_context

KIND_WORDS = {
    "all": ("All", "Every prompt of the run's training"),
    "swinging": ("Swinging", "Success differed between visits"),
    "forgotten": ("Forgotten", "Solved once, and at a later visit none was right"),
    "never": ("Never solved", "No rollout of any visit was right"),
    "solved": ("Solved", "At least one rollout of a visit was right"),
}


@require_GET
@login_required
def group_detail(request: SignedInRequest, group_id: int) -> HttpResponse:
    """One group side by side; `?ref=` is the rollout to compare with, `?whole=` asks for all of one text."""
    group, filters = visible_group(request.user, group_id), GroupFilters.from_query(request.GET)
    whole = number_from(request.GET.get("whole"))
    if whole is not None and request.headers.get("HX-Request"):
        shown = whole_text(group, whole, filters.reference)
        return render(request, "runs/_text.html", {"shown": shown, "label": f"Completion of rollout {whole}"})
    page = group_page(group, filters)
    context = {"page": page, "group": group, "run": page.run, "project": page.run.project, "nav": "runs"}
    return render(request, "runs/group.html", context)


@require_GET
@login_required
def prompt_detail(request: SignedInRequest, prompt_id: int) -> HttpResponse:
    """One prompt through all steps and runs of its project; `?a=` and `?b=` are the rollouts whose words are compared."""
    prompt = visible_prompt(request.user, prompt_id)
    filters = PromptFilters.from_query(request.GET)
    page = prompt_page(prompt, filters)
    context = {
        "page": page,
        "prompt": prompt,
        "project": prompt.project,
        "nav": "runs",
        "live_url": f"/ws/projects/{prompt.project_id}/",
        "measures": [
            {"label": label, "href": filters.query(y=name), "current": name == filters.measure}
            for name, label in (("reward", "Reward"), ("length", "Length"))
        ],
        "picks": [
            {"label": label, "href": filters.query(pick=pick), "current": pick == filters.pick}
            for pick, label in (("", "opens the rollout"), ("a", "chooses A"), ("b", "chooses B"))
        ],
        "swapped": page.pair and filters.query(a=page.pair.b.rollout.pk, b=page.pair.a.rollout.pk) + "#pair",
    }
    return render(request, "runs/_prompt.html" if request.headers.get("HX-Request") else "runs/prompt.html", context)


@require_GET
@login_required
def run_prompts(request: SignedInRequest, run_id: int) -> HttpResponse:
    """The prompts of a run's training by how far their success swung; `?kind=` and the step of the first success choose."""
    run = visible_run(request.user, run_id)
    filters = PromptListFilters.from_query(request.GET)
    found = prompt_list(run, filters)
    kinds = [
        {"key": kind, "label": KIND_WORDS[kind][0], "help": KIND_WORDS[kind][1], "count": found.counts[kind]}
        for kind in KINDS
    ]
    heads = [
        {
            "label": label,
            "help": f"{meaning}. Press to sort.",
            "direction": ("descending" if filters.is_down else "ascending") if name == filters.sort else "",
            "sort": f"{'-' if (not filters.is_down if name == filters.sort else is_high_first) else ''}{name}",
        }
        for name, (label, is_high_first, meaning) in SORTS.items()
    ]
    context = run_context(request, run, "prompts") | {"found": found, "kinds": kinds, "heads": heads}
    return render(request, "runs/prompts.html", context)
