"""The tokenizer of an embedded model, without transformers."""

from __future__ import annotations

import json
from collections import UserDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Encoding, Tokenizer

from wherefrom.errors import FileError, InputError

ROLES = ("unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class Encodings(UserDict[str, Any]):
    """The output of a tokenizer: lists or tensors by name."""

    def __init__(self, data: dict[str, Any], encodings: Sequence[Encoding]) -> None:
        super().__init__(data)
        self._encodings = encodings

    def word_ids(self, row: int = 0) -> list[int | None]:
        """The index of the word that each token of a text belongs to."""
        return list(self._encodings[row].word_ids)

    def sequence_ids(self, row: int = 0) -> list[int | None]:
        """Which text of a pair each token belongs to: 0 or 1; None for special tokens."""
        return list(self._encodings[row].sequence_ids)


class TextTokenizer:
    """Splits texts by the rules of a tokenizer.json; called like a tokenizer of transformers."""

    is_fast = True

    def __init__(
        self, backend: Tokenizer, special_tokens: dict[str, str], model_max_length: int
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self.backend_tokenizer = backend
        self.special_tokens_map = special_tokens
        self.model_max_length = model_max_length

    @classmethod
    def load(cls, folder: Path) -> TextTokenizer:
        """Reads tokenizer.json and tokenizer_config.json."""
        try:
            backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
            data = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
            special = {role: str(data[role]) for role in ROLES}
            return cls(backend, special, int(data["model_max_length"]))
        except Exception as error:  # `tokenizers` raises plain exceptions
            raise FileError(f"cannot read the tokenizer in {folder}: {error}") from error

    def __call__(
        self,
        text: str | Sequence[str],
        text_pair: Sequence[str] | None = None,
        *,
        add_special_tokens: bool = True,
        padding: bool = False,
        return_offsets_mapping: bool = False,
        return_special_tokens_mask: bool = False,
        return_tensors: str | None = None,
        verbose: bool = True,
    ) -> Encodings:
        """The ids and attention mask of a text or of several; of pairs, the types too.

        `verbose` exists for compatibility: this tokenizer never warns of long texts.
        """
        is_single = isinstance(text, str)
        texts: list[Any] = [text] if isinstance(text, str) else list(text)
        if text_pair is not None:
            texts = list(zip(texts, text_pair, strict=True))
        encodings = self.backend_tokenizer.encode_batch(
            texts, add_special_tokens=add_special_tokens
        )
        if padding:
            longest = max(len(encoding) for encoding in encodings)
            for encoding in encodings:
                encoding.pad(longest, pad_id=self.pad_token_id, pad_token=self.pad_token)
        data: dict[str, list[Any]] = {
            "input_ids": [encoding.ids for encoding in encodings],
            "attention_mask": [encoding.attention_mask for encoding in encodings],
        }
        if text_pair is not None:
            data["token_type_ids"] = [encoding.type_ids for encoding in encodings]
        if return_special_tokens_mask:
            data["special_tokens_mask"] = [e.special_tokens_mask for e in encodings]
        if return_offsets_mapping:
            data["offset_mapping"] = [encoding.offsets for encoding in encodings]
        if return_tensors is not None:
            if return_tensors != "pt":
                raise InputError(f'return_tensors must be "pt" or None, got {return_tensors!r}.')
            return Encodings({name: torch.tensor(rows) for name, rows in data.items()}, encodings)
        return Encodings({n: rows[0] for n, rows in data.items()} if is_single else data, encodings)

    def __len__(self) -> int:
        return int(self.backend_tokenizer.get_vocab_size())

    def __getattr__(self, name: str) -> Any:
        """`pad_token`, `pad_token_id` and so on."""
        role = name.removesuffix("_id")
        if role not in ROLES:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        token = self.special_tokens_map[role]
        return token if name == role else self.convert_tokens_to_ids(token)

    @property
    def all_special_ids(self) -> list[int]:
        """The ids of the special tokens."""
        return [self.convert_tokens_to_ids(token) for token in self.special_tokens_map.values()]

    def get_vocab(self) -> dict[str, int]:
        """The id of every token."""
        return dict(self.backend_tokenizer.get_vocab())

    def convert_ids_to_tokens(self, ids: int | Sequence[int]) -> Any:
        """The token of an id, or of each id."""
        if isinstance(ids, int):
            return self.backend_tokenizer.id_to_token(ids)
        return [self.backend_tokenizer.id_to_token(int(number)) for number in ids]

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> Any:
        """The id of a token, or of each token; unknown tokens get the id of [UNK]."""
        if isinstance(tokens, str):
            number = self.backend_tokenizer.token_to_id(tokens)
            return self.unk_token_id if number is None else number
        return [self.convert_tokens_to_ids(token) for token in tokens]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of token ids."""
        numbers = [int(number) for number in ids]
        return str(self.backend_tokenizer.decode(numbers, skip_special_tokens=skip_special_tokens))
