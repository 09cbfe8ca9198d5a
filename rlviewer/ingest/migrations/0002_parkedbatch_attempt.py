from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("ingest", "0001_initial"),
    ]

    operations = [
        migrations.AddField(
            model_name="parkedbatch",
            name="attempt",
            field=models.IntegerField(null=True),
        ),
        # What waited before is looked at once its run has any attempt; that writes down the right number.
        migrations.RunSQL(
            "UPDATE ingest_parkedbatch SET attempt = 1 WHERE run_uid IS NOT NULL", migrations.RunSQL.noop
        ),
    ]
