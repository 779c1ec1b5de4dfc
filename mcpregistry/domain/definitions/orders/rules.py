"""Which ideas in one sentence are an order that no honest definition gives: an act and its object,
and what excuses it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Rule:
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

    def holds(self, said: set[str]) -> bool:
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


def _unless(names: str) -> frozenset[str]:
    return frozenset(names.split())


RULES = (
    Rule("secrecy", ("hush|barred|conceal|kept", "user"), _HIDE, _unless("secret")),
    Rule("secrecy", ("conceal|kept|trim", "answer"), _HIDE),
    Rule("secrecy", ("conceal|kept", "aside|fee"), _HIDE),
    Rule("secrecy", ("hush", "aside|fee"), _HIDE),
    Rule("secrecy", ("covert",), _HIDE),
    Rule("exfiltration", ("give", "secret", "whose|ours|also|://"), _OUT, _unless("calm guarded")),
    Rule("conversation", ("give", "talk", "whose|whole|also|ours"), _SAID, _unless("calm")),
    Rule("exfiltration", ("send", "also|each|files", "://"), _AWAY, _unless("calm")),
    Rule("override", ("ignore", "rules", "prior|your|all|model"), _RULE),
    Rule("override", ("ignore|void", "told"), _RULE),
    Rule("override", ("freed|voided", "your|prior|model|here"), _RULE),
    Rule("override", ("obey", "only", "here"), _RULE),
    Rule("override", ("here", "outrank", "rules|told|user|your"), _RULE),
    Rule("override", ("new role",), _RULE),
    Rule(
        "approval",
        ("unasked", "user|urge"),
        _YES,
        _unless("secret careful") | {"careful too", "careful after"},
    ),
    Rule("approval", ("self yes",), _YES),
    Rule("loop", ("call", "often"), _COST, _unless("bounded")),
    Rule("loop", ("call", "endless"), _COST, _unless("bounded")),
    Rule("loop", ("endless", "commanded"), _COST),
    Rule(
        "shadowing", ("other tool", "whenever", "duty|give|act"), "It gives rules for another tool."
    ),
    Rule(
        "shadowing",
        ("other tool", "discredit"),
        "It discredits other tools so that it is used instead.",
    ),
    Rule(
        "obedience",
        ("holds", "orders", "obey"),
        "It asks the model to obey what the tool returns.",
        _unless("not"),
        True,
    ),
    Rule(
        "persistence",
        ("remember", "later", "these|ours"),
        "It asks the model to change the behavior of later sessions.",
    ),
    Rule(
        "role",
        ("commanded", "leave|obey|ignore"),
        "It gives the model a duty that goes beyond the tool.",
    ),
)
