"""Where in a rendered file each batch lies, without reading what lies before it."""
