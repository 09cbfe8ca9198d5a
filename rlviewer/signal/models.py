"""What each stored step taught, worked out after storing: numbers of steps and groups, and sums of every rollout.

All of it follows from stored rollouts: dropping the tables loses nothing, the sweep fills them again.
"""

from django.contrib.postgres.fields import ArrayField
from django.db import models

from rlviewer.runs.causes import CAUSES
from rlviewer.runs.models import Group, Step
from rlviewer.signal.names import RATIO_QUANTILES, SIGNS


class StepSignal(models.Model):
    """One row a step. A number is null where the source lacks what it is made of."""

    step = models.OneToOneField(Step, on_delete=models.CASCADE, primary_key=True)
    # Behind the step's own count when a later batch added to it; behind `services.VERSION` when measures changed.
    rollout_count = models.IntegerField()
    version = models.SmallIntegerField()
    computed_at = models.DateTimeField(auto_now=True)

    # Dead groups by cause, in the order of `causes.CAUSES`: how many, and the tokens sampled for them.
    cause_groups = ArrayField(models.IntegerField(), size=len(CAUSES))
    cause_tokens = ArrayField(models.BigIntegerField(), size=len(CAUSES))
    flat_share = models.FloatField(null=True)  # of rollouts with abs(advantage) below `groups.FLAT_ADVANTAGE`
    abs_advantage_mean = models.FloatField(null=True)  # of rollouts that have an advantage

    # How far the update moved from the weights that sampled (`measures.trust`), over the counted tokens.
    counted_tokens = models.BigIntegerField(null=True)
    counted_rollouts = models.IntegerField(null=True)  # with a counted token
    counted_prompts = models.IntegerField(null=True)
    ratio_quantiles = ArrayField(models.FloatField(), size=len(RATIO_QUANTILES), null=True)
    ess_share = models.FloatField(null=True)  # (sum w)^2 / (n sum w^2) of the ratios
    # Tokens by the sign of the advantage, in the order of `names.SIGNS`.
    counted_by_sign = ArrayField(models.BigIntegerField(), size=len(SIGNS), null=True)
    clipped_by_sign = ArrayField(models.BigIntegerField(), size=len(SIGNS), null=True)
    masked_by_sign = ArrayField(models.BigIntegerField(), size=len(SIGNS), null=True)  # sampled and not counted
    tv_mean = models.FloatField(null=True)  # |policy - sampler probability|
    binary_kl_mean = models.FloatField(null=True)  # nats per token
    sampler_kl = ArrayField(models.FloatField(), size=3, null=True)  # k1, k2, k3, nats per token
    reference_kl = ArrayField(models.FloatField(), size=3, null=True)
    gap_mean = models.FloatField(null=True)  # |recomputed - sampler| log-probability, nats
    gap_max = models.FloatField(null=True)

    # The largest budget of one rollout, by the sum that an aggregation needs (`aggregation.sums`).
    mass_max = models.FloatField(null=True)
    mass_per_rollout_max = models.FloatField(null=True)
    mass_per_prompt_max = models.FloatField(null=True)
    is_spread = models.BooleanField(default=False)  # tokens had no advantage of their own: their rollout's was taken

    # Rollouts that each check of `audit.CHECKS` could be asked of, 0 where it did not run, and those that failed.
    audit_checked = ArrayField(models.IntegerField(), null=True)
    audit_failed = ArrayField(models.IntegerField(), null=True)
    recorded = ArrayField(models.IntegerField(), null=True)  # rollouts that have each field of `coverage.RECORDED`

    # `measures.diversity`: entropies in nats, means over groups.
    entropy_right = models.FloatField(null=True)
    entropy_wrong = models.FloatField(null=True)
    semantic_entropy = models.FloatField(null=True)
    distinct_answers = models.FloatField(null=True)
    distinct_forms = models.FloatField(null=True)
    right_similarity = models.FloatField(null=True)
    self_bleu = models.FloatField(null=True)
    repeat_share = models.FloatField(null=True)  # of rollouts that nearly repeat an earlier one of their group
    pass_k = models.SmallIntegerField(null=True)
    pass_at_k = models.FloatField(null=True)

    # `measures.outcomes`. By k = 1, 2, 4 ...: means over the groups that are large enough.
    best_of = ArrayField(models.FloatField(), null=True)  # expected highest reward of k
    pass_at = ArrayField(models.FloatField(), null=True)
    reward_values = ArrayField(models.FloatField(), null=True)  # rising, with how many rollouts got each
    reward_counts = ArrayField(models.IntegerField(), null=True)
    solved_groups = models.IntegerField(null=True)  # with a right rollout
    length_right_mean = models.FloatField(null=True)  # tokens
    length_wrong_mean = models.FloatField(null=True)
    # Rollouts by length in the bins of `outcomes.length_edge`.
    lengths_right = ArrayField(models.IntegerField(), null=True)
    lengths_wrong = ArrayField(models.IntegerField(), null=True)
    lengths_unjudged = ArrayField(models.IntegerField(), null=True)


class GroupSignal(models.Model):
    """One row a group."""

    group = models.OneToOneField(Group, on_delete=models.CASCADE, primary_key=True)
    step = models.ForeignKey(Step, on_delete=models.CASCADE, related_name="+", db_index=False)
    cause = models.SmallIntegerField(null=True)  # place in `causes.CAUSES`; null: the group is not dead
    tokens = models.BigIntegerField()  # of its completions
    ess_share = models.FloatField(null=True)  # as `StepSignal`, of its tokens
    mass = models.FloatField(null=True)  # of the budget, by the sums of `aggregation.sums`
    mass_per_rollout = models.FloatField(null=True)
    mass_per_prompt = models.FloatField(null=True)
    semantic_entropy = models.FloatField(null=True)
    distinct_answers = models.SmallIntegerField(null=True)
    distinct_forms = models.SmallIntegerField(null=True)
    right_similarity = models.FloatField(null=True)
    self_bleu = models.FloatField(null=True)
    repeats = models.SmallIntegerField(null=True)
    reward_max = models.FloatField(null=True)
    abs_advantage = models.FloatField(null=True)  # sum over its rollouts

    class Meta:
        indexes = [
            # The groups of a range of steps, and the dead ones by their cause.
            models.Index(fields=["step", "cause"], name="group_signal_by_step"),
        ]


class RolloutSums(models.Model):
    """Sums over the tokens of every rollout of a step, a column each, as `sums` packs them; read one step at a time."""

    step = models.OneToOneField(Step, on_delete=models.CASCADE, primary_key=True)
    payload = models.BinaryField()


class VersionSignal(models.Model):
    """What a step made of the tokens that one policy version sampled."""

    pk = models.CompositePrimaryKey("step_id", "policy_version")
    step = models.ForeignKey(Step, on_delete=models.CASCADE, related_name="+", db_index=False)
    policy_version = models.IntegerField()  # steps trained when it sampled
    rollouts = models.IntegerField()
    mixing = models.IntegerField()  # of these, with tokens of another version too
    tokens = models.BigIntegerField()  # sampled
    kept = models.BigIntegerField()  # counted and not clipped
    clipped = models.BigIntegerField()
    dropped = models.BigIntegerField()  # not counted
    spread = ArrayField(models.FloatField(), size=3, null=True)  # of the ratio: 5, 50, 95 %


class StepHistograms(models.Model):
    """Counted tokens of a step by log-ratio, divergence and sign, as `sums` packs `trust.histograms`."""

    step = models.OneToOneField(Step, on_delete=models.CASCADE, primary_key=True)
    payload = models.BinaryField()


class StepPart(models.Model):
    """One part of one split of a step's budget; of the split `uncounted` only the rollouts speak."""

    pk = models.CompositePrimaryKey("step_id", "split", "name")
    step = models.ForeignKey(Step, on_delete=models.CASCADE, related_name="+", db_index=False)
    split = models.SmallIntegerField()  # place in `names.SPLITS`
    name = models.CharField(max_length=120)
    rollouts = models.IntegerField()
    tokens = models.BigIntegerField()  # counted
    mass = models.FloatField(null=True)
    mass_per_rollout = models.FloatField(null=True)
    mass_per_prompt = models.FloatField(null=True)
