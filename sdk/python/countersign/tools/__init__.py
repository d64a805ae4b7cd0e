"""What an agent may ask for: functions by name, and their arguments as bytes (README.md)."""
