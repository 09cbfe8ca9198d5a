"""What a child process may know of us."""

import os

# What opens our stores; a child that computes has no business there, and in a trainer code of others runs.
OUR_VARIABLES = ("DATABASE_URL", "REDIS_URL")
OUR_PREFIX = "RLVIEWER_"
# Strings hash alike in every attempt; and tensors lie in large pages, which saves a small model a twelfth of its step.
TRAINER_VARIABLES = {"PYTHONHASHSEED": "0", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


def outside_environment() -> dict[str, str]:
    """The environment without what opens our stores."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in OUR_VARIABLES and not name.startswith(OUR_PREFIX)
    }
