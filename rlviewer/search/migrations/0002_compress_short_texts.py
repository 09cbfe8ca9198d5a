from django.db import migrations


class Migration(migrations.Migration):
    """Texts of about 2 KB are compressed too: by default Postgres leaves rows under 2,032 bytes as they are."""

    dependencies = [("search", "0001_initial")]

    operations = [
        migrations.RunSQL(
            "ALTER TABLE search_rollouttext SET (toast_tuple_target = 256)",
            "ALTER TABLE search_rollouttext RESET (toast_tuple_target)",
        )
    ]
