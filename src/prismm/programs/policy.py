"""Policies: how the products of a program are to be made, as data that a person can read.

A policy is a list of rules; the first one that matches a product decides, and a product that none matches is left to
torch. As JSON::

    {"kind": "prismm.Policy", "version": 1,
     "rules": [{"module": "head", "off": true},
               {"module": "encoder.*", "operator": ["mm", "addmm"], "pass": "backward", "scheme": "words:tf32x3"},
               {"accuracy": "native"}]}

Nothing in a policy is executed: a file can only name schemes, targets and engines that prismm has.
"""

from __future__ import annotations

import fnmatch
import functools
import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from prismm.core import strict_json
from prismm.errors import ArgumentError, FileError, PrismmError
from prismm.programs.recipe import Recipe

if TYPE_CHECKING:
    import torch

KIND, VERSION = "prismm.Policy", 1

OPERATORS = ("mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot")
"""The operators that carry out every product in torch; linear, matmul, einsum and others end in them."""

_COMPOSED = {
    "linear": "mm (without bias) or addmm",
    "matmul": "mm, bmm, mv or dot",
    "einsum": "bmm",
    "tensordot": "mm",
    "chain_matmul": "mm",
    "inner": "mm",
}


@dataclass(frozen=True)
class Rule:
    """Which products, and how to make them.

    Args:
        module: glob of the module's name as `torch.nn.Module.named_modules` has it, "" for the outermost one; ``*``
            matches dots too. Names given by `scope` count as modules.
        operator: one of `OPERATORS`, a glob of them, or several: the operator that carries the product out.
        where: glob of file and line, such as "solver.py:41", of the innermost line outside torch.
        pass_: "forward", "backward", or None for both.
        accuracy, scheme, reproducible, engine: as for `prismm.matmul`; the scheme may be an instance or its name.
        off: leave the product to torch.

    Raises:
        ArgumentError, AccuracyError: for an unknown operator, scheme or target, or a rule that says nothing.

    >>> from prismm import Rule
    >>> Rule(module="encoder.*", scheme="words:tf32x3")
    Rule(module='encoder.*', scheme='words:tf32x3')
    """

    module: str = "*"
    operator: str | tuple[str, ...] = "*"
    where: str = "*"
    pass_: Literal["forward", "backward"] | None = None
    accuracy: str | float | None = None
    scheme: Any = None
    reproducible: bool = False
    engine: str | None = None
    off: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.operator, list):
            object.__setattr__(self, "operator", tuple(self.operator))
        patterns = self.operator if isinstance(self.operator, tuple) else (self.operator,)
        for name, value in (("module", self.module), ("where", self.where), *(("operator", x) for x in patterns)):
            if not isinstance(value, str):
                raise ArgumentError(f"a rule's {name} is {value!r}; pass a name or a glob such as 'encoder.*'")
        for pattern in patterns:
            if not fnmatch.filter(OPERATORS, pattern):
                hint = f"; torch carries {pattern} out as {_COMPOSED[pattern]}" if pattern in _COMPOSED else ""
                raise ArgumentError(f"unknown operator {pattern!r}{hint}; pass one of {', '.join(OPERATORS)}")
        if not patterns:
            raise ArgumentError("a rule without operators; leave operator out for all of them")
        if self.pass_ not in (None, "forward", "backward"):
            raise ArgumentError(f"a rule's pass is {self.pass_!r}; pass 'forward', 'backward', or leave it out")
        if self.scheme is not None and not isinstance(self.scheme, str):
            object.__setattr__(self, "scheme", _named(self.scheme))
        if (self.accuracy, self.scheme, self.engine) == (None,) * 3 and not (self.reproducible or self.off):
            raise ArgumentError(
                f"the rule for module {self.module!r} says nothing; pass accuracy, scheme, reproducible, engine or off"
            )
        object.__setattr__(self, "accuracy", self.recipe.accuracy)

    @functools.cached_property
    def recipe(self) -> Recipe:
        """How it makes a product."""
        return Recipe(self.accuracy, self.scheme, self.reproducible, self.engine, off=self.off)

    @functools.cached_property
    def _patterns(self) -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
        operators = self.operator if isinstance(self.operator, tuple) else (self.operator,)
        return (
            re.compile(fnmatch.translate(self.module)),
            re.compile("|".join(map(fnmatch.translate, operators))),
            re.compile(fnmatch.translate(self.where)),
        )

    def matches(self, module: str, operator: str, backward: bool, where: str) -> bool:
        """Whether it speaks of this product."""
        in_module, in_operator, in_where = self._patterns
        return (
            (self.pass_ is None or (self.pass_ == "backward") == backward)
            and in_module.match(module) is not None
            and in_operator.match(operator) is not None
            and in_where.match(where) is not None
        )

    def to_dict(self) -> dict[str, Any]:
        """What is not default, as JSON has it."""
        found = {_key(x.name): getattr(self, x.name) for x in fields(self) if getattr(self, x.name) != x.default}
        return {key: list(value) if isinstance(value, tuple) else value for key, value in found.items()}

    def __repr__(self) -> str:
        return f"Rule({', '.join(f'{_field(k)}={v!r}' for k, v in self.to_dict().items())})"


@dataclass(frozen=True)
class Policy:
    """How the products of a program are to be made: the first rule that matches decides.

    Args:
        rules: `Rule` objects; a product that none matches is left to torch.
        model: what `fingerprint` says of the model that the policy was made for, or None for any.
        note: words for people.

    Raises:
        ArgumentError: for an element that is not a rule.

    >>> from prismm import Policy, Rule
    >>> policy = Policy([Rule(module="head", off=True), Rule(accuracy="native", reproducible=True)])
    >>> policy.recipe("encoder.0", "addmm").reproducible, policy.recipe("head", "mm").off
    (True, True)
    >>> Policy.from_json(policy.to_json()) == policy
    True
    """

    rules: tuple[Rule, ...]
    model: str | None = None
    note: str = ""

    def __post_init__(self) -> None:
        rules = (self.rules,) if isinstance(self.rules, Rule) else tuple(self.rules)
        for rule in rules:
            if not isinstance(rule, Rule):
                raise ArgumentError(f"a policy of {type(rule).__name__} {rule!r}; pass prismm.Rule objects")
        object.__setattr__(self, "rules", rules)

    @classmethod
    def of(cls, policy: Any = None, **keywords: Any) -> Policy:
        """A policy as it is, or one rule for every product: from an accuracy, a scheme, or keywords of `Rule`.

        >>> Policy.of("correctly-rounded")
        Policy([Rule(accuracy='correctly-rounded')])

        Raises:
            ArgumentError, AccuracyError: for what makes no rule, or keywords beside a policy.
        """
        if isinstance(policy, Policy):
            if any(value for value in keywords.values()):
                raise ArgumentError(f"a policy and {', '.join(keywords)} besides; write them into its rules")
            return policy
        if isinstance(policy, Rule):
            return cls((policy,))
        if policy is None and not any(value for value in keywords.values()):
            policy = "native"
        if policy is not None and not isinstance(policy, (str, int, float)):
            if keywords.get("scheme") is not None:
                raise ArgumentError(f"{policy!r} and scheme={keywords['scheme']!r}; pass one of them")
            return cls((Rule(**{**keywords, "scheme": policy}),))
        return cls((Rule(accuracy=policy, **keywords),))

    def choose(self, module: str, operator: str, backward: bool = False, where: str = "") -> int | None:
        """The index of the rule that decides, or None."""
        return _first(self, module, operator, backward, where)

    def recipe(self, module: str, operator: str, backward: bool = False, where: str = "") -> Recipe:
        """How a product is to be made; `Recipe(off=True)` where no rule matches."""
        found = self.choose(module, operator, backward, where)
        return Recipe(off=True) if found is None else self.rules[found].recipe

    def check(self, model: torch.nn.Module) -> list[str]:
        """The model's modules that have parameters of their own and that no rule names.

        Raises:
            ArgumentError: for a policy made for another model, or a rule whose modules this one lacks.
        """
        if self.model is not None and self.model != fingerprint(model):
            raise ArgumentError(
                f"the policy was made for the model {self.model}, this one is {fingerprint(model)}; make one for it, "
                f'or take "model" out of the policy to apply it all the same'
            )
        names = [name for name, _ in model.named_modules()]
        for rule in self.rules:
            if not fnmatch.filter(names, rule.module) and rule.module != "*":
                some = ", ".join(repr(name) for name in names[:6]) + (", …" if len(names) > 6 else "")
                raise ArgumentError(f"the policy names module {rule.module!r}, which the model lacks; it has {some}")
        with_parameters = [
            name for name, module in model.named_modules() if any(True for _ in module.parameters(recurse=False))
        ]
        return [name for name in with_parameters if not any(rule._patterns[0].match(name) for rule in self.rules)]

    def to_dict(self) -> dict[str, Any]:
        """What `to_json` writes, as a dictionary."""
        content: dict[str, Any] = {"kind": KIND, "version": VERSION}
        if self.model is not None:
            content["model"] = self.model
        if self.note:
            content["note"] = self.note
        return content | {"rules": [rule.to_dict() for rule in self.rules]}

    def to_json(self) -> str:
        """Versioned JSON, a rule a line."""
        head = {key: value for key, value in self.to_dict().items() if key != "rules"}
        lines = [f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in head.items()]
        rules = ",\n  ".join(json.dumps(rule.to_dict(), ensure_ascii=False) for rule in self.rules)
        lines.append(f' "rules": [\n  {rules}\n ]' if self.rules else ' "rules": []')
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @classmethod
    def from_json(cls, text: str) -> Policy:
        """The policy of a JSON text.

        Raises:
            ArgumentError, AccuracyError: if the text is not JSON, is of another kind or a newer version, has unknown
                keys, or has rules that say nothing or ask for something that prismm does not know.
        """
        try:
            content = strict_json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ArgumentError(f"no policy: not JSON ({error}); pass what Policy.to_json wrote") from None
        return cls.from_dict(content)

    @classmethod
    def from_dict(cls, content: Any) -> Policy:
        """The policy of a dictionary; see `from_json`."""
        if not isinstance(content, dict) or content.get("kind") != KIND:
            raise ArgumentError(f'no policy: "kind" is not "{KIND}"; pass what Policy.to_json wrote')
        version = content.get("version")
        if not strict_json.is_version(version, VERSION):
            newer = ", of a newer prismm" if type(version) is int and version > VERSION else ""
            raise ArgumentError(f"a policy of version {version!r}{newer}; this prismm reads version {VERSION}")
        _known(content, ("kind", "version", "model", "note", "rules"), "a policy")
        model, note, rules = content.get("model"), content.get("note", ""), content.get("rules")
        if not isinstance(rules, list):
            raise ArgumentError(f'a policy\'s "rules" is {rules!r}; pass a list of rules')
        if not isinstance(note, str) or not (model is None or isinstance(model, str)):
            raise ArgumentError('a policy\'s "model" and "note" are text')
        return cls(tuple(_rule(rule, place) for place, rule in enumerate(rules, 1)), model, note)

    def save(self, path: str | Path) -> None:
        """Write the JSON to a file, whole or not at all.

        Raises:
            FileError: where it cannot be written.
        """
        from prismm.files.target import replace_text

        replace_text(Path(path), self.to_json())

    @classmethod
    def load(cls, path: str | Path) -> Policy:
        """The policy in a file.

        Raises:
            FileError: for a file that cannot be read or holds no policy.
        """
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            raise FileError(f"{path}: no policy: it is not text; pass what Policy.save wrote") from None
        except OSError as error:
            raise FileError(f"{path}: {error.strerror or error}") from error
        except PrismmError as error:
            raise FileError(f"{path}: {error}") from error

    def __repr__(self) -> str:
        more = "".join(f", {name}={value!r}" for name in ("model", "note") if (value := getattr(self, name)))
        return f"Policy({list(self.rules)!r}{more})"


def fingerprint(model: torch.nn.Module) -> str:
    """The model's class, with a digest of its modules' names and classes and of its parameters' shapes.

    >>> import torch
    >>> fingerprint(torch.nn.Linear(3, 4)) == fingerprint(torch.nn.Linear(4, 3))
    False
    """
    lines = [f"{name} {type(module).__name__}" for name, module in model.named_modules()]
    lines += [f"{name} {tuple(parameter.shape)}" for name, parameter in model.named_parameters()]
    return f"{type(model).__name__}:{hashlib.sha256(chr(10).join(lines).encode()).hexdigest()[:16]}"


@functools.lru_cache(maxsize=1 << 16)
def _first(policy: Policy, module: str, operator: str, backward: bool, where: str) -> int | None:
    for index, rule in enumerate(policy.rules):
        if rule.matches(module, operator, backward, where):
            return index
    return None


def _named(scheme: Any) -> str:
    from prismm.schemes.names import scheme_name

    try:
        name = scheme_name(scheme)
    except TypeError:
        name = None
    if name is None:
        raise ArgumentError(
            f"scheme={scheme!r} has no name that a policy can write; see prismm explain --help for names"
        )
    return name


def _key(name: str) -> str:
    return name.rstrip("_")


def _field(key: str) -> str:
    return "pass_" if key == "pass" else key


def _rule(content: Any, place: int) -> Rule:
    what = f"rule {place}"
    if not isinstance(content, dict):
        raise ArgumentError(f'{what} is {content!r}; pass an object such as {{"accuracy": "native"}}')
    _known(content, tuple(_key(x.name) for x in fields(Rule)), what)
    try:
        return Rule(**{_field(key): value for key, value in content.items()})
    except PrismmError as error:
        raise type(error)(f"{what}: {error}") from None


def _known(content: dict[str, Any], keys: Iterable[str], what: str) -> None:
    unknown = sorted(set(content) - set(keys))
    if unknown:
        raise ArgumentError(f"{what} has unknown keys {', '.join(unknown)}; it may have {', '.join(keys)}")
