from django.db import migrations


class Migration(migrations.Migration):
    """A text of some KB is compressed and stays in its row; by default its halves would go to the TOAST table."""

    dependencies = [("search", "0001_initial")]

    operations = [
        migrations.RunSQL(
            "ALTER TABLE search_rollouttext ALTER COLUMN completion SET STORAGE MAIN",
            "ALTER TABLE search_rollouttext ALTER COLUMN completion SET STORAGE EXTENDED",
        )
    ]
