"""Headends: expert tools as models of OpenAI's and Anthropic's APIs, and as a REST service. They
translate, and decide nothing."""
