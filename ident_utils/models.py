"""A pretrained encoder, loaded so that it can be measured, with its provenance."""

import json
import reprlib
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from ident_utils.errors import IdentError
from ident_utils.families import Family, family_of
from ident_utils.fetch import fetch_model, model_catalogue, weights_sha256
from ident_utils.trace import Trace, trace

Text = str | tuple[str, str]


@dataclass(frozen=True)
class Encoding:
    """Hold one tokenised text: ids [1, n], readable word pieces, and which of them were added."""

    input_ids: Tensor  # [1, n]
    token_type_ids: Tensor | None  # [1, n]
    tokens: tuple[str, ...]
    special: Tensor  # [n]


@dataclass(frozen=True)
class Encoder:
    """Wrap a stock transformers encoder in eval mode with eager attention."""

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    provenance: dict[str, str]

    def __str__(self) -> str:
        """Say in one line what was loaded and from where."""
        origin = " ".join(
            f"{key} {value[:12]}" for key, value in self.provenance.items() if key not in ("name", "source")
        )
        precision = str(self.dtype).removeprefix("torch.")
        return (
            f"{self.name}: {self.n_layers} layers, {self.n_heads} heads of {self.head_dim}, {self.width} wide, "
            f"{precision}; {self.provenance['source']}, {origin}"
        )

    @property
    def family(self) -> Family:
        """Name the parts of this model's family."""
        return family_of(self.model.config, self.name)

    @property
    def embeddings(self) -> nn.Module:
        """Return the embedding block, whose output is ``hidden[0]``."""
        return self.model.get_submodule(self.family.embeddings)

    @property
    def n_layers(self) -> int:
        """Return L."""
        return self.model.config.num_hidden_layers

    @property
    def n_heads(self) -> int:
        """Return H."""
        return self.model.config.num_attention_heads

    @property
    def width(self) -> int:
        """Return d, the width of the hidden states."""
        return self.model.config.hidden_size

    @property
    def head_dim(self) -> int:
        """Return d_v, the width of one head's values."""
        return self.width // self.n_heads

    @property
    def dtype(self) -> torch.dtype:
        """Return the precision the weights are held in."""
        return self.model.dtype

    @property
    def max_tokens(self) -> int:
        """Return the longest sequence the position table allows."""
        return self.model.config.max_position_embeddings - self.family.reserved_positions

    def encode(self, text: Text, *, truncate: int | None = None) -> Encoding:
        """Tokenise one text or pair, checking its length before anything runs.

        Raises IdentError for a blank text, and for one longer than the model's limit unless ``truncate`` says
        to cut it.
        """
        parts = (text,) if isinstance(text, str) else tuple(text) if isinstance(text, list | tuple) else ()
        if len(parts) not in (1, 2) or not all(isinstance(p, str) and p.strip() for p in parts):
            raise IdentError(f"A text must be one string or two, none of them blank; got {reprlib.repr(text)}.")
        limit = self.max_tokens if truncate is None else truncate
        if not 1 <= limit <= self.max_tokens:
            raise IdentError(f"{self.name} takes 1 to {self.max_tokens} tokens, not {limit}.")
        batch = self.tokenizer(*parts, return_tensors="pt", return_special_tokens_mask=True, verbose=False)
        if truncate is not None and batch["input_ids"].shape[1] > limit:
            batch = self.tokenizer(
                *parts,
                return_tensors="pt",
                return_special_tokens_mask=True,
                truncation=True,
                max_length=limit,
            )
        n, special = batch["input_ids"].shape[1], batch["special_tokens_mask"][0].bool()
        if n > limit:
            remedy = "shorten it, or ask for truncation" if truncate is None else "leave room for the special tokens"
            raise IdentError(f"The text has {n} tokens and {self.name} takes at most {limit}; {remedy}.")
        if special.all():
            raise IdentError(
                f"{self.name} finds no word in {n} tokens of {reprlib.repr(text)}; give it at least one."
            )
        return Encoding(
            input_ids=batch["input_ids"].to(self.model.device),
            token_type_ids=self._token_types(batch),
            tokens=tuple(self.tokenizer.convert_ids_to_tokens(batch["input_ids"][0].tolist())),
            special=special,
        )

    def _token_types(self, batch: dict[str, Tensor]) -> Tensor | None:
        if getattr(self.model.config, "type_vocab_size", 0) < 2 or "token_type_ids" not in batch:
            return None
        return batch["token_type_ids"].to(self.model.device)

    def run(self, encoding: Encoding, *, output_attentions: bool = False) -> object:
        """Run the stock model on one encoding and return its own output, hidden states included.

        Raises IdentError in train mode, where dropout changes every run and attention rows do not sum to one.
        """
        if self.model.training:
            raise IdentError(f"{self.name} is in train mode, where dropout changes every run; call model.eval().")
        extra = {} if encoding.token_type_ids is None else {"token_type_ids": encoding.token_type_ids}
        return self.model(
            input_ids=encoding.input_ids,
            output_attentions=output_attentions,
            output_hidden_states=True,
            return_dict=True,
            **extra,
        )

    def split_heads(self, tensor: Tensor) -> Tensor:
        """Reshape [n, H * d_v] to [H, n, d_v]."""
        return tensor.unflatten(-1, (self.n_heads, -1)).transpose(0, 1)

    def trace(self, text: Text, *, truncate: int | None = None) -> Trace:
        """Run one text and keep attention [L,H,n,n], values [L,H,n,d_v] and hidden [L+1,n,d]."""
        return trace(self, text, truncate=truncate)


def load_encoder(name: str, *, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Encoder:
    """Load an encoder by its name in ``data/models.toml`` or from a local folder.

    The weights' sha256 is checked first. The model comes in eval mode, with eager attention, without a pooler,
    in float32 unless ``dtype`` says otherwise (float64 is best for ranks and null spaces).

    Raises IdentError when there is no such model, or it cannot be used.
    """
    if name in model_catalogue():
        folder = fetch_model(name)
        entry = model_catalogue()[name]
        origin = {"source": entry.hub, "revision": entry.revision}
    else:
        folder = _local_folder(name)
        origin = {"source": "local folder", "revision": "none"}
    tokenizer, model, report = _read_folder(folder, name, dtype)
    lost = [key for key in report["missing_keys"] if not key.startswith("pooler.")]
    if lost:
        raise IdentError(f"{name} lacks {len(lost)} weights of the encoder, such as {lost[0]}; fetch it again.")
    if hasattr(model, "pooler"):
        model.pooler = None  # trained on another task or not at all, and never measured
    model.eval().requires_grad_(False).to(device)
    provenance = {"name": name, **origin, "sha256": weights_sha256(folder)}
    return Encoder(name, model, tokenizer, provenance)


def _read_folder(
    folder: Path, name: str, dtype: torch.dtype
) -> tuple[PreTrainedTokenizerBase, PreTrainedModel, dict]:
    """Read tokenizer, model and loading report; whatever is wrong with the files becomes an IdentError."""
    part = "config.json"
    try:
        declared = json.loads((folder / part).read_text(encoding="utf-8"))
        family_of(SimpleNamespace(model_type=declared.get("model_type")), name)
        with _quiet_transformers():
            config = AutoConfig.from_pretrained(folder, local_files_only=True)
            part = "the tokenizer"
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            if len(tokenizer) <= len(tokenizer.all_special_ids):
                raise IdentError(f"{name} has no vocabulary: put its tokenizer files beside config.json in {folder}.")
            part = "model.safetensors"
            model, report = AutoModel.from_pretrained(
                folder,
                config=config,
                dtype=dtype,
                attn_implementation="eager",
                local_files_only=True,
                use_safetensors=True,
                output_loading_info=True,
            )
    except IdentError:
        raise
    except Exception as error:  # transformers lets through whatever its readers raise
        reason = f"{type(error).__name__}: {error}".splitlines()[0].rstrip(".")
        raise IdentError(f"Cannot load {folder}: {part} is damaged or does not fit the rest ({reason}).") from error
    return tokenizer, model, report


def _local_folder(name: str) -> Path:
    folder = Path(name).expanduser()
    missing = [f for f in ("config.json", "model.safetensors") if not (folder / f).is_file()]
    if not folder.is_dir() or missing:
        known = ", ".join(model_catalogue())
        what = "is no folder" if not folder.is_dir() else f"has no {missing[0]}"
        raise IdentError(f"There is no model {name!r}: {folder} {what}; models that come with the suite: {known}.")
    return folder


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Keep loading bars and notes out of notebooks; errors still show."""
    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        transformers_logging.enable_progress_bar()


def permuted(encoder: Encoder, seed: int = 0) -> Encoder:
    """Return the model with the entries of every weight matrix of its layers shuffled: a control.

    Sizes and distribution of the weights stay, what was learned goes.
    """
    generator = torch.Generator().manual_seed(seed)
    model = deepcopy(encoder.model)
    for weight in model.get_submodule(encoder.family.layers).parameters():
        if weight.ndim == 2:
            order = torch.randperm(weight.numel(), generator=generator).to(weight.device)
            weight.copy_(weight.flatten()[order].view_as(weight))
    provenance = {"name": f"permuted {encoder.name}", "source": "shuffled weights", "seed": str(seed)}
    return replace(encoder, name=f"permuted {encoder.name}", model=model, provenance=provenance)


def untrained(encoder: Encoder, seed: int = 0) -> Encoder:
    """Return the same architecture with freshly initialised weights: a control."""
    with torch.random.fork_rng(devices=[]), _quiet_transformers():
        torch.manual_seed(seed)
        model = AutoModel.from_config(encoder.model.config, attn_implementation="eager")
    model.eval().requires_grad_(False).to(encoder.model.device, encoder.dtype)
    provenance = {"name": f"untrained {encoder.name}", "source": "random initialisation", "seed": str(seed)}
    return replace(encoder, name=f"untrained {encoder.name}", model=model, provenance=provenance)
