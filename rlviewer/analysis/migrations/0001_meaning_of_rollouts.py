import django.db.models.deletion
import django.db.models.functions.text
import rlviewer.analysis.models
from django.conf import settings
from django.db import migrations, models

from rlviewer.analysis import vectors


def make_room(apps, schema_editor):
    # A database whose extension is missing migrates too; whoever asks for vectors is told, and it is tried again.
    vectors.ensure()


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("accounts", "0001_initial"),
        ("runs", "0002_rollouts_in_order_of_reward_advantage_and_length"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="RolloutEmbedding",
            fields=[
                (
                    "rollout",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        serialize=False,
                        to="runs.rollout",
                    ),
                ),
                ("run_id", models.BigIntegerField()),
                ("model", models.CharField(max_length=80)),
                ("is_cut", models.BooleanField()),
            ],
            options={
                "indexes": [models.Index(fields=["run_id"], name="embedding_by_run")],
            },
        ),
        migrations.CreateModel(
            name="EmbeddingJob",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("filter", models.TextField(blank=True)),
                ("text", models.TextField(blank=True)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("queued", "Queued"),
                            ("running", "Running"),
                            ("finished", "Finished"),
                            ("stopped", "Stopped"),
                            ("failed", "Failed"),
                        ],
                        default="queued",
                        max_length=10,
                    ),
                ),
                ("error", models.TextField(blank=True)),
                ("total", models.IntegerField(null=True)),
                ("done", models.IntegerField(default=0)),
                ("cut", models.IntegerField(default=0)),
                ("vector", models.BinaryField(null=True)),
                ("model", models.CharField(blank=True, max_length=80)),
                ("fence", models.IntegerField(default=0)),
                ("asked_at", models.DateTimeField(auto_now_add=True)),
                ("started_at", models.DateTimeField(null=True)),
                ("heartbeat_at", models.DateTimeField(null=True)),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "asked_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "project",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="+", to="accounts.project"
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.CASCADE, related_name="+", to="runs.run"
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("state__in", ["queued", "running"])),
                        fields=["id"],
                        name="embedding_job_active",
                    ),
                    models.Index(fields=["project", "-id"], name="embedding_job_by_project"),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("state__in", ["queued", "running", "finished", "stopped", "failed"])),
                        name="embedding_job_state_known",
                    ),
                    models.UniqueConstraint(
                        models.F("project"),
                        models.F("run"),
                        django.db.models.functions.text.MD5("filter"),
                        django.db.models.functions.text.MD5("text"),
                        condition=models.Q(("state__in", ["queued", "running"])),
                        name="embedding_job_once",
                        nulls_distinct=False,
                    ),
                ],
            },
        ),
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.RunPython(make_room, migrations.RunPython.noop)],
            state_operations=[
                migrations.AddField(
                    "rolloutembedding", "vector", rlviewer.analysis.models.VectorField(), preserve_default=False
                ),
            ],
        ),
    ]
