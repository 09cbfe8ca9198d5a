"""What Optuna knows of a sweep: a study in its own tables, in the schema `optuna` of the same database.

Trials are ours; the study only chooses the next point and says which trial to end. It is told of each trial by number, and
telling it twice changes nothing.
"""

import json
import logging
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import optuna
from django.db import connection
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import RDBStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy.engine import URL
from sqlalchemy.pool import NullPool

from rlviewer.sweeps.spec import Parameter, Point, SweepSpec

SCHEMA = "optuna"
FIRST_TRIALS = 5  # before a pruner ends one

optuna.logging.set_verbosity(optuna.logging.WARNING)
logging.getLogger("alembic").setLevel(logging.WARNING)


class Memory:
    """The study of one version of a sweep's search space. Used by one worker at a time, who holds the sweep's row."""

    def __init__(self, uid: str, version: int, spec: SweepSpec, *, most_steps: int) -> None:
        self.spec = spec
        self.space = {key: _distribution(parameter) for key, parameter in spec.space.items()}
        self.study = optuna.create_study(
            storage=storage(_address()),
            study_name=f"sweep-{uid}-{version}",
            direction=StudyDirection[spec.direction.upper()],
            sampler=_sampler(spec),
            pruner=_pruner(spec, most_steps),
            load_if_exists=True,
        )

    def ask(self, taken: set[int], wanted: Point | None = None) -> tuple[int, Point]:
        """Number and point of the next trial, `wanted` if given.

        A trial that was chosen and then forgotten (its worker was killed; it is not in `taken`) comes first.
        """
        if wanted is not None:
            self._enqueue(_to_optuna(self.spec, wanted))
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if trial.number not in taken and set(trial.params) == set(self.space):
                return trial.number, _from_optuna(self.spec, trial.params)
        asked = self.study.ask(self.space)
        return asked.number, _from_optuna(self.spec, asked.params)

    def _enqueue(self, params: dict[str, Any]) -> None:
        known = self.study.get_trials(deepcopy=False)
        if not any(trial.params == params or trial.system_attrs.get("fixed_params") == params for trial in known):
            self.study.enqueue_trial(params)

    def report(self, number: int, values: Mapping[int, float]) -> None:
        """What the running trial came to so far, by step; what the pruners compare."""
        frozen = self._frozen(number)
        if frozen.state.is_finished():
            return
        trial = optuna.trial.Trial(self.study, frozen._trial_id)
        for step, value in sorted(values.items()):
            if step not in frozen.intermediate_values:
                trial.report(value, step)

    def falls_behind(self, number: int) -> bool:
        """Whether the pruner would end the running trial."""
        frozen = self._frozen(number)
        return bool(frozen.intermediate_values) and self.study.pruner.prune(self.study, frozen)

    def complete(self, number: int, value: float) -> None:
        self.study.tell(number, value, skip_if_finished=True)

    def prune(self, number: int) -> None:
        self.study.tell(number, state=TrialState.PRUNED, skip_if_finished=True)

    def fail(self, number: int) -> None:
        self.study.tell(number, state=TrialState.FAIL, skip_if_finished=True)

    def learn(self, trial_number: int, point: Point, value: float) -> None:
        """Tell of a completed trial of an earlier search space, once, if this space still holds its point."""
        if any(one.user_attrs.get("trial") == trial_number for one in self.study.get_trials(deepcopy=False)):
            return
        try:
            known = create_trial(
                params=_to_optuna(self.spec, point),
                distributions=self.space,
                value=value,
                user_attrs={"trial": trial_number},
            )
        except (ValueError, KeyError):
            return  # outside what is searched now
        self.study.add_trial(known)

    def _frozen(self, number: int) -> FrozenTrial:
        return self.study.get_trials(deepcopy=False)[number]


@lru_cache(maxsize=1)
def storage(address: URL) -> RDBStorage:
    """Optuna's tables, made at the first use; two workers that begin at once wait for each other."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(hashtext('optuna tables'))")
        try:
            return RDBStorage(
                address.render_as_string(hide_password=False),
                engine_kwargs={"poolclass": NullPool},
                skip_table_creation=False,
            )
        finally:
            cursor.execute("SELECT pg_advisory_unlock(hashtext('optuna tables'))")


def _address() -> URL:
    """The site's own database as SQLAlchemy names it; a folder as host is the folder of a Unix socket."""
    found = connection.settings_dict
    options = {key: str(value) for key, value in found["OPTIONS"].items() if key not in {"pool", "options"}}
    return URL.create(
        "postgresql+psycopg",
        username=found["USER"] or None,
        password=found["PASSWORD"] or None,
        port=int(found["PORT"]) if found["PORT"] else None,
        database=found["NAME"],
        query={**options, "host": found["HOST"] or "localhost", "options": f"-csearch_path={SCHEMA}"},
    )


def _sampler(spec: SweepSpec) -> optuna.samplers.BaseSampler:
    if spec.sampler == "tpe":
        # Trials in flight count as poor, so that neighbours of one are not all tried at once.
        return optuna.samplers.TPESampler(seed=None, constant_liar=True)
    if spec.sampler == "cmaes":
        return optuna.samplers.CmaEsSampler(warn_independent_sampling=False)
    return optuna.samplers.RandomSampler()


def _pruner(spec: SweepSpec, most_steps: int) -> optuna.pruners.BasePruner:
    if spec.pruner == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=FIRST_TRIALS)
    if spec.pruner == "hyperband":
        return optuna.pruners.HyperbandPruner(min_resource=1, max_resource=max(most_steps, 1))
    return optuna.pruners.NopPruner()


def _distribution(parameter: Parameter) -> BaseDistribution:
    """Choices of any kind are told to Optuna as JSON."""
    if parameter.choices:
        return CategoricalDistribution([json.dumps(value) for value in parameter.choices])
    low, high, step = parameter.low, parameter.high, parameter.step
    assert low is not None and high is not None
    if parameter.is_int:
        return IntDistribution(int(low), int(high), log=parameter.log, step=int(step or 1))
    return FloatDistribution(low, high, log=parameter.log, step=step)


def _to_optuna(spec: SweepSpec, point: Point) -> dict[str, Any]:
    return {key: json.dumps(point[key]) if parameter.choices else point[key] for key, parameter in spec.space.items()}


def _from_optuna(spec: SweepSpec, params: Mapping[str, Any]) -> Point:
    """In the order of the search space."""
    return {key: json.loads(params[key]) if parameter.choices else params[key] for key, parameter in spec.space.items()}
