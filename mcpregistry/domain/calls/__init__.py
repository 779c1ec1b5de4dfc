"""What a call is made of: its arguments, what is bound by an approval, how it may wait, what goes
on to a server.

Values only. It knows neither rules (``policy``) nor how anything is stored or sent.
"""
