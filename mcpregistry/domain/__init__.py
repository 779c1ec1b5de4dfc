"""The ground floor: pure functions and values. No Django, no input or output, no clock."""
