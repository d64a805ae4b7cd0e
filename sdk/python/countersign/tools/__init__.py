"""Tools: functions that agents call by name, with arguments as canonical bytes (README.md)."""
