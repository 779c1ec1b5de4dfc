"""Orders to the model in a text, in any of the languages of ``words``: an act and its object in one
sentence.

``reader`` finds the words, ``rules`` says which of them together are an order. A new language is a
table of words, a new kind of order is a rule; neither needs code.
"""
