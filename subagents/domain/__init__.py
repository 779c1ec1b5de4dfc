"""The ground floor of expert tools: pure functions and values. No Django, no input or output, no
clock."""
