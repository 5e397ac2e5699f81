"""Find the value of `override` that makes a study impossible, for the message to name it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from parbench.errors import ParbenchError
from parbench.plan.configuration import Config, Override
from parbench.plan.yaml_file import words_of


def explained(
    error: ParbenchError, study: str, config: Config, expand: Callable[[Config], object]
) -> ParbenchError:
    """Return the ``error`` that ``expand`` raised for ``config``, naming what causes it.

    A value of the `override` of ``study`` is the cause if its absence prevents the error; if no
    single value is, all of them may be. Otherwise ``error`` is returned as it is: the study is the
    cause, or this machine, which ``expand`` ignores.
    """
    try:
        expand(config)
    except ParbenchError:
        pass
    else:
        return error
    stated = config.override[study].stated() if study in config.override else {}
    different: list[tuple[str, ...]] = []  # without these, there is another error
    for keys, rest in _without_each(stated):
        overrides = {**config.override, study: Override.model_validate(rest)}
        try:
            expand(config.model_copy(update={"override": overrides}))
        except ParbenchError as other:
            if str(other) != str(error):
                different.append(keys)
        else:
            different.insert(0 if keys else len(different), keys)
    if not different:
        return error
    keys = ("override", study, *different[0])
    value: Any = stated
    for key in different[0]:
        value = value[key]
    fits = f"value {words_of(value)} does not fit" if different[0] else "does not fit"
    return ParbenchError(f"{config.where(*keys)}: {'.'.join(keys)}: {fits}: {error}")


def _without_each(stated: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Yield the keys of each value of an override, and the override without it; last, of all."""
    for key, value in stated.items():
        rest = {other: part for other, part in stated.items() if other != key}
        if key in ("settings", "hardware"):
            for inner in value:
                less = {other: part for other, part in value.items() if other != inner}
                yield (key, inner), {**rest, key: less}
        else:
            yield (key,), rest
    if stated:
        yield (), {}
