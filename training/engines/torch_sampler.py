"""Sampling with the policy's own weights in torch: one prefill per prompt, a key-value cache, no row kept past its end."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from training.engines.base import ALL_TOKENS, PromptRequest, Samples, SamplingError, Truncation, check_room
from training.engines.llama_decode import LlamaDecoder
from training.engines.roomy_cache import make_room
from training.llama_layers import is_plain_llama
from training.policy import Policy, Prefilled
from training.rectangles import left_padded

# Keys and values of all rows that are sampled together stay below this.
CACHE_BYTES = 1 << 30
# Rows that have ended stay until they are this share: to take some out copies the keys and values of all others.
ENDED_SHARE = 1 / 8


class TorchSampler:
    """Samples from the module that is being trained, so its weights are never stale."""

    def __init__(self, policy: Policy, truncation: Truncation = ALL_TOKENS) -> None:
        self.policy = policy
        self.truncation = truncation

    def weights_changed(self) -> None:
        """Nothing to do: the weights are the policy's own."""

    def close(self) -> None:
        """Nothing to let go of."""

    def sample(
        self, requests: Sequence[PromptRequest], *, temperature: float, max_new_tokens: int, seed: int
    ) -> Samples:
        """Completions of all requests, in as few passes as the memory for keys and values allows.

        Raises:
            SamplingError: a prompt leaves no room in the model's context, or the logits are not finite.
        """
        check_room(requests, max_new_tokens, self.policy.context_tokens)
        draws = uniform_draws(requests, max_new_tokens, seed, self.policy.device)
        return self.sample_rows(requests, draws, temperature=temperature)

    @torch.no_grad()
    def sample_rows(self, requests: Sequence[PromptRequest], draws: Tensor, *, temperature: float) -> Samples:
        """Completions from draws `[B, T]`, so that no completion depends on which others are sampled with it."""
        parts, first = [], 0
        for part in self._passes(requests, draws.shape[1]):
            rows = sum(request.count for request in part)
            parts.append(self._sample_pass(part, temperature, draws[first : first + rows]))
            first += rows
        return joined(parts)

    def _passes(self, requests: Sequence[PromptRequest], max_new_tokens: int) -> Iterator[Sequence[PromptRequest]]:
        """Requests whose completions fit together; the completions of one request are never parted."""
        token_bytes = cache_token_bytes(self.policy)
        start = rows = longest = 0
        for number, request in enumerate(requests):
            longest = max(longest, len(request.prompt_ids))
            if rows and (rows + request.count) * (longest + max_new_tokens) * token_bytes > CACHE_BYTES:
                yield requests[start:number]
                start, rows, longest = number, 0, len(request.prompt_ids)
            rows += request.count
        yield requests[start:]

    def _sample_pass(self, requests: Sequence[PromptRequest], temperature: float, draws: Tensor) -> Samples:
        policy, device, max_new_tokens = self.policy, self.policy.device, draws.shape[1]
        prompt_ids, prompt_mask = left_padded([request.prompt_ids for request in requests], policy.pad_id, device)
        counts = torch.tensor([request.count for request in requests], device=device)
        owner = torch.arange(len(requests), device=device).repeat_interleave(counts)
        start = policy.prefill(prompt_ids, prompt_mask, owner)
        decoder, logits = decoder_of(policy, start, max_new_tokens), start.logits
        eos_ids = torch.tensor(sorted(policy.eos_ids), device=device)
        greedy = torch.tensor([request.is_greedy for request in requests], device=device)[owner]
        any_greedy = bool(greedy.any())

        rows = owner.numel()
        token_ids = torch.zeros(max_new_tokens, rows, dtype=torch.int64, device=device)
        sampler_logprobs = torch.zeros(max_new_tokens, rows, device=device)
        entropy = torch.zeros(max_new_tokens, rows, device=device)
        lengths = torch.full((rows,), max_new_tokens, device=device)
        is_finished = torch.zeros(rows, dtype=torch.bool, device=device)
        active = torch.arange(rows, device=device)
        for column in range(max_new_tokens):
            logprobs = (logits.float() / temperature).log_softmax(dim=-1)
            probabilities = logprobs.exp()
            # A token without chance adds nothing; 0 * -inf would be NaN.
            spread = -torch.linalg.vecdot(probabilities, logprobs.clamp(min=torch.finfo(logprobs.dtype).min))
            # One number that is not finite spoils all of its row.
            if not bool(spread.isfinite().all()):
                raise SamplingError(f"logits of the sampler are not finite at token {column}")
            token = drawn_tokens(truncated(probabilities, self.truncation), draws[active, column])
            if any_greedy:
                token = torch.where(greedy[active, None], logprobs.argmax(dim=-1, keepdim=True), token)
            token_ids[column].index_copy_(0, active, token[:, 0])
            sampler_logprobs[column].index_copy_(0, active, logprobs.gather(-1, token)[:, 0])
            entropy[column].index_copy_(0, active, spread)
            ended = active[torch.isin(token[:, 0], eos_ids) & ~is_finished[active]]
            lengths[ended] = column + 1
            is_finished[ended] = True
            going = (~is_finished[active]).nonzero()[:, 0]
            if going.numel() <= (1 - ENDED_SHARE) * active.numel():
                active, token = active[going], token[going]
                decoder.keep(going)
            if active.numel() == 0 or column + 1 == max_new_tokens:
                break
            logits = decoder.next_logits(token)
        longest = int(lengths.max())
        # What rows that had ended went on with.
        beyond = torch.arange(longest, device=device) >= lengths[:, None]
        return Samples(
            token_ids[:longest].t().masked_fill(beyond, 0),
            sampler_logprobs[:longest].t().masked_fill(beyond, 0),
            entropy[:longest].t().masked_fill(beyond, 0),
            lengths,
            is_finished,
        )


class Decoder(Protocol):
    """Goes on from a prefill, token after token."""

    def next_logits(self, token: Tensor) -> Tensor:
        """`[B, V]` logits after `token` `[B, 1]`, which is added to what has been read."""

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows alone."""


def decoder_of(policy: Policy, start: Prefilled, max_new_tokens: int) -> Decoder:
    if is_plain_llama(policy.model):
        return LlamaDecoder(policy.model, start, max_new_tokens)
    return ModelDecoder(policy, start, max_new_tokens)


class ModelDecoder:
    """The forward pass of any model, on a cache with room."""

    def __init__(self, policy: Policy, start: Prefilled, max_new_tokens: int) -> None:
        self.policy, self.cache, self.mask, self.position = policy, start.cache, start.mask, start.position
        make_room(self.cache, max_new_tokens)

    def next_logits(self, token: Tensor) -> Tensor:
        if self.mask is not None:
            self.mask = torch.cat([self.mask, self.mask.new_ones(self.mask.shape[0], 1)], dim=1)
        logits = self.policy.forward(token, self.mask, self.position[:, None], self.cache, last_only=True)[:, 0]
        self.position = self.position + 1
        return logits

    def keep(self, rows: Tensor) -> None:
        self.mask = None if self.mask is None else self.mask[rows]
        self.position = self.position[rows]
        self.cache.batch_select_indices(rows)


def uniform_draws(requests: Sequence[PromptRequest], max_new_tokens: int, seed: int, device: torch.device) -> Tensor:
    """`[B, T]` float64 in [0, 1): what each token of each completion is drawn by."""
    rows = sum(request.count for request in requests)
    generator = torch.Generator(device).manual_seed(seed)
    return torch.rand(rows, max_new_tokens, generator=generator, device=device, dtype=torch.float64)


def drawn_tokens(probabilities: Tensor, draws: Tensor) -> Tensor:
    """`[B, 1]`: where the running sum of `probabilities` `[B, V]`, which need not end at 1, passes the draw's share of all.

    In float64: the float32 sums over a large vocabulary would swallow its rare tokens.
    """
    sums = probabilities.cumsum(dim=-1, dtype=torch.float64)
    whole = sums[:, -1:]
    # Rounded up to the whole, a draw would find no token.
    wanted = torch.minimum(draws[:, None] * whole, whole.nextafter(torch.zeros_like(whole)))
    return torch.searchsorted(sums, wanted, right=True)


def truncated(probabilities: Tensor, truncation: Truncation) -> Tensor:
    """`[..., V]` probabilities with zeros at the tokens that may not be drawn; what is left is not scaled up to 1.

    min_p looks at the whole distribution, then top_k cuts, then top_p cuts what top_k left, scaled up to 1: vLLM's order.
    """
    kept = probabilities
    if truncation.min_p > 0:
        floor = truncation.min_p * kept.amax(dim=-1, keepdim=True)
        kept = torch.where(kept >= floor, kept, 0)
    if not truncation.top_k and truncation.top_p >= 1:
        return kept
    falling, order = kept.sort(dim=-1, descending=True, stable=True)
    if truncation.top_k:
        falling = torch.where(torch.arange(falling.shape[-1], device=falling.device) < truncation.top_k, falling, 0)
    if truncation.top_p < 1:
        # A token stays while those before it have not reached the share.
        before = falling.cumsum(dim=-1) - falling
        falling = torch.where(before < truncation.top_p * falling.sum(dim=-1, keepdim=True), falling, 0)
    return torch.zeros_like(kept).scatter(-1, order, falling)


def cache_token_bytes(policy: Policy) -> int:
    """Bytes of keys and values that one token takes in all layers."""
    config = policy.model.config
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * heads * width * policy.model.dtype.itemsize)


def joined(parts: Sequence[Samples]) -> Samples:
    """The rows of all passes, as wide as the widest."""
    width = max(part.token_ids.shape[1] for part in parts)

    def stack(name: str) -> Tensor:
        rectangles = [getattr(part, name) for part in parts]
        return torch.cat([torch.nn.functional.pad(one, (0, width - one.shape[1])) for one in rectangles])

    return Samples(
        stack("token_ids"),
        stack("sampler_logprobs"),
        stack("entropy"),
        torch.cat([part.lengths for part in parts]),
        torch.cat([part.is_finished for part in parts]),
    )
