"""Bring the database up to date: `python -m rlviewer.embedded.prepare` migrates and adds the first admin.

Prints one line of JSON: `{"admin": ..., "password": ...}` when it added one, else `{}`.
"""

import json
import os
import secrets
import sys

CONNECT_SECONDS = 60.0


def add_first_admin() -> dict[str, str]:
    """A site admin with a random password to be replaced at once; nothing when anybody is there already."""
    from django.contrib.auth import get_user_model

    people = get_user_model().objects
    if people.exists():
        return {}
    password = secrets.token_urlsafe(15)
    people.create_superuser("admin", password=password, password_is_temporary=True)
    return {"admin": "admin", "password": password}


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "rlviewer.settings")
    import django
    from django.core.management import call_command
    from django.db import connection

    django.setup()
    from rlviewer.embedded.database import wait_until_it_answers

    wait_until_it_answers(seconds=CONNECT_SECONDS)
    with connection.cursor() as cursor:
        # Migrations may be repeated, so only the last commit, the admin's, waits for the disk.
        cursor.execute("SET synchronous_commit = off")
        call_command("migrate", interactive=False, verbosity=0)
        cursor.execute("SET synchronous_commit = on")
    sys.stdout.write(json.dumps(add_first_admin()) + "\n")


if __name__ == "__main__":
    main()
