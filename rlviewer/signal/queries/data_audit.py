"""Whether the trainer learned from what it should: every check by step, and the rollouts that fail one, at the token at fault."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlviewer.charts import curves, theme
from rlviewer.charts.chart import Chart
from rlviewer.charts.curves import Curve, CurveChart
from rlviewer.runs.models import Rollout, Run, Step, TokenChunk
from rlviewer.runs.queries.rollout import vocabulary_pieces
from rlviewer.runs.queries.step import TRAIN, number_from
from rlviewer.runs.tokens import PackedRollout, unpack_chunk
from rlviewer.signal import sums
from rlviewer.signal.measures.audit import CHECKS, Check, means_dead
from rlviewer.signal.models import RolloutSums
from rlviewer.signal.queries.columns import Column, step_columns
from rlviewer.signal.queries.heavy_tokens import token_text
from rlviewer.signal.steps import StepRange

LISTED = 20
NEIGHBOURS = 4  # tokens shown on each side of the one at fault


@dataclass(frozen=True, slots=True)
class CheckRow:
    """One check over the steps shown. `state` is failed, passed, not run or not applicable."""

    check: Check
    state: str
    checked: int
    failed: int
    first_step: int | None
    last_step: int | None
    href: str
    note: str = ""

    @property
    def rate(self) -> float | None:
        return self.failed / self.checked if self.checked else None


@dataclass(frozen=True, slots=True)
class Neighbour:
    text: str
    counts: bool
    at_fault: bool


@dataclass(frozen=True, slots=True)
class FailingRollout:
    rollout: int
    number: int
    group: int
    token: int
    href: str
    neighbours: Sequence[Neighbour]


@dataclass(frozen=True, slots=True)
class Failing:
    """Rollouts of one step that fail one check, at most LISTED."""

    check: Check
    step: int
    count: int
    rollouts: Sequence[FailingRollout]
    earlier: int | None  # step that fails it too
    later: int | None


@dataclass(frozen=True, slots=True)
class DataAudit:
    step_count: int
    done: int  # steps that are worked out
    rollouts: int  # in them
    rows: Sequence[CheckRow]  # failed first
    charts: Sequence[Chart]
    failing: Failing | None

    @property
    def ran(self) -> int:
        return sum(row.checked > 0 for row in self.rows)

    @property
    def all_pass(self) -> bool:
        return self.done > 0 and not any(row.failed for row in self.rows)


def data_audit(run: Run, steps: StepRange, query: Mapping[str, str]) -> DataAudit:
    """One query; four more for the rollouts of one step that fail the check which `check` names."""
    of = step_columns(run, steps, "audit_checked", "audit_failed", stored=("rollout_count",))
    rows = [_row(run, place, check, of) for place, check in enumerate(CHECKS.values())]
    check = CHECKS.get(query.get("check", ""))
    order = ("failed", "passed", "not applicable", "not run")
    return DataAudit(
        step_count=len(of["index"]),
        done=sum(row is not None for row in of["audit_checked"]),
        rollouts=sum(count for count, row in zip(of["rollout_count"], of["audit_checked"], strict=True) if row),
        rows=sorted(rows, key=lambda row: (order.index(row.state), -row.failed)),
        charts=_charts(rows, of),
        failing=None if check is None else _failing(run, check, of, number_from(query.get("step"))),
    )


def _at(values: Column, place: int) -> list[int]:
    """One check's counts; a step that is not worked out, or was before the check was added, has none."""
    return [row[place] if row and place < len(row) else 0 for row in values]


def _row(run: Run, place: int, check: Check, of: dict[str, Column]) -> CheckRow:
    checked, failed = sum(_at(of["audit_checked"], place)), _at(of["audit_failed"], place)
    at = [step for step, count in zip(of["index"], failed, strict=True) if count]
    is_meant = check.key == "dead" and not checked and means_dead(run)
    state = "failed" if at else "passed" if checked else "not applicable" if is_meant else "not run"
    note = ""
    if is_meant:
        note = "This recipe gives groups of equal rewards an advantage on purpose."
    elif check.key == "dead" and state == "not run":
        state, note = "not applicable", "No group of equal rewards, or no advantage recorded."
    elif check.key == "truncated" and at and run.config.get("truncated", "keep") == "keep":
        note = "The run is set to train on them as judged (truncated = keep)."
    return CheckRow(
        check=check,
        state=state,
        checked=checked,
        failed=sum(failed),
        first_step=at[0] if at else None,
        last_step=at[-1] if at else None,
        href=f"?check={check.key}" if at else "",
        note=note,
    )


def _charts(rows: Sequence[CheckRow], of: dict[str, Column]) -> list[Chart]:
    drawn: list[Curve] = []
    for place, row in enumerate(rows):
        if not row.failed:
            continue
        pairs = zip(_at(of["audit_failed"], place), _at(of["audit_checked"], place), strict=True)
        rates = [failed / checked if checked else None for failed, checked in pairs]
        link = f"?check={row.check.key}&step={{x}}#failing"
        drawn.append(Curve(row.check.title, of["index"], rates, theme.colour_of(len(drawn)), links=link))
    if not drawn:
        return []
    figure = curves.figure(CurveChart("share of rollouts", drawn, is_share=True))
    return [
        Chart("rates", "Rollouts that fail", "share of those checked", figure, tall=True,
              meaning="Each check over the rollouts of a step that it could be asked of.", note="Exact.")
    ]  # fmt: skip


def _failing(run: Run, check: Check, of: dict[str, Column], asked: int | None) -> Failing | None:
    place = list(CHECKS).index(check.key)
    counts: dict[int, int] = {step: n for step, n in zip(of["index"], _at(of["audit_failed"], place), strict=True) if n}
    if not counts:
        return None
    # A step that does not fail shows the newest one that does.
    index = asked if asked is not None and asked in counts else max(counts)
    step = Step.objects.get(run=run, split=TRAIN, is_current=True, index=index)
    rows = sums.unpack(RolloutSums.objects.values_list("payload", flat=True).get(step=step))
    at = rows.get(f"audit_{check.key}")
    held = (
        {} if at is None else {int(pk): int(token) for pk, token in zip(rows["rollout"], at, strict=True) if token >= 0}
    )
    return Failing(
        check=check,
        step=index,
        count=len(held),
        rollouts=_rollouts(run, dict(list(held.items())[:LISTED])),
        earlier=max((other for other in counts if other < index), default=None),
        later=min((other for other in counts if other > index), default=None),
    )


def _rollouts(run: Run, held: Mapping[int, int]) -> list[FailingRollout]:
    found = Rollout.objects.filter(pk__in=held).order_by("group__index", "number")
    places = list(found.values_list("pk", "group__index", "number", "chunk_id", "position"))
    payloads = TokenChunk.objects.filter(pk__in={row[3] for row in places}).values_list("pk", "payload")
    chunks = {pk: unpack_chunk(payload, columns=frozenset({"token_ids", "loss_mask"})) for pk, payload in payloads}
    pieces = vocabulary_pieces(run.vocabulary_id) if run.vocabulary_id is not None else None
    return [
        FailingRollout(
            rollout=pk,
            group=group,
            number=number,
            token=held[pk],
            href=f"/rollouts/{pk}/?token={held[pk]}",
            neighbours=_neighbours(chunks[chunk].rollouts[position], held[pk], pieces),
        )
        for pk, group, number, chunk, position in places
    ]


def _neighbours(one: PackedRollout, token: int, pieces: Sequence[bytes] | None) -> list[Neighbour]:
    """Tokens around the one at fault, and whether each counts; none where no token is recorded."""
    mask = one.columns.get("loss_mask")
    length = max((len(column) for column in one.columns.values()), default=0)
    return [
        Neighbour(token_text(one.columns, place, pieces), mask is None or bool(mask[place]), place == token)
        for place in range(max(0, token - NEIGHBOURS), min(length, token + NEIGHBOURS + 1))
    ]
