from django.db import migrations


class Migration(migrations.Migration):
    """Payloads come compressed; trying again would cost time at every write and gain nothing."""

    dependencies = [("runs", "0003_group_task_seed")]

    operations = [
        migrations.RunSQL(
            "ALTER TABLE runs_tokenchunk ALTER COLUMN payload SET STORAGE EXTERNAL",
            "ALTER TABLE runs_tokenchunk ALTER COLUMN payload SET STORAGE EXTENDED",
        )
    ]
