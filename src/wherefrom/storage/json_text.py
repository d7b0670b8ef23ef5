"""JSON that others wrote, read with clear errors."""

from __future__ import annotations

import json
from typing import Any

from wherefrom.errors import FileError


def parsed(text: str, what: str) -> Any:
    """The data of a JSON text; `what` names it in errors.

    >>> parsed('{"a": [1]}', "this")
    {'a': [1]}
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise FileError(f"{what} is not JSON: {error.msg}.") from error
    except RecursionError as error:
        raise FileError(f"{what} is nested too deeply.") from error
    except ValueError as error:  # Python reads no integer of more than 4,300 digits
        raise FileError(f"{what} has a number of too many digits.") from error
