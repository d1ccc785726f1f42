"""What everything else stands on: settings, command lines, messages, files, random numbers."""
