import torch
from transformers import DynamicCache

from training.engines.roomy_cache import RoomyLayer, make_room


def states(rows: int, tokens: int, first: float) -> torch.Tensor:
    """`[rows, 2, tokens, 3]`, every number another."""
    return first + torch.arange(rows * 2 * tokens * 3, dtype=torch.float32).view(rows, 2, tokens, 3)


def test_it_holds_what_a_plain_cache_holds_while_rows_leave_and_tokens_come() -> None:
    plain, roomy = DynamicCache(), DynamicCache()
    for cache in (plain, roomy):
        cache.update(states(4, 5, 0), states(4, 5, 1000), 0)
    make_room(roomy, 3)
    assert type(roomy.layers[0]) is RoomyLayer
    for rows, going in ((4, [0, 1, 3]), (3, [2]), (1, [0])):
        for cache in (plain, roomy):
            cache.update(states(rows, 1, 50), states(rows, 1, 2000), 0)
            cache.batch_select_indices(torch.tensor(going))
        assert torch.equal(plain.layers[0].keys, roomy.layers[0].keys)
        assert torch.equal(plain.layers[0].values, roomy.layers[0].values)
        assert plain.get_seq_length() == roomy.get_seq_length()


def test_a_token_is_written_in_place() -> None:
    cache = DynamicCache()
    cache.update(states(2, 5, 0), states(2, 5, 1000), 0)
    make_room(cache, 1)
    before = cache.layers[0].keys.data_ptr()
    keys, _ = cache.update(states(2, 1, 50), states(2, 1, 2000), 0)
    assert keys.data_ptr() == before
