"""One kind of file each: names, bytes in and out; nothing here knows of logs."""
