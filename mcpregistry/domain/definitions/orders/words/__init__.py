"""Words for the ideas that ``rules`` combine, a table for each language; ``ANY`` holds what all of
them borrow.

``*`` at the end of a word stands for all that begin so, ``*`` alone for any one word. Accents, case
and look-alike letters do not matter. Orders are said in the imperative or infinitive and
descriptions in the third person, so verbs stand here in the forms of orders. The idea ``-`` means
nothing: its phrases keep their words from being taken for something else.
"""

from mcpregistry.domain.definitions.orders.words.asian import (
    BENGALI,
    CHINESE,
    HINDI,
    INDONESIAN,
    JAPANESE,
    URDU,
)
from mcpregistry.domain.definitions.orders.words.borrowed import BORROWED
from mcpregistry.domain.definitions.orders.words.english import ENGLISH
from mcpregistry.domain.definitions.orders.words.european import ARABIC, GERMAN, RUSSIAN
from mcpregistry.domain.definitions.orders.words.romance import FRENCH, ITALIAN, PORTUGUESE, SPANISH

ANY = "any"
LANGUAGES = {
    ANY: BORROWED,
    "English": ENGLISH,
    "Chinese": CHINESE,
    "Hindi": HINDI,
    "Spanish": SPANISH,
    "French": FRENCH,
    "Arabic": ARABIC,
    "Bengali": BENGALI,
    "Portuguese": PORTUGUESE,
    "Russian": RUSSIAN,
    "Urdu": URDU,
    "Indonesian": INDONESIAN,
    "German": GERMAN,
    "Japanese": JAPANESE,
    "Italian": ITALIAN,
}
