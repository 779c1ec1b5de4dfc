"""The outside of expert tools: the one door to language models, and the scripted ones.

``client`` alone imports litellm, in a worker alone; nothing here reads the database or knows what a
run is.
"""
