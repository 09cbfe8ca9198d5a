"""Sampling with the policy's own weights in torch: one prefill per prompt, a key-value cache, no row kept past its end."""

from collections.abc import Sequence

import torch
from torch import Tensor

from training.engines.base import PromptRequest, Samples, SamplingError
from training.policy import Policy, entropy_of


class TorchSampler:
    """Samples from the module that is being trained, so its weights are never stale."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    @torch.no_grad()
    def sample(
        self, requests: Sequence[PromptRequest], *, temperature: float, max_new_tokens: int, seed: int
    ) -> Samples:
        """Completions of all requests.

        Raises:
            SamplingError: a prompt leaves no room in the model's context, or the logits are not finite.
        """
        policy, device = self.policy, self.policy.device
        self._check_room(requests, max_new_tokens)
        generator = torch.Generator(device).manual_seed(seed)
        prompt_ids, prompt_mask = left_padded([request.prompt_ids for request in requests], policy.pad_id, device)
        counts = torch.tensor([request.count for request in requests], device=device)
        owner = torch.arange(len(requests), device=device).repeat_interleave(counts)
        start = policy.prefill(prompt_ids, prompt_mask, owner)
        cache, mask, position, logits = start.cache, start.mask, start.position, start.logits
        eos_ids = torch.tensor(sorted(policy.eos_ids), device=device)

        rows = owner.numel()
        token_ids = torch.zeros(rows, max_new_tokens, dtype=torch.int64, device=device)
        sampler_logprobs = torch.zeros(rows, max_new_tokens, device=device)
        entropy = torch.zeros(rows, max_new_tokens, device=device)
        lengths = torch.full((rows,), max_new_tokens, device=device)
        is_finished = torch.zeros(rows, dtype=torch.bool, device=device)
        active = torch.arange(rows, device=device)
        for column in range(max_new_tokens):
            logprobs = (logits.float() / temperature).log_softmax(dim=-1)
            probabilities = logprobs.exp()
            if not bool(probabilities.isfinite().all()):
                raise SamplingError(f"logits of the sampler are not finite at token {column}")
            token = torch.multinomial(probabilities, 1, generator=generator)
            token_ids[active, column] = token[:, 0]
            sampler_logprobs[active, column] = logprobs.gather(-1, token)[:, 0]
            entropy[active, column] = entropy_of(logprobs)
            ended = torch.isin(token[:, 0], eos_ids)
            if bool(ended.any()):
                lengths[active[ended]] = column + 1
                is_finished[active[ended]] = True
                going = (~ended).nonzero()[:, 0]
                active, token, position = active[going], token[going], position[going]
                mask = None if mask is None else mask[going]
                cache.batch_select_indices(going)
            if active.numel() == 0 or column + 1 == max_new_tokens:
                break
            if mask is not None:
                mask = torch.cat([mask, mask.new_ones(mask.shape[0], 1)], dim=1)
            logits = policy.forward(token, mask, position[:, None], cache, last_only=True)[:, 0]
            position = position + 1
        longest = int(lengths.max())
        return Samples(
            token_ids[:, :longest], sampler_logprobs[:, :longest], entropy[:, :longest], lengths, is_finished
        )

    def _check_room(self, requests: Sequence[PromptRequest], max_new_tokens: int) -> None:
        room, longest = self.policy.context_tokens, max(len(request.prompt_ids) for request in requests)
        if room is not None and longest + max_new_tokens > room:
            raise SamplingError(
                f"a prompt of {longest} tokens and {max_new_tokens} new ones do not fit the model's context of {room}; "
                "lower sampling.max_new_tokens or the task's difficulty"
            )


def left_padded(rows: Sequence[Sequence[int]], pad_id: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """`[P, S]` token ids with padding on the left, and the mask that is True at the tokens."""
    width = max(map(len, rows))
    ids = torch.tensor([[pad_id] * (width - len(row)) + list(row) for row in rows], device=device)
    lengths = torch.tensor([len(row) for row in rows], device=device)
    return ids, torch.arange(width, device=device) >= width - lengths[:, None]
