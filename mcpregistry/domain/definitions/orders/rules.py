"""Which ideas in one sentence are an order that no honest definition gives: an act and its object,
and what excuses it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class OrderRule:
    """``ideas`` must all be said (``a|b``: one of them), none of ``unless``. ``across``: two
    sentences in a row may say it together. ``why`` is the sentence for the reviewer.
    """

    kind: str
    ideas: tuple[str, ...]
    why: str
    unless: frozenset[str] = frozenset()
    across: bool = False

    @cached_property
    def needs(self) -> tuple[frozenset[str], ...]:
        return tuple(frozenset(idea.split("|")) for idea in self.ideas)

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset().union(*self.needs)

    def is_order(self, said: set[str]) -> bool:
        """Whether a sentence that says these ideas gives the order."""
        return said.isdisjoint(self.unless) and not any(
            said.isdisjoint(need) for need in self.needs
        )


# An idea made of two: the second begins fewer than so many words after the first.
NEAR = {
    "hush": ("not", "tell", 5),
    "barred": ("need not", "learn", 8),
    "kept": ("keep", "secretly", 9),
    "unasked": ("not", "ask", 6),
    "careful": ("never", "without", 8),
    "careful too": ("never", "unasked", 8),
    "careful after": ("unasked", "never after", 14),
    "often": ("many", "times", 2),
    "calm": ("not", "give", 2),
    "freed": ("rules", "void", 12),
    "voided": ("void", "rules", 8),
    "commanded": ("model", "duty", 2),
}

_HIDE = "It asks the model to hide something from the user."
_OUT = "It asks the model to disclose a secret."
_SAID = "It asks the model to disclose the conversation."
_AWAY = "It asks the model to send data to an address that it names."
_RULE = "It tries to replace the model's instructions."
_YES = "It tries to bypass the user's approval."
_COST = "It asks for very many or endless calls, which cost time and money."


def _split_names(names: str) -> frozenset[str]:
    return frozenset(names.split())


RULES = (
    OrderRule("secrecy", ("hush|barred|conceal|kept", "user"), _HIDE, _split_names("secret")),
    OrderRule("secrecy", ("conceal|kept|trim", "answer"), _HIDE),
    OrderRule("secrecy", ("conceal|kept", "aside|fee"), _HIDE),
    OrderRule("secrecy", ("hush", "aside|fee"), _HIDE),
    OrderRule("secrecy", ("covert",), _HIDE),
    OrderRule(
        "exfiltration",
        ("give", "secret", "whose|ours|also|://"),
        _OUT,
        _split_names("calm guarded"),
    ),
    OrderRule(
        "conversation", ("give", "talk", "whose|whole|also|ours"), _SAID, _split_names("calm")
    ),
    OrderRule("exfiltration", ("send", "also|each|files", "://"), _AWAY, _split_names("calm")),
    OrderRule("override", ("ignore", "rules", "prior|your|all|model"), _RULE),
    OrderRule("override", ("ignore|void", "told"), _RULE),
    OrderRule("override", ("freed|voided", "your|prior|model|here"), _RULE),
    OrderRule("override", ("obey", "only", "here"), _RULE),
    OrderRule("override", ("here", "outrank", "rules|told|user|your"), _RULE),
    OrderRule("override", ("new role",), _RULE),
    OrderRule(
        "approval",
        ("unasked", "user|urge"),
        _YES,
        _split_names("secret careful") | {"careful too", "careful after"},
    ),
    OrderRule("approval", ("self yes",), _YES),
    OrderRule("loop", ("call", "often"), _COST, _split_names("bounded")),
    OrderRule("loop", ("call", "endless"), _COST, _split_names("bounded")),
    OrderRule("loop", ("endless", "commanded"), _COST),
    OrderRule(
        "shadowing", ("other tool", "whenever", "duty|give|act"), "It gives rules for another tool."
    ),
    OrderRule(
        "shadowing",
        ("other tool", "discredit"),
        "It discredits other tools so that it is used instead.",
    ),
    OrderRule(
        "obedience",
        ("holds", "orders", "obey"),
        "It asks the model to obey what the tool returns.",
        _split_names("not"),
        True,
    ),
    OrderRule(
        "persistence",
        ("remember", "later", "these|ours"),
        "It asks the model to change the behavior of later sessions.",
    ),
    OrderRule(
        "role",
        ("commanded", "leave|obey|ignore"),
        "It gives the model a duty that goes beyond the tool.",
    ),
)
