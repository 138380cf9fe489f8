"""A module for each kind of file: names, bytes in and out; nothing here knows of logs."""
