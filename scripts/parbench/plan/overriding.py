"""Find the value of the user's that makes a study impossible, for the message to name it."""

from __future__ import annotations

from collections.abc import Callable

import pydantic

from parbench.errors import ParbenchError
from parbench.plan.config_layers import value_at
from parbench.plan.configuration import Config
from parbench.plan.yaml_file import Keys, words_of


def explained(
    error: ParbenchError, config: Config, expand: Callable[[Config], object]
) -> ParbenchError:
    """Return the ``error`` that ``expand`` raised for ``config``, naming what causes it.

    The cause is an overriding value whose removal makes the error vanish or, failing that, changes
    it. If no single value does so, whole mappings are tried. Otherwise ``error`` is returned as it
    is: the study is the cause, or this machine, which ``expand`` ignores.
    """
    if _message(expand, config) is None:
        return error
    for candidates in config.layers.overrides():
        changed: list[Keys] = []  # without these, there is another error
        for keys in candidates:
            try:
                rest = Config.of(config.layers.without(keys), list(config.studies))
            except pydantic.ValidationError:  # other values need this one
                continue
            message = _message(expand, rest)
            if message is None:
                return _caused_by(keys, config, error)
            if message != str(error):
                changed.append(keys)
        if changed:
            return _caused_by(changed[0], config, error)
    return error


def _message(expand: Callable[[Config], object], config: Config) -> str | None:
    try:
        expand(config)
    except ParbenchError as error:
        return str(error)
    return None


def _caused_by(keys: Keys, config: Config, error: ParbenchError) -> ParbenchError:
    value = value_at(config.layers.merged(), keys)
    fits = "does not fit" if isinstance(value, dict) else f"value {words_of(value)} does not fit"
    return config.error(keys, f"{fits}: {error}")
