"""How large a request may be, and how much the server keeps in memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """The limits of one server; the error message of a refused request states the limit."""

    body_bytes: int = 8 << 20
    text_characters: int = 20_000
    units: int = 1024  # tokens, patches or atoms: work and memory grow with their square
    table_texts: int = 1000  # rows of one table
    view_positions: int = 128  # tokens of an input whose heads are all shown at once
    answer_tokens: int = 128  # that a model generates for one request
    image_pixels: int = 16 << 20  # once decoded
    job_seconds: float = 60.0  # running time of one job, its time in the queue not counted
    upload_seconds: float = 30.0  # for the body of a request to arrive
    queued_jobs: int = 16
    cached_explanations: int = 128
    cached_predictions: int = 8
    cached_attention: int = 1  # all maps of one input: they can be large
