"""The policy: a causal LM with its tokenizer, loaded from a folder, and the forward pass that scores tokens under it."""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from kernels import linear_token_logprob
from training import adapters
from training.chat import ChatWrapper, chat_wrapper
from training.config import ConfigError, ModelConfig
from training.distributed import laid_out_like, local_rank, processes, whole_tree
from training.huggingface import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    DynamicCache,
    GradientCheckpointingLayer,
    PreTrainedModel,
    logging,
)
from training.llama_layers import quicken
from training.model_folder import GGUF_FILES, model_folder, names_code
from training.rectangles import Tokens
from training.tasks.base import STEP_END
from training.transforms import TransformedPrompt
from training.vocabulary import pieces_of

# Weights come from the folder alone: nothing is fetched and no code in the folder is run.
LOCAL_ONLY = {"local_files_only": True, "trust_remote_code": False}
# Up to here the logits of all tokens are no larger than what the layers below keep, and making them once is quicker.
PLAIN_VOCABULARY = 1024


@dataclass(frozen=True, slots=True)
class TokenScores:
    """Of the completion's tokens under the policy, `[B, T]` float32; what stands at padding is meaningless."""

    logprobs: Tensor  # nats, with gradient where enabled
    entropy: Tensor | None  # nats, with gradient where enabled
    alternatives: Tensor | None = None  # [B, T, K] nats of further tokens, detached


class Policy:
    """A causal LM and its tokenizer on one device."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: Any,
        device: torch.device,
        *,
        chat: ChatWrapper | None = None,
        recomputes: bool = False,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.device = device
        self.chat = chat
        self.recomputes = recomputes
        self.pieces = pieces_of(tokenizer)
        self.eos_ids = _eos_ids(model, tokenizer) | (chat.end_ids if chat else frozenset())
        self.pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else min(self.eos_ids, default=0)
        self.context_tokens: int | None = getattr(model.config, "max_position_embeddings", None)
        self._accepts = set(inspect.signature(model.forward).parameters)

    @cached_property
    def ends_step(self) -> np.ndarray:
        """`[V]` bool: tokens that end a step of shown work."""
        return np.array([STEP_END.encode() in piece for piece in self.pieces])

    def worded(self, prompt: TransformedPrompt) -> TransformedPrompt:
        """The prompt as a turn of a conversation, where the model is talked to in turns."""
        return self.chat.wrap(prompt) if self.chat else prompt

    def encode(self, text: str, *, is_start: bool = True) -> list[int]:
        """Token ids of `text`; at the start of a sequence with what the tokenizer puts before it, never with an end."""
        # A chat template spells out what stands at the start.
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=is_start and self.chat is None)
        while is_start and ids and ids[-1] in self.eos_ids:
            ids.pop()
        if is_start and not ids:
            # A sequence needs a first token to continue from.
            first = self.tokenizer.bos_token_id
            ids = [first if first is not None else self.pad_id]
        return ids

    def decode(self, token_ids: Sequence[int]) -> bytes:
        """The bytes of a completion, its end-of-sequence token left out. Half a character stays half a character."""
        pieces, known = self.pieces, len(self.pieces)
        if len(token_ids) and token_ids[-1] in self.eos_ids:
            token_ids = token_ids[:-1]
        return b"".join([pieces[token] for token in token_ids if token < known])

    def forward(
        self, ids: Tensor, mask: Tensor | None, positions: Tensor, cache: DynamicCache, *, last_only: bool
    ) -> Tensor:
        """Logits after each of `ids` (or after the last), which continue what `cache` holds and are added to it."""
        options: dict[str, Any] = {
            "attention_mask": mask,
            "position_ids": positions,
            "past_key_values": cache,
            "use_cache": True,
            "logits_to_keep": 1 if last_only else 0,
        }
        known = {name: value for name, value in options.items() if name in self._accepts}
        logits: Tensor = self.model(input_ids=ids, **known).logits
        return logits[:, -1:] if last_only else logits

    def prefill(self, prompt_ids: Tensor, prompt_mask: Tensor, owner: Tensor) -> "Prefilled":
        """Every prompt once, then a row of its cache for each completion; gradients flow back through the cache."""
        cache = DynamicCache(config=self.model.config)
        positions = (prompt_mask.long().cumsum(dim=-1) - 1).clamp(min=0)
        logits = self.forward(prompt_ids, prompt_mask, positions, cache, last_only=True)
        cache.batch_select_indices(owner)
        # A rectangle without padding needs no mask, and the model's kernels are quicker without one.
        mask = None if bool(prompt_mask.all()) else prompt_mask[owner]
        return Prefilled(cache, mask, prompt_mask.sum(dim=1)[owner], logits[owner, 0])

    def completion_logits(self, tokens: Tokens) -> Tensor:
        """`[B, T, V]` logits for every completion token, before any temperature.

        What stands right of a token cannot change it, so padded completions need no mask of their own.
        """
        if self.recomputes:
            return self._uncached_logits(tokens)
        start = self.prefill(tokens.prompt_ids, tokens.prompt_mask, tokens.owner)
        first = start.logits[:, None]
        ids = tokens.completion_ids[:, :-1]
        if not ids.shape[1]:
            return first
        mask = None if start.mask is None else torch.cat([start.mask, torch.ones_like(ids, dtype=torch.bool)], dim=1)
        positions = start.position[:, None] + torch.arange(ids.shape[1], device=ids.device)
        return torch.cat([first, self.forward(ids, mask, positions, start.cache, last_only=False)], dim=1)

    def _uncached_logits(self, tokens: Tokens) -> Tensor:
        """The same from whole sequences: a layer that is worked out again must find no cache that it has added to."""
        width = tokens.completion_ids.shape[1]
        ids = torch.cat([tokens.prompt_ids[tokens.owner], tokens.completion_ids[:, :-1]], dim=1)
        mask = torch.nn.functional.pad(tokens.prompt_mask[tokens.owner], (0, width - 1), value=True)
        options: dict[str, Any] = {
            "attention_mask": None if bool(mask.all()) else mask,
            "position_ids": (mask.long().cumsum(dim=-1) - 1).clamp(min=0),
            "use_cache": False,
            "logits_to_keep": width,
        }
        known = {name: value for name, value in options.items() if name in self._accepts}
        logits: Tensor = self.model(input_ids=ids, **known).logits
        return logits[:, -width:]

    def score(
        self,
        tokens: Tokens,
        *,
        temperature: float,
        with_entropy: bool = False,
        alternatives: Tensor | None = None,
    ) -> TokenScores:
        """Log-probability of every completion token: float32 log-softmax of logits / temperature.

        Args:
            alternatives: `[B, T, K]` int64, token ids whose log-probabilities are wanted besides.
        """
        if (head := self._wide_head) is None or alternatives is not None:
            logprobs = (self.completion_logits(tokens).float() / temperature).log_softmax(dim=-1)
            entropy = entropy_of(logprobs) if with_entropy else None
            further = None if alternatives is None else logprobs.detach().gather(-1, alternatives)
            return TokenScores(logprobs.gather(-1, tokens.completion_ids[..., None]).squeeze(-1), entropy, further)
        with _forward_replaced(head, lambda hidden: hidden):
            hidden = self.completion_logits(tokens)
        counts = tokens.completion_mask
        chosen, spread = linear_token_logprob(
            hidden[counts].to(head.weight.dtype),
            head.weight,
            head.bias,
            tokens.completion_ids[counts],
            temperature=temperature,
            with_entropy=with_entropy,
        )
        nothing = torch.zeros(counts.shape, device=counts.device)
        return TokenScores(
            nothing.index_put((counts,), chosen), None if spread is None else nothing.index_put((counts,), spread)
        )

    @torch.no_grad()
    def likeliest(self, tokens: Tokens, *, temperature: float, count: int) -> tuple[Tensor, Tensor]:
        """Ids and nats, `[B, T, count + 1]`, of the likeliest tokens at every place and of the completion's own.

        Where that is among the likeliest its second mention has -inf.
        """
        logprobs = (self.completion_logits(tokens).float() / temperature).log_softmax(dim=-1)
        found = logprobs.topk(min(count, logprobs.shape[-1]), dim=-1)
        own = tokens.completion_ids[..., None]
        is_known = (found.indices == own).any(dim=-1, keepdim=True)
        of_own = logprobs.gather(-1, own).masked_fill(is_known, -torch.inf)
        return torch.cat([found.indices, own], dim=-1), torch.cat([found.values, of_own], dim=-1)

    @cached_property
    def _wide_head(self) -> torch.nn.Linear | None:
        """The output layer of a large vocabulary, when the model's logits are what it gives and no cap or scale follows."""
        head = self.model.get_output_embeddings()
        # Adapters and shards of a layer have types of their own.
        if type(head) is not torch.nn.Linear or head.out_features <= PLAIN_VOCABULARY:
            return None
        wanted = torch.linspace(-100, 100, head.out_features, dtype=head.weight.dtype, device=self.device)
        with torch.no_grad(), _forward_replaced(head, lambda hidden: wanted.expand(*hidden.shape[:-1], -1)):
            logits = self.model(input_ids=torch.zeros(1, 1, dtype=torch.int64, device=self.device)).logits
        return head if torch.equal(logits[0, 0].float(), wanted.float()) else None


@dataclass(frozen=True, slots=True)
class Prefilled:
    """Where the completions of some prompts start, a row each."""

    cache: DynamicCache
    mask: Tensor | None  # [B, S] bool; None when no prompt is padded
    position: Tensor  # [B] int64, of the first completion token
    logits: Tensor  # [B, V], for that token


@contextlib.contextmanager
def _forward_replaced(module: torch.nn.Module, forward: Callable[[Tensor], Tensor]) -> Iterator[None]:
    module.forward = forward  # type: ignore[method-assign]
    try:
        yield
    finally:
        del module.forward


def entropy_of(logprobs: Tensor) -> Tensor:
    """Entropy in nats of normalised log-probabilities along the last axis; a token without chance adds nothing."""
    return -torch.where(logprobs > -torch.inf, logprobs.exp() * logprobs, 0).sum(dim=-1)


class BeforeLearning(Policy):
    """A policy as it was before its adapters learned, on the same weights."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy.model, policy.tokenizer, policy.device, chat=policy.chat, recomputes=policy.recomputes)
        self._policy = policy

    def score(self, tokens: Tokens, **options: Any) -> TokenScores:
        with adapters.without_adapters(self.model):
            return self._policy.score(tokens, **options)


def load_policy(config: ModelConfig) -> Policy:
    """The model of `config`, ready to train.

    Raises:
        ConfigError: on a key of model, saying what is wrong with the folder, the machine or the adapters.
    """
    device = _device(config.device)
    loaded, tokenizer = _load(config)
    model: Any = loaded
    # Dropout would make the trained distribution another than the sampled one.
    model.eval()
    if config.lora_rank:
        adapters.add_adapters(model, config)
    if processes() == 1:  # shards of several are no plain tensors
        quicken(model)
    if config.gradient_checkpointing:
        recompute_layers(model)
    policy = Policy(
        model.to(device),
        tokenizer,
        device,
        chat=chat_wrapper(tokenizer, config.chat),
        recomputes=config.gradient_checkpointing,
    )
    if not policy.eos_ids:
        raise ConfigError(
            "model.path",
            f"{config.path}: neither model nor tokenizer names an end-of-sequence token, so no completion could end; "
            "set eos_token_id in its generation_config.json",
        )
    if len(policy.pieces) > model.get_input_embeddings().num_embeddings:
        raise ConfigError(
            "model.path",
            f"{config.path}: the tokenizer has {len(policy.pieces)} tokens, "
            f"the model only {model.get_input_embeddings().num_embeddings}; take the tokenizer that the model was made with",
        )
    return policy


def layers_of(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The layers that a model is a stack of."""
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def recompute_layers(model: PreTrainedModel) -> None:
    """Have `model` keep only what enters each layer, and work the layer out again on the way back.

    Raises:
        ConfigError: it is no stack of layers that transformers knows.
    """
    layers = layers_of(model)
    if not layers:
        raise ConfigError(
            "model.gradient_checkpointing", f"{type(model).__name__} has no layers that it knows; set off"
        )
    for layer in layers:
        layer.forward = partial(_recomputed, layer.forward)  # type: ignore[method-assign]


def _recomputed(forward: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*arguments, **options)
    return checkpoint(forward, *arguments, use_reentrant=False, **options)


def _load(config: ModelConfig) -> tuple[PreTrainedModel, Any]:
    folder = model_folder(config.path)
    source: dict[str, Any] = {"gguf_file": GGUF_FILES[config.path]} if config.path in GGUF_FILES else {}
    with _refusals(config.path, folder):
        described = AutoConfig.from_pretrained(folder, **source, **LOCAL_ONLY)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            config=described,
            dtype=getattr(torch, config.dtype),
            output_loading_info=True,
            **(source or {"use_safetensors": True}),
            **LOCAL_ONLY,
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, **source, **LOCAL_ONLY)
    model, loading = loaded
    if absent := sorted(loading["missing_keys"]):
        # transformers would train these from random numbers without a word.
        raise ConfigError("model.path", f"{config.path}: the weights lack {_few(absent)}")
    if not getattr(model.config, "num_attention_heads", None):
        raise ConfigError(
            "model.path",
            f"{config.path}: {described.model_type} has no attention, whose keys and values sampling caches",
        )
    return model, tokenizer


def weights_of(policy: Policy) -> dict[str, Tensor]:
    """All weights by name, a tied one under each of its names; in processes that do not lead, of shards None."""
    found: dict[int, Tensor] = {}
    weights = {}
    for name, tensor in _named_tensors(policy.model):
        # Shards are put together once, whatever number of names they have.
        if id(tensor) not in found:
            found[id(tensor)] = whole_tree(tensor.detach())
        weights[name] = found[id(tensor)]
    return weights


def merged_weights(policy: Policy) -> dict[str, Tensor]:
    """All weights by name, what adapters learned added to them."""
    return adapters.merged(policy.model, weights_of(policy))


def stored_weights(policy: Policy) -> dict[str, Tensor]:
    """What a checkpoint keeps of the weights: all of them, or those of the adapters."""
    weights = weights_of(policy)
    if adapters.adapter_layers(policy.model):
        return {name: value for name, value in weights.items() if adapters.is_of_adapter(name)}
    return weights


def save_model(policy: Policy, folder: Path, weights: dict[str, Tensor]) -> None:
    """Write model and tokenizer as a Hugging Face folder, loadable by its path; or adapters as one of PEFT's."""
    policy.model.save_pretrained(folder, state_dict=weights)
    policy.tokenizer.save_pretrained(folder)


def load_weights(policy: Policy, folder: Path) -> None:
    """Put the weights that a checkpoint keeps in place.

    Raises:
        ValueError: they are another model's.
    """
    saved: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        saved |= load_file(file, device=str(policy.device))
    if adapters.adapter_layers(policy.model):
        saved = {adapters.own_name(name): value for name, value in saved.items()}
    put_weights(policy, saved)


@torch.no_grad()
def put_weights(policy: Policy, weights: Mapping[str, Tensor]) -> None:
    """Put all weights in place, or all of the adapters where there are some.

    Raises:
        ValueError: they are another model's.
    """
    own = dict(_named_tensors(policy.model))
    if adapters.adapter_layers(policy.model):
        own = {name: tensor for name, tensor in own.items() if adapters.is_of_adapter(name)}
    # Tied weights may be given once, under one of their names.
    given = {id(own[name]) for name in weights if name in own}
    wrong = [name for name, value in weights.items() if name not in own or own[name].shape != value.shape]
    wrong += [name for name, tensor in own.items() if name not in weights and id(tensor) not in given]
    if wrong:
        raise ValueError(f"it holds another model: {wrong[0]} and {len(wrong) - 1} more do not fit")
    for name, value in weights.items():
        own[name].copy_(laid_out_like(value, own[name]))


def _named_tensors(model: torch.nn.Module) -> list[tuple[str, Tensor]]:
    """Parameters and lasting buffers, a tied one under each of its names."""
    lasting = model.state_dict().keys()
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return [(name, tensor) for name, tensor in tensors if name in lasting]


@contextlib.contextmanager
def _refusals(path: str, folder: Path) -> Iterator[None]:
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    except (
        Exception
    ) as error:  # each library under from_pretrained has its own: safetensors, tokenizers, OSError, KeyError
        if names_code(folder):
            said = (
                "it needs code of its own (auto_map), which is never run; take a model that transformers has built in"
            )
        else:
            said = f"it cannot be loaded: {str(error).strip() or type(error).__name__}"
        raise ConfigError("model.path", f"{path}: {said}") from error


def _eos_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    generation = getattr(model, "generation_config", None)
    found: set[int] = set()
    for source in (getattr(generation, "eos_token_id", None), model.config.eos_token_id, tokenizer.eos_token_id):
        if source is not None:
            found.update(source if isinstance(source, list | tuple) else [source])
    return frozenset(found)


def _device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("model.device", "cuda is wanted, but torch sees no GPU here; use auto or cpu")
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    if local_rank() >= torch.cuda.device_count():
        raise ConfigError(
            "processes",
            f"each process needs a GPU, and there are {torch.cuda.device_count()}; take fewer, or model.device cpu",
        )
    return torch.device("cuda", local_rank()) if processes() > 1 else torch.device("cuda")


def _few(names: Sequence[str], limit: int = 3) -> str:
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
