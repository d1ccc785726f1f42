"""What everything else builds on: settings, command lines, messages, files, random numbers."""
