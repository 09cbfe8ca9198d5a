import django.contrib.postgres.fields
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("search", "0003_texts_of_prompts"),
    ]

    operations = [
        migrations.AlterField(
            model_name="listcolumns",
            name="names",
            field=django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=80), size=None),
        ),
    ]
