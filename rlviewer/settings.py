"""All settings, one file. The environment is read only through env.py; README.md lists every variable."""

import warnings
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlparse

from django.core.exceptions import ImproperlyConfigured

from rlviewer.embedded import paths
from rlviewer.env import env_bool, env_int, env_list, env_path, env_secret, env_str

BASE_DIR = Path(__file__).resolve().parent.parent
HOME = env_path("RLVIEWER_HOME", BASE_DIR / ".rlviewer")

DEBUG = env_bool("RLVIEWER_DEBUG", False)
SECRET_KEY = env_secret("RLVIEWER_SECRET_KEY", paths.secret_key_file(HOME))
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]", *env_list("RLVIEWER_HOSTS", [])]
CSRF_TRUSTED_ORIGINS = [f"https://{host}" for host in env_list("RLVIEWER_HOSTS", []) if "*" not in host]
SECURE_COOKIES = env_bool("RLVIEWER_HTTPS", False)

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "channels",
    "django_htmx",
    "rlviewer.accounts",
    "rlviewer.outbox",
    "rlviewer.runs",
    "rlviewer.ingest",
    "rlviewer.review",
    "rlviewer.search",
    "rlviewer.watch",
    "rlviewer.analysis",
    "rlviewer.counterfactual",
    "rlviewer.signal",
    "rlviewer.launch",
    "rlviewer.sweeps",
    "rlviewer.compare",
    "rlviewer.live",
    "rlviewer.embedded",
]

MIDDLEWARE = [
    # Outermost: everything that leaves is small; static files come compressed already.
    "django.middleware.gzip.GZipMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "rlviewer.lib.staticfiles.StaticFilesMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "rlviewer.lib.csp.ContentSecurityPolicyMiddleware",
    "rlviewer.lib.wrong_method.WrongMethodMiddleware",
    "rlviewer.lib.fragments.FragmentCacheMiddleware",
]

ROOT_URLCONF = "rlviewer.urls"
ASGI_APPLICATION = "rlviewer.asgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": False,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
            "builtins": ["rlviewer.runs.templatetags.show"],
        },
    },
]


def database_from_url(url: str) -> dict[str, Any]:
    """`postgresql://user:password@host:port/name?option=value` as Django wants it."""
    parts = urlparse(url)
    if parts.scheme not in {"postgres", "postgresql"}:
        raise ImproperlyConfigured(f"DATABASE_URL must start with postgresql://, got {parts.scheme or 'nothing'}://")
    options = dict(parse_qsl(parts.query))
    return {
        "NAME": unquote(parts.path.lstrip("/")) or "rlviewer",
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": options.pop("host", parts.hostname or ""),
        "PORT": str(parts.port or ""),
        "OPTIONS": options,
    }


DATABASE_URL = env_str("DATABASE_URL")
REDIS_URL = env_str("REDIS_URL") or paths.redis_url(HOME)
# Rewards of one's own on the worker, module:function, that members may have judge stored rollouts anew.
REWARDS = env_list("RLVIEWER_REWARDS", [])
USES_EMBEDDED_POSTGRES = not DATABASE_URL
USES_EMBEDDED_REDIS = not env_str("REDIS_URL")

_database = database_from_url(DATABASE_URL or paths.postgres_url(HOME))
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        **_database,
        # Persistent connections leak under ASGI (one a thread); the pool has a hard maximum instead.
        "CONN_MAX_AGE": 0,
        "OPTIONS": {
            **_database["OPTIONS"],
            "pool": {"min_size": 1, "max_size": env_int("RLVIEWER_DB_POOL", 8, low=2, high=200), "timeout": 10},
            "options": "-c statement_timeout=60000 -c lock_timeout=10000",
        },
    }
}

DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
AUTH_USER_MODEL = "accounts.User"
LOGIN_URL = "sign-in"
LOGIN_REDIRECT_URL = "home"
LOGOUT_REDIRECT_URL = "sign-in"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]

SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = SECURE_COOKIES
CSRF_COOKIE_SECURE = SECURE_COOKIES
SECURE_HSTS_SECONDS = 31_536_000 if SECURE_COOKIES else 0
SECURE_SSL_REDIRECT = False  # TLS ends at the proxy in front
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if SECURE_COOKIES else None
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
DATA_UPLOAD_MAX_MEMORY_SIZE = 2 * 1024 * 1024

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True
USE_I18N = False

STATIC_URL = "/static/"
STATICFILES_DIRS = [BASE_DIR / "static"]
STATIC_ROOT = HOME / "static"
# Only a team's image collects static files; elsewhere they are served from where they lie.
warnings.filterwarnings("ignore", message="No directory at", category=UserWarning)
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = DEBUG
# Pages name every static file with a digest of its content, so no file changes under the same address.
WHITENOISE_IMMUTABLE_FILE_TEST = f"^{STATIC_URL}"
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "rlviewer.lib.staticfiles.VersionedStorage"},
}

CELERY_BROKER_URL = REDIS_URL
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_RESULT_BACKEND = None
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_DEFAULT_QUEUE = "cpu"
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_TRANSPORT_OPTIONS = {"visibility_timeout": env_int("RLVIEWER_VISIBILITY_TIMEOUT_SECONDS", 3600, low=5)}

# How long a silent host keeps its run before the run counts as failed.
LEASE_SECONDS = env_int("RLVIEWER_LEASE_SECONDS", 900, low=5)
# Without a heartbeat for this long a run is shown as silent.
SILENT_SECONDS = env_int("RLVIEWER_SILENT_SECONDS", 30, low=2)
# The most runs that one sweep may come to.
SWEEP_RUNS = env_int("RLVIEWER_SWEEP_RUNS", 500, low=1, high=100_000)
# What the sweep of every worker also does: of apps that launch does not know.
WORKER_CHORES = ["rlviewer.sweeps.scheduler.advance_all"]
# What a worker starts as the trainer: a Python module that speaks the protocol of training/attempt.py.
TRAINER_MODULE = env_str("RLVIEWER_TRAINER_MODULE", "training.run")

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "{asctime} {levelname} {name}: {message}", "style": "{"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "root": {"handlers": ["stderr"], "level": env_str("RLVIEWER_LOG_LEVEL", "WARNING")},
    "loggers": {"rlviewer": {"level": env_str("RLVIEWER_LOG_LEVEL", "INFO")}},
}
