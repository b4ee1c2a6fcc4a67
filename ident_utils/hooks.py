"""Forward hooks that are always removed; the stock model is never changed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn


@contextmanager
def watch(modules: list[nn.Module], see: Callable[[int, Tensor], None]) -> Iterator[None]:
    """Call ``see(index, output)`` after each module has run, changing nothing."""

    def hook_for(index: int) -> Callable:
        def hook(_module: nn.Module, _args: tuple, output: Tensor) -> None:
            see(index, output)

        return hook

    handles = [module.register_forward_hook(hook_for(i)) for i, module in enumerate(modules)]
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

    def hook_for(index: int) -> Callable:
        def hook(_module: nn.Module, args: tuple) -> tuple:
            return (rewrite(index, args[0]), *args[1:])

        return hook

    handles = [module.register_forward_pre_hook(hook_for(i)) for i, module in enumerate(modules)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
