"""Forward hooks that are always removed; the stock model is never changed.

A module may be listed several times, as ALBERT's shared layers are: its calls then have its places in the list, in
turn.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle

from torch import Tensor, nn


def _places(modules: list[nn.Module]) -> list[tuple[nn.Module, Iterator[int]]]:
    """Pair each module, once, with the indices that its calls have: its places in the list, over and over."""
    places: dict[nn.Module, list[int]] = {}
    for index, module in enumerate(modules):
        places.setdefault(module, []).append(index)
    return [(module, cycle(indices)) for module, indices in places.items()]


@contextmanager
def watch(modules: list[nn.Module], see: Callable[[int, Tensor], None]) -> Iterator[None]:
    """Call ``see(index, output)`` after each module has run, changing nothing."""

    def hook_for(places: Iterator[int]) -> Callable:
        def hook(_module: nn.Module, _args: tuple, output: Tensor) -> None:
            see(next(places), output)

        return hook

    handles = [module.register_forward_hook(hook_for(places)) for module, places in _places(modules)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def substitute_output(module: nn.Module, output: Tensor) -> Iterator[None]:
    """Let ``module`` return ``output`` whatever it is given."""
    handle = module.register_forward_hook(lambda _module, _args, _output: output)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def rewrite_input(modules: list[nn.Module], rewrite: Callable[[int, Tensor], Tensor]) -> Iterator[None]:
    """Feed each module ``rewrite(index, input)`` in place of its first argument."""

    def hook_for(places: Iterator[int]) -> Callable:
        def hook(_module: nn.Module, args: tuple) -> tuple:
            return (rewrite(next(places), args[0]), *args[1:])

        return hook

    handles = [module.register_forward_pre_hook(hook_for(places)) for module, places in _places(modules)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
