"""Read a model's folder: tokenizer, configuration and weights, with one sentence for whatever is wrong with them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import torch
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from ident_utils.errors import IdentError
from ident_utils.families import family_of
from ident_utils.hub import WEIGHTS, weights_in


def read_folder(folder: Path, name: str, dtype: torch.dtype) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    """Return tokenizer and model, the model in eval mode with eager attention, without gradients or a pooler.

    No code that comes with a checkpoint is run. Raises IdentError naming the file that is damaged, or the encoder's
    weights that are missing.
    """
    part, weights = "config.json", weights_in(folder)
    try:
        declared = json.loads((folder / part).read_text(encoding="utf-8"))
        kind, decoder = declared.get("model_type"), declared.get("is_encoder_decoder", False)
        family_of(SimpleNamespace(model_type=kind, is_encoder_decoder=decoder), name)
        with quiet_transformers():
            config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            part = "the tokenizer"
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            if len(tokenizer) <= len(tokenizer.all_special_ids):
                raise IdentError(f"{name} has no vocabulary: put its tokenizer files beside config.json in {folder}.")
            part = weights.name
            model, report = AutoModel.from_pretrained(
                folder,
                config=config,
                dtype=dtype,
                attn_implementation="eager",
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=weights.name == WEIGHTS,
                output_loading_info=True,
            )
    except IdentError:
        raise
    except Exception as error:  # transformers lets through whatever its readers raise
        reason = f"{type(error).__name__}: {error}".splitlines()[0].rstrip(".")
        raise IdentError(f"Cannot load {folder}: {part} is damaged or does not fit the rest ({reason}).") from error
    lost = [key for key in report["missing_keys"] if not key.startswith("pooler.")]
    if lost:
        raise IdentError(f"{name} lacks {len(lost)} weights of the encoder, such as {lost[0]}; fetch it again.")
    if hasattr(model, "pooler"):
        model.pooler = None  # trained on another task or not at all, and never measured
    return tokenizer, model.eval().requires_grad_(False)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep loading bars and notes out of notebooks; errors still show."""
    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        transformers_logging.enable_progress_bar()
