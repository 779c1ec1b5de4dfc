"""The sentences of errors: the same condition has the same words on a page, in REST, on the command
line and over MCP.

Each function returns one or more whole sentences. Those of the first group are for the message of
an error, which says what is wrong, with the value. Those of the second group are for its remedy,
which says what to do. Never pass a secret.
"""

# --- what is wrong --------------------------------------------------------------------------------


def say_not_found(thing: str, name: object) -> str:
    """For things that have a name; ``thing`` is a noun without an article."""
    return f'No {thing} named "{name}".'


def say_no_such_number(thing: str, number: object) -> str:
    """For things that have a number or an identifier instead of a name."""
    return f"No {thing} with the number {number}."


def say_already_exists(thing: str, name: object) -> str:
    """``thing`` is a noun without an article."""
    return f'{_add_article(thing)} {thing} named "{name}" already exists.'


def say_not_valid(value: object, thing: str, why: str = "") -> str:
    """``thing`` is what was expected, with its article: ``a duration``. ``why`` is a clause without
    a full stop."""
    reason = f": {why}" if why else ""
    return f'"{value}" is not {thing}{reason}.'


def say_out_of_range(field: str, lowest: object, highest: object, value: object) -> str:
    """The bounds and the value carry their unit where there is one: ``5 s``."""
    return f"{field} must be between {lowest} and {highest} (got {value})."


def say_too_long(field: str, most: int, length: int, unit: str = "characters") -> str:
    """``unit`` is the plural of what is counted."""
    return f"{field} must have at most {most:,} {unit} (got {length:,})."


def say_required(field: str) -> str:
    """``field`` as the page or the request names it."""
    return f"{field} is required."


def say_not_permitted(verb: str, thing: str) -> str:
    """``verb`` and ``thing`` follow each other: ``change``, ``this server``."""
    return f"You do not have permission to {verb} {thing}."


def say_wrong_state(verb: str, thing: str, state: str) -> str:
    """``state`` is a clause that follows "it is": ``disabled``, ``already running``."""
    return f"Cannot {verb} this {thing}: it is {state}."


def say_server_failed(name: str, what: str) -> str:
    """``what`` is a clause that follows the server's name: ``did not answer within 30 s``."""
    return f'The MCP server "{name}" {what}.'


def _add_article(thing: str) -> str:
    return "An" if thing[:1].lower() in "aeio" else "A"  # not for "u": a user


DATABASE_UNAVAILABLE = "The database is unavailable."
# What to do depends on the tool: see ``mcpregistry/domain/calls/outcome_texts.py``.
OUTCOME_UNKNOWN = "The outcome is unknown: the call may have taken effect."


# --- what to do -----------------------------------------------------------------------------------


def advise_list(where: str) -> str:
    """``where`` is a command or the name of a page: ``manage.py servers list``."""
    return f"List them with {where}."


def advise_form(form: str, example: str) -> str:
    """``form`` is a noun phrase that describes what is accepted, and ``example`` is accepted."""
    return f"Use {form}, for example {example}."


def advise_role(role: str) -> str:
    """``role`` is one of the roles of the site: ``operator``."""
    return f"Ask an administrator for the {role} role."


CHOOSE_ANOTHER_NAME = "Choose another name, or edit the existing one."
TRY_AGAIN_SOON = "Try again in a moment."
# Only the log shows the cause. Operators read this text as well as hosts and models, which cannot
# read the log.
TRY_AGAIN = f"{TRY_AGAIN_SOON} If the error continues, an operator can find the cause in the log."
# for errors that only callers read
ASK_OPERATOR = "Ask the operator to look for the cause in the log."
NOTHING_TO_DO = "Nothing needs to be done."
