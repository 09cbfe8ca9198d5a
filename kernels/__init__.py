"""The hot inner functions. Light to import and without a version: transformers looks for a package of this name."""

from kernels.token_logprob import linear_token_logprob, token_logprob, token_logprob_and_entropy

__all__ = ["linear_token_logprob", "token_logprob", "token_logprob_and_entropy"]
