import django.contrib.postgres.indexes
import django.contrib.postgres.search
import django.db.models.deletion
from django.db import migrations, models

from rlviewer.lib.text import text_from_bytes

TEXT_CHARS = 200_000


def fill(apps, schema_editor):
    """Prompts of steps that are indexed already; later ones come with their steps."""
    Prompt, PromptText = apps.get_model("runs", "Prompt"), apps.get_model("search", "PromptText")
    texts = Prompt.objects.values_list("id", "text").iterator(chunk_size=1000)
    batch = []
    for pk, text in texts:
        batch.append(PromptText(prompt_id=pk, text=text_from_bytes(bytes(text))[:TEXT_CHARS]))
        if len(batch) == 1000:
            PromptText.objects.bulk_create(batch)
            batch = []
    PromptText.objects.bulk_create(batch)


class Migration(migrations.Migration):
    dependencies = [
        ("runs", "0002_rollouts_in_order_of_reward_advantage_and_length"),
        ("search", "0002_columns_a_person_chose"),
    ]

    operations = [
        migrations.CreateModel(
            name="PromptText",
            fields=[
                (
                    "prompt",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE, primary_key=True, serialize=False, to="runs.prompt"
                    ),
                ),
                ("text", models.TextField()),
            ],
        ),
        migrations.RunPython(fill, migrations.RunPython.noop),
        migrations.AddIndex(
            model_name="prompttext",
            index=django.contrib.postgres.indexes.GinIndex(
                django.contrib.postgres.search.SearchVector("text", config="simple"), name="prompt_text_words"
            ),
        ),
    ]
