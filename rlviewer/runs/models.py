"""The heart: what a run did, down to the token.

`Rollout` is narrow on purpose: lists and statistics read only it. Texts and per-token arrays lie packed in `TokenChunk`,
one row per group of up to 64 rollouts. A scored rollout is immutable; what arrives later is appended beside it.
"""

import uuid
from typing import Self

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from rlviewer.accounts.models import Project, User


class RunState(models.TextChoices):
    QUEUED = "queued", "Queued"
    STARTING = "starting", "Starting"
    RUNNING = "running", "Running"
    PAUSED = "paused", "Paused"
    STOPPING = "stopping", "Stopping"
    SILENT = "silent", "Silent"
    FINISHED = "finished", "Finished"
    STOPPED = "stopped", "Stopped"
    FAILED = "failed", "Failed"

    @property
    def is_terminal(self) -> bool:
        return self in {RunState.FINISHED, RunState.STOPPED, RunState.FAILED}


ACTIVE_STATES = [s for s in RunState if not s.is_terminal]


class StopReason(models.IntegerChoices):
    STOP = 0, "stop"
    LENGTH = 1, "length"
    ERROR = 2, "error"


class Vocabulary(models.Model):
    """The text of every token id of one tokenizer, shared by all runs that use it."""

    sha256 = models.BinaryField(max_length=32, unique=True)  # of the payload
    size = models.IntegerField()  # number of pieces
    payload = models.BinaryField()  # as training.vocabulary packs it


class RunQuerySet(models.QuerySet["Run"]):
    def visible_to(self, user: User) -> Self:
        return self if user.is_superuser else self.filter(project__members__user=user)


class Run(models.Model):
    """One training. The summary columns are kept true by `ingest.services.store_batch`."""

    uid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="runs")
    name = models.CharField(max_length=200)
    state = models.CharField(max_length=10, choices=RunState.choices, default=RunState.QUEUED)
    state_reason = models.TextField(blank=True)
    # What a person asked for; the worker relays it to the trainer.
    wanted = models.CharField(max_length=10, default="run")
    wanted_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    queue = models.CharField(max_length=20, default="cpu")

    algorithm = models.CharField(max_length=60)
    task = models.CharField(max_length=120)
    model = models.CharField(max_length=300)
    base_model = models.CharField(max_length=300, blank=True)
    dataset = models.CharField(max_length=300, blank=True)
    seed = models.BigIntegerField(default=0)
    steps_planned = models.IntegerField(default=0)
    config = models.JSONField(default=dict)
    config_toml = models.TextField(blank=True)
    plugins = models.JSONField(default=dict)  # hook -> {name, version}
    code_version = models.CharField(max_length=80, blank=True)
    hardware = models.JSONField(default=dict)
    # Null: the source told nothing of its tokenizer; pages then show token ids.
    vocabulary = models.ForeignKey(Vocabulary, null=True, on_delete=models.SET_NULL, db_index=False, related_name="+")
    # Runs that are equal but for the seed share it: a digest of the config without seed and name.
    repeat_group = models.CharField(max_length=64, blank=True)
    source = models.CharField(max_length=40, default="rlviewer")  # which trainer wrote it
    tags = ArrayField(models.CharField(max_length=60), default=list, blank=True)
    archived = models.BooleanField(default=False)

    created_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="runs")
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    current_attempt = models.IntegerField(default=1)
    last_step = models.IntegerField(null=True)  # newest stored training step
    rollout_count = models.BigIntegerField(default=0)  # all stored, every attempt and split
    token_count = models.BigIntegerField(default=0)
    latest_reward = models.FloatField(null=True)
    base_pass = models.FloatField(null=True)  # held-out pass@1 at checkpoint step 0
    latest_pass = models.FloatField(null=True)
    latest_dead_share = models.FloatField(null=True)

    objects = RunQuerySet.as_manager()

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(state__in=RunState.values), name="run_state_known"),
            models.CheckConstraint(condition=Q(wanted__in=["run", "pause", "stop"]), name="run_wanted_known"),
        ]
        indexes = [
            # The list of a project's runs, newest first.
            models.Index(fields=["project", "-id"], name="run_by_project"),
            # The sweeper looks only at runs that are not over.
            models.Index(fields=["state"], name="run_active", condition=Q(state__in=ACTIVE_STATES)),
            # Seeds of one configuration, drawn as one band.
            models.Index(fields=["repeat_group"], name="run_repeats"),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def is_over(self) -> bool:
        return RunState(self.state).is_terminal


class Attempt(models.Model):
    """One try of a run under a lease. A resume makes a new one."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="attempts")
    number = models.IntegerField()
    state = models.CharField(max_length=10, choices=RunState.choices, default=RunState.QUEUED)
    reason = models.TextField(blank=True)
    resumed_from_step = models.IntegerField(null=True)  # checkpoint step; null from the base model
    host = models.CharField(max_length=200, blank=True)
    pid = models.IntegerField(null=True)
    exit_code = models.IntegerField(null=True)
    signal = models.IntegerField(null=True)
    deaths = models.IntegerField(default=0)
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["run", "number"], name="attempt_number_unique"),
            models.CheckConstraint(condition=Q(number__gte=1), name="attempt_number_from_one"),
            models.CheckConstraint(condition=Q(state__in=RunState.values), name="attempt_state_known"),
        ]


class Step(models.Model):
    """One stored batch of rollouts: a training step, or an evaluation of the checkpoint after `index` steps."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="steps")
    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="steps", db_index=False)
    index = models.IntegerField()
    split = models.CharField(max_length=40, default="train")  # "train", or the evaluation set's name
    # True for the newest attempt that stored this (run, split, index); lists and counts use only those unless asked.
    is_current = models.BooleanField(default=True)
    group_count = models.IntegerField(default=0)
    rollout_count = models.IntegerField(default=0)
    kept_count = models.IntegerField(default=0)  # rollouts that entered the update
    reward_mean = models.FloatField(null=True)
    reward_std = models.FloatField(null=True)
    pass_rate = models.FloatField(null=True)  # share of correct among scored rollouts
    dead_groups = models.IntegerField(default=0)
    dead_right = models.IntegerField(default=0)  # dead groups with every rollout correct
    dead_wrong = models.IntegerField(default=0)  # dead groups with no rollout correct
    unscored_count = models.IntegerField(default=0)  # NaN or missing rewards, left out of the means
    length_mean = models.FloatField(null=True)
    truncated_share = models.FloatField(null=True)
    entropy_mean = models.FloatField(null=True)
    tokens_sampled = models.BigIntegerField(default=0)
    tokens_trained = models.BigIntegerField(default=0)
    phase_seconds = models.JSONField(default=dict)  # sample, score, learn, sync, record
    events = models.JSONField(default=list)  # promotions, retirements, alarms: {kind, text, ...}
    written_at = models.DateTimeField(null=True)  # the trainer's clock; never ordered by
    stored_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["attempt", "split", "index"], name="step_unique_in_attempt"),
            # Two attempts cannot both be current for a step; also finds the current steps of a run in order.
            models.UniqueConstraint(
                fields=["run", "split", "index"], condition=Q(is_current=True), name="step_one_current"
            ),
        ]


class Prompt(models.Model):
    """What the policy was given, shared by all runs of a project, found by the digest of its content."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="prompts", db_index=False)
    digest = models.BinaryField(max_length=16)  # blake2b-128 of generator, text and answer
    generator = models.CharField(max_length=120, blank=True)
    parameters = models.JSONField(default=dict)
    difficulty = models.FloatField(null=True)
    text = models.BinaryField()
    answer = models.BinaryField(null=True)
    oracle_trace = models.BinaryField(null=True)  # JSON: steps with their boundaries, as the generator gave them

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "digest"], name="prompt_unique_in_project")]


class PromptTracker(models.Model):
    """What one run knows of one prompt: the base model's pass rate, the sampler's running value."""

    pk = models.CompositePrimaryKey("run_id", "prompt_id")
    run = models.ForeignKey(Run, on_delete=models.CASCADE, db_index=False)
    prompt = models.ForeignKey(Prompt, on_delete=models.CASCADE, db_index=False)
    base_pass_rate = models.FloatField(null=True)
    base_samples = models.IntegerField(null=True)
    value = models.FloatField(null=True)
    effective_count = models.FloatField(null=True)
    last_seen_step = models.IntegerField(null=True)
    sampling_weight = models.FloatField(null=True)
    queue_state = models.CharField(max_length=20, blank=True)


class Group(models.Model):
    """Rollouts of one prompt at one step."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, db_index=False)
    step = models.ForeignKey(Step, on_delete=models.CASCADE, related_name="groups", db_index=False)
    prompt = models.ForeignKey(Prompt, on_delete=models.PROTECT)  # index: one prompt through all steps and runs
    index = models.IntegerField()  # number in the step, from 0
    size_asked = models.IntegerField()
    size_got = models.IntegerField()
    reward_mean = models.FloatField(null=True)
    reward_std = models.FloatField(null=True)  # divides by size - 1
    success_share = models.FloatField(null=True)
    # Why it teaches nothing: "all_right", "all_wrong", "same_score", "single", "unscored"; empty for a live group.
    dead_cause = models.CharField(max_length=20, blank=True)
    kept = models.BooleanField(default=True)
    drop_reason = models.CharField(max_length=60, blank=True)
    stratum_keys = models.JSONField(null=True)
    sampling = models.JSONField(default=dict)  # temperature, top_p, ... of this group's sampler
    task_seed = models.BigIntegerField(null=True)  # the generator's, gives the same prompt again

    class Meta:
        constraints = [
            # Also the page of a step: its groups in order.
            models.UniqueConstraint(fields=["step", "index"], name="group_unique_in_step"),
        ]


class TokenChunk(models.Model):
    """Texts and per-token arrays of up to 64 rollouts of a group, packed exactly by `runs.tokens`."""

    group = models.ForeignKey(Group, on_delete=models.CASCADE, related_name="chunks", db_index=False)
    part = models.SmallIntegerField(default=0)  # 64 rollouts each; later arrivals are further parts
    kind = models.CharField(max_length=20, default="sampled")  # "sampled", or who appended it later
    rollout_count = models.SmallIntegerField()
    payload = models.BinaryField()
    sha256 = models.BinaryField(max_length=32)  # of the payload, checked by fsck

    class Meta:
        constraints = [models.UniqueConstraint(fields=["group", "kind", "part"], name="chunk_unique_in_group")]


class Rollout(models.Model):
    """One completion with its reward: the narrow row."""

    # Only the group is a foreign key in the database: each costs 5 us a row of COPY, and fsck proves the others.
    run_id = models.BigIntegerField()
    step = models.ForeignKey(
        Step, on_delete=models.CASCADE, related_name="rollouts", db_index=False, db_constraint=False
    )
    group = models.ForeignKey(Group, on_delete=models.CASCADE, related_name="rollouts", db_index=False)
    chunk = models.ForeignKey(TokenChunk, on_delete=models.CASCADE, db_index=False, db_constraint=False)
    position = models.SmallIntegerField()  # in its chunk
    number = models.SmallIntegerField()  # in its group, from 0
    reward = models.FloatField(null=True)  # null: not scored; NaN is kept as it came
    advantage = models.FloatField(null=True)
    correct = models.BooleanField(null=True)
    kept = models.BooleanField(default=True)
    drop_reason = models.CharField(max_length=60, blank=True, default="")
    stop_reason = models.SmallIntegerField(choices=StopReason.choices)
    length_tokens = models.IntegerField()
    policy_version = models.IntegerField(null=True)  # steps trained when it was sampled
    staleness_steps = models.IntegerField(null=True)
    entropy_mean = models.FloatField(null=True)  # nats per counted token
    logprob_mean = models.FloatField(null=True)  # of the sampler, nats per counted token
    clip_share = models.FloatField(null=True)
    parsed_answer = models.TextField(null=True)  # escaped by lib.text, shown in lists
    answer_cluster = models.IntegerField(null=True)  # equal answers of a group share it

    class Meta:
        constraints = [
            # Also reads a group's rollouts in order.
            models.UniqueConstraint(fields=["group", "number"], name="rollout_unique_in_group"),
        ]
        indexes = [
            # The browser's default order and keyset: rollouts of a run in the order they were stored.
            models.Index(fields=["run_id", "id"], name="rollout_by_run"),
            # Pages of a run sorted by these, from any key on, also among equal values. Each costs 1 to 2 us a row of COPY.
            models.Index(fields=["run_id", "reward", "id"], name="rollout_by_reward"),
            models.Index(fields=["run_id", "advantage", "id"], name="rollout_by_advantage"),
            models.Index(fields=["run_id", "length_tokens", "id"], name="rollout_by_length"),
        ]


class RewardPart(models.Model):
    """One span of a rollout's reward; an outcome reward is one part at the last token."""

    pk = models.CompositePrimaryKey("rollout_id", "part")
    rollout = models.ForeignKey(
        Rollout, on_delete=models.CASCADE, related_name="reward_parts", db_index=False, db_constraint=False
    )
    part = models.SmallIntegerField()
    token_start = models.IntegerField()
    token_end = models.IntegerField()
    value = models.FloatField()
    kind = models.CharField(max_length=20)  # outcome, process, format, penalty, shaping
    name = models.CharField(max_length=60, default="")
    version = models.CharField(max_length=20, default="")

    @property
    def last_token(self) -> int:
        """The last token that it is for; `token_end` is the one after."""
        return max(self.token_start, self.token_end - 1)


class MetricChunk(models.Model):
    """Up to 256 points of one metric of one attempt, in the order they were stored."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, db_index=False)
    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, db_index=False)
    name = models.CharField(max_length=120)
    part = models.IntegerField(default=0)
    steps = ArrayField(models.IntegerField())
    values = ArrayField(models.FloatField())  # NaN and infinities as they came

    class Meta:
        constraints = [
            # Also the read of a curve: all parts of one name of one run.
            models.UniqueConstraint(fields=["run", "name", "attempt", "part"], name="metric_chunk_unique"),
        ]


class Checkpoint(models.Model):
    """A saved model, optimiser and generator state; found on disk by run and step, never by a stored path."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="checkpoints", db_index=False)
    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE)
    step = models.IntegerField()  # steps trained so far
    size_bytes = models.BigIntegerField()
    sha256 = models.CharField(max_length=64, blank=True)
    host = models.CharField(max_length=200, blank=True)
    is_deleted = models.BooleanField(default=False)
    saved_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "attempt", "step"], name="checkpoint_unique")]
