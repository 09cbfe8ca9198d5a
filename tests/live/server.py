"""How the web server is started."""

UVICORN_OPTIONS = ["--ws-max-size", "4096", "--ws-per-message-deflate", "false", "--no-access-log"]
