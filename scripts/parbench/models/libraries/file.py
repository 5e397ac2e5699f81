"""A user's own model files, outside the checkout: file/<label>-<beginning of its SHA-256>.

A plan reads the content of each; cells run a copy below results/, wherever they run. The code is
run without checks, since it is the user's own.
"""

from __future__ import annotations

import functools
import hashlib
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from parbench import files
from parbench.errors import ParbenchError
from parbench.models import _outline
from parbench.models._library import one_block, uncut

if TYPE_CHECKING:
    from torch import nn

PACKAGE = "torch"
LISTED = "name a model file of your own by its path: {mine: {file: mine.py}}"
KEPT = Path(__file__).resolve().parents[4] / "results" / "plan" / "models"
DIGITS = 16  # hexadecimal digits of the SHA-256 in a name
LABEL = "[A-Za-z0-9][A-Za-z0-9_.-]{0,39}"

_given: dict[str, tuple[bytes, str, str]] = {}  # by name: content, and who names the file


def names() -> list[str]:
    """Return no names, since a study gives files by their paths."""
    return []


def give(label: str, path: Path, study: str, key: str) -> str:
    """Read the model file ``path``, which ``key`` of ``study`` names; return the model's name.

    Raises only ParbenchError, whose message begins with study and key.
    """
    where = f"{study}: {key}"
    if not re.fullmatch(LABEL, label):
        raise ParbenchError(
            f"{where}: the name of a model with a file consists of letters, digits, '_', '.' and "
            "'-', at most 40; give the entry another name"
        )
    files.read_text(path, f"{where}: {path}")  # raises a clear error for a file that is not UTF-8
    content = path.read_bytes()
    name = f"{label}-{hashlib.sha256(content).hexdigest()[:DIGITS]}"
    _given[name] = content, study, key
    return f"file/{name}"


def keep() -> None:
    """Write copies of all files given to ``give`` below results/, for cells to run."""
    for name, (content, *_) in _given.items():
        path = KEPT / f"{name}.py"
        if not path.exists() or path.read_bytes() != content:
            files.write_atomically(path, content)


class Network:
    """The model of a file, with the attributes of a model file, of which only ``build`` is
    required.

    Raises ParbenchError if the file cannot be run, or defines one of them as something else.
    """

    def __init__(self, name: str):
        self.name = name
        self._module, self._where, self._key = _loaded(name)
        self.OPTIONS: dict[str, dict] = self._stated("OPTIONS", {})
        self.SMALL: dict[str, Any] = self._stated("SMALL", {})
        if not callable(getattr(self._module, "build", None)):
            raise self._error("defines no function `build(num_classes, image_size, options)`")
        for key in self.SMALL:
            if key not in self.OPTIONS:
                raise self._error(f"SMALL sets {key!r}, which is not one of its OPTIONS")
        for key, part in self.OPTIONS.items():
            if not isinstance(part, dict) or not {"description", "default"} <= part.keys():
                raise self._error(f"OPTIONS: {key} needs a `description` and a `default`")
            if not {"type", "enum"} & part.keys():
                raise self._error(f"OPTIONS: {key} needs a `type`, or an `enum` of its values")

    def cuts(self, stages: int, options: dict) -> list[str]:
        """Return the names of the blocks that begin the 2nd, 3rd, ... of ``stages`` stages.

        Raises ParbenchError if there cannot be that many.
        """
        cuts = getattr(self._module, "cuts", None)
        if cuts is None:
            if stages == 1:
                return []
            raise ParbenchError(uncut(self._key, stages))
        try:
            found = cuts(stages, options)
        except (Exception, SystemExit) as error:
            raise ParbenchError(f"{self._key}: `cuts` raises {_outline.described(error)}") from None
        blocks = self._blocks(options) if stages > 1 else []
        if not isinstance(found, list) or len(found) != stages - 1 or set(found) - set(blocks):
            raise ParbenchError(
                f"{self._key}: `cuts` returns {str(found)[:80]} for {stages} stages, not a list "
                f"of {stages - 1} of the blocks that `build` names: {', '.join(blocks)[:200]}"
            )
        return found

    def _blocks(self, options: dict) -> list[str]:
        size = self.SMALL_SIZE
        made = _outline.outline(lambda: self.build(_outline.CLASSES, size, dict(options)))
        return [name for name, _ in made.named_children()]

    def build(self, num_classes: int, image_size: int, options: dict) -> nn.Sequential:
        """Build the model: [B, 3, S, S] float -> [B, num_classes] logits."""
        from torch import nn

        try:
            module: Any = self._module
            model = module.build(num_classes, image_size, options)
        except (ParbenchError, MemoryError, RuntimeError):  # RuntimeError: also memory, devices
            raise
        except (Exception, SystemExit) as error:
            raise self._error(f"`build` raises {_outline.described(error)}") from error
        return model if type(model) is nn.Sequential else one_block(model)

    def problem(self, image_size: int, options: dict) -> str | None:
        """Return None. Raises ParbenchError if it cannot train on images of this size."""
        module: Any = self._module
        found = _outline.problem(
            lambda: module.build(_outline.CLASSES, image_size, dict(options)), image_size
        )
        if found is not None:
            raise self._error(found)
        return None

    @functools.cached_property
    def SMALL_SIZE(self) -> int:
        """The size of images for its certificate, in pixels per side."""
        module: Any = self._module
        options = {key: part["default"] for key, part in self.OPTIONS.items()} | self.SMALL
        return _outline.small_size(lambda size: module.build(_outline.CLASSES, size, dict(options)))

    def _stated(self, key: str, default: object) -> Any:
        value = getattr(self._module, key, default)
        if not isinstance(value, type(default)):
            raise self._error(f"{key} is a {type(value).__name__}, not a {type(default).__name__}")
        return value

    def _error(self, problem: str) -> ParbenchError:
        return ParbenchError(f"{self._where}: {problem}; correct the file (docs/extending.md)")


@functools.cache
def _loaded(name: str) -> tuple[ModuleType, str, str]:
    """Return the module of the file with this name, and how errors refer to it: in full, and after
    the study's name."""
    path = KEPT / f"{name}.py"
    if name in _given:
        content, study, key = _given[name]
        where = f"{study}: {key}"
    else:
        content, where, key = _kept(path, name), str(path), name
    module = ModuleType(f"parbench_model_{name}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses look it up there
    try:
        exec(compile(content, str(path), "exec"), module.__dict__)  # noqa: S102  (the user's own)
    except SyntaxError as error:
        raise ParbenchError(
            f"{where}: line {error.lineno}: invalid Python: {error.msg}; correct the file"
        ) from None
    except (Exception, SystemExit) as error:
        advice = "; a model must be one file, which imports no other of yours" * isinstance(
            error, ImportError
        )
        raise ParbenchError(
            f"{where}: raises {_outline.described(error)}{advice}; correct the file"
        ) from None
    if hasattr(module, "VOCABULARY"):
        raise ParbenchError(f"{where}: VOCABULARY: a model with a file takes images; remove it")
    return module, where, key


def _kept(path: Path, name: str) -> bytes:
    is_name = re.fullmatch(f"{LABEL}-[0-9a-f]{{{DIGITS}}}", name)
    content = path.read_bytes() if is_name and path.is_file() else b""
    if not name.endswith(f"-{hashlib.sha256(content).hexdigest()[:DIGITS]}"):
        raise ParbenchError(
            f"{path}: this copy of a model file is missing or was changed; run snakemake again, "
            "which writes it again"
        )
    return content
