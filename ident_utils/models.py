"""A pretrained encoder, loaded so that it can be measured, with its provenance."""

import os
import reprlib
import warnings
from copy import deepcopy
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel, PreTrainedTokenizerBase

from ident_utils.archives import sha256_of
from ident_utils.checkpoints import quiet_transformers, read_folder
from ident_utils.errors import IdentError
from ident_utils.families import Family, family_of, layers_of
from ident_utils.hooks import watch
from ident_utils.hub import weights_in
from ident_utils.locate import locate_model
from ident_utils.trace import Trace, trace
from ident_utils.words import piece_words, readable_pieces, word_labels

Text = str | tuple[str, str]
Step = tuple[str, str | int]  # of making an encoder: what is done, and with which name, seed or precision
TRUNCATE = "IDENT_TRUNCATE"  # set to 1, it cuts what is too long, with a warning


@dataclass(frozen=True)
class Encoding:
    """Hold one tokenised text: ids [1, n], readable word pieces, and which of them were added."""

    input_ids: Tensor  # [1, n]
    token_type_ids: Tensor | None  # [1, n]
    tokens: tuple[str, ...]
    special: Tensor  # [n]
    words: tuple[int, ...] = ()  # n numbers, the word that each piece belongs to
    word_labels: tuple[str, ...] = ()  # one for each word


@dataclass(frozen=True)
class Encoder:
    """Wrap a stock transformers encoder in eval mode with eager attention."""

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    provenance: dict[str, str] = field(compare=False)
    recipe: tuple[Step, ...] = field(default=(), compare=False, repr=False)  # makes it again; () where nothing does

    def __str__(self) -> str:
        """Say in one line what was loaded and from where."""
        origin = " ".join(
            f"{key} {value[:12]}" for key, value in self.provenance.items() if key not in ("name", "source")
        )
        precision = _name(self.dtype)
        return (
            f"{self.name}: {self.n_layers} layers, {self.n_heads} heads of {self.head_dim}, {self.width} wide, "
            f"{precision}; {self.provenance['source']}, {origin}{''.join(f'; {note}' for note in self.notes)}"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Say what a reader of results must know about models of this kind; nothing for BERT and its like."""
        notes = []
        if self.causal:
            notes.append("causal: a token sees only itself and the tokens before it, masked zeros are no evidence")
        if self.family.final_norm:
            notes.append("the last hidden state is after a final norm")
        narrow = getattr(self.model.config, "embedding_size", self.width)
        if self.family.widening and narrow != self.width:
            notes.append(f"inputs are {narrow} wide, and widened before the first layer")
        if self.family.shares_layers:
            notes.append("layers share weights and count by calls")
        return tuple(notes)

    @property
    def family(self) -> Family:
        """Name the parts of this model's family."""
        return family_of(self.model.config, self.name)

    @property
    def embeddings(self) -> nn.Module:
        """Return the embedding block, whose output x is ``hidden[0]``, or is widened to it."""
        return self.model.get_submodule(self.family.embeddings)

    @property
    def causal(self) -> bool:
        """Say whether a token sees only itself and the tokens before it."""
        return self.family.causal or bool(getattr(self.model.config, "is_decoder", False))

    @property
    def n_layers(self) -> int:
        """Return L, the number of calls: a shared layer counts as often as it is used."""
        return len(layers_of(self.model, self.family))

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
        config, reserved = self.model.config, self.family.reserved_positions
        if reserved:  # places are counted from the padding token's number on
            reserved = max(reserved, (config.pad_token_id or 0) + 1)
        return config.max_position_embeddings - reserved

    def encode(self, text: Text, *, truncate: int | None = None) -> Encoding:
        """Tokenise one text or pair, checking its length before anything runs.

        Raises IdentError for a blank text, and for one longer than the model's limit unless ``truncate`` says
        to cut it.
        """
        parts = self._parts(text)
        limit = self.max_tokens if truncate is None else truncate
        if not 1 <= limit <= self.max_tokens:
            raise IdentError(f"{self.name} takes 1 to {self.max_tokens} tokens, not {limit}.")
        wanted = {"return_tensors": "pt", "return_special_tokens_mask": True}
        batch = self.tokenizer(*parts, verbose=False, **wanted)
        whole = batch["input_ids"].shape[1]
        if whole > limit and (truncate is not None or os.environ.get(TRUNCATE) == "1"):
            batch = self.tokenizer(*parts, truncation=True, max_length=limit, **wanted)
            if truncate is None:
                warnings.warn(f"a text of {whole} tokens was cut to the {limit} that {self.name} takes", stacklevel=2)
        n, special = batch["input_ids"].shape[1], batch["special_tokens_mask"][0].bool()
        if n == 0:
            raise IdentError(f"{self.name} finds no token in {reprlib.repr(text)}; give it at least one word.")
        if n > limit:
            remedy = "shorten it, or ask for truncation" if truncate is None else "leave room for the special tokens"
            raise IdentError(f"The text has {n} tokens and {self.name} takes at most {limit}; {remedy}.")
        if special.all():
            raise IdentError(
                f"{self.name} finds no word in {n} tokens of {reprlib.repr(text)}; give it at least one."
            )
        pieces = readable_pieces(self.tokenizer, batch, parts)
        return Encoding(
            input_ids=batch["input_ids"].to(self.model.device),
            token_type_ids=self._token_types(batch),
            tokens=pieces,
            special=special,
            words=piece_words(batch),
            word_labels=word_labels(batch, parts, pieces),
        )

    def count_tokens(self, text: Text) -> int:
        """Return how many tokens a text has before anything is cut; IdentError where it is none."""
        return len(self.tokenizer(*self._parts(text), verbose=False)["input_ids"])

    def _parts(self, text: Text) -> tuple[str, ...]:
        """Return one string or two; a pair is one text where the tokenizer puts nothing between its halves."""
        parts = (text,) if isinstance(text, str) else tuple(text) if isinstance(text, list | tuple) else ()
        if len(parts) not in (1, 2) or not all(isinstance(p, str) and p.strip() for p in parts):
            raise IdentError(f"A text must be one string or two, none of them blank; got {reprlib.repr(text)}.")
        if any("\ud800" <= character <= "\udfff" for part in parts for character in part):
            raise IdentError(f"A text must be whole Unicode characters; half of one is in {reprlib.repr(text)}.")
        if len(parts) == 2 and not self.tokenizer.num_special_tokens_to_add(pair=True):
            return (" ".join(parts),)
        return parts

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
        extra: dict[str, object] = {"use_cache": False} if self.causal else {}
        if encoding.token_type_ids is not None:
            extra["token_type_ids"] = encoding.token_type_ids
        return self.model(
            input_ids=encoding.input_ids,
            output_attentions=output_attentions,
            output_hidden_states=True,
            return_dict=True,
            **extra,
        )

    def require_all_visible(self, what: str) -> None:
        """Raise IdentError for a causal model, where ``what`` would move weights to tokens that the mask forbids."""
        if self.causal:
            raise IdentError(
                f"{what} is about weights on any token, but {self.name} is causal; choose one that attends to all."
            )

    def embedded(self, encoding: Encoding) -> Tensor:
        """Return x, what the embedding block hands on: [1, n, d_in]; some families have d_in < d."""
        seen: dict[int, Tensor] = {}
        with torch.no_grad(), watch([self.embeddings], seen.__setitem__):
            self.run(encoding)
        return seen[0]

    def values_of_heads(self, index: int, projected: Tensor) -> Tensor:
        """Return V [H, n, d_v] from what the value projection of the layer ``index`` (from 0) gave for one text."""
        layer = layers_of(self.model, self.family)[index]
        return self.split_heads(self.family.take_values(layer, projected, self.n_heads)[0])

    def split_heads(self, tensor: Tensor) -> Tensor:
        """Reshape [n, H * d_v] to [H, n, d_v]."""
        return tensor.unflatten(-1, (self.n_heads, -1)).transpose(0, 1)

    def trace(self, text: Text, *, truncate: int | None = None) -> Trace:
        """Run one text and keep attention [L,H,n,n], values [L,H,n,d_v] and hidden [L+1,n,d]."""
        return trace(self, text, truncate=truncate)


def load_encoder(
    name: str, *, device: str = "cpu", dtype: torch.dtype = torch.float32, check: bool = True
) -> Encoder:
    """Load an encoder by its name in ``data/models.toml``, from a local folder, or by its name on a hub.

    A name on a hub may end in @REVISION. The weights' sha256 is checked first where one is known. The model comes in
    eval mode, with eager attention, without a pooler, in float32 unless ``dtype`` says otherwise (float64 is best for
    ranks and null spaces). Only safetensors are read unless the environment variable IDENT_UNSAFE_WEIGHTS is 1.

    Raises IdentError when there is no such model, it cannot be read, or, unless ``check`` is off, when what can be
    traced through it is not what it computes (:mod:`ident_utils.fidelity`).
    """
    found = locate_model(name)
    tokenizer, model = read_folder(found.folder, name, dtype)
    model.to(device)
    provenance = {"name": name, "source": found.source, "revision": found.revision}
    provenance |= {"sha256": sha256_of(weights_in(found.folder))}
    encoder = Encoder(name, model, tokenizer, provenance, (("load", name), ("precision", _name(dtype))))
    if check:
        from ident_utils.fidelity import refuse_unfaithful  # here: that module measures with this one's encoders

        refuse_unfaithful(encoder)
    return encoder


def permuted(encoder: Encoder, seed: int = 0) -> Encoder:
    """Return a copy whose layers hold the trained numbers in random order, tensor by tensor: no structure is left.

    The embedding block is as trained.
    """
    generator = torch.Generator().manual_seed(seed)
    model = deepcopy(encoder.model)
    with torch.no_grad():
        for layer in layers_of(model, encoder.family):
            for weight in layer.parameters():
                order = torch.randperm(weight.numel(), generator=generator).to(weight.device)
                weight.copy_(weight.flatten()[order].view_as(weight))
    provenance = encoder.provenance | {"source": "layers permuted", "seed": str(seed)}
    recipe = _further(encoder, ("permute", seed))
    return replace(encoder, name=f"permuted {encoder.name}", model=model, provenance=provenance, recipe=recipe)


def untrained(encoder: Encoder, seed: int = 0) -> Encoder:
    """Return the same architecture with freshly initialised weights: a control."""
    with torch.random.fork_rng(devices=[]), quiet_transformers():
        torch.manual_seed(seed)
        model = AutoModel.from_config(encoder.model.config, attn_implementation="eager")
    model.eval().requires_grad_(False).to(encoder.model.device, encoder.dtype)
    provenance = {"name": f"untrained {encoder.name}", "source": "random initialisation", "seed": str(seed)}
    recipe = _further(encoder, ("initialise", seed))
    return replace(encoder, name=f"untrained {encoder.name}", model=model, provenance=provenance, recipe=recipe)


def in_precision(encoder: Encoder, dtype: torch.dtype) -> Encoder:
    """Return the encoder with a copy of its model in another precision; lower ones round the weights."""
    recipe = _further(encoder, ("precision", _name(dtype)))
    return replace(encoder, model=deepcopy(encoder.model).to(dtype), recipe=recipe)


def made_again(recipe: tuple[Step, ...]) -> Encoder:
    """Make an encoder on the CPU by its recipe, as another process did before."""
    (_, name), (_, precision), *changes = recipe
    encoder = load_encoder(str(name), dtype=getattr(torch, str(precision)))
    for change, argument in changes:
        if change == "precision":
            encoder = in_precision(encoder, getattr(torch, str(argument)))
        else:
            encoder = {"permute": permuted, "initialise": untrained}[change](encoder, int(argument))
    return encoder


def _further(encoder: Encoder, step: Step) -> tuple[Step, ...]:
    return (*encoder.recipe, step) if encoder.recipe else ()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
